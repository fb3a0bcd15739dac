"""Finds the rows that can be among the k with the largest products, with products that are rounded.

Every product is off by at most an error that the norms of the two vectors bound. So a row whose
product is below the k-th largest by more than twice that bound is not among the k.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from peergraph.memory.table.local_rows import LocalRows
from peergraph.store.search.product_filter import LEAST_NORMAL, Candidates, ProductFilter

_BLOCK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
_LEAST_NORM = 2.0**-50  # in float32, much of smaller ones is lost
_MOST_CANDIDATES = 1 << 22  # of all queries that are searched at once
_MOST_FILTERED = 1 << 24  # the same, for products of a filter
_FILTERED_DEVICES = {"cuda"}
"""Devices whose kernel multiplies stored rows and writes only products that can be the largest."""
_LEAST_CAPACITY = 1 << 12  # products of a query that a filter holds, not below 128,
_CAPACITY = 16  # and at least so many times k


@dataclass(frozen=True)
class Excluded:
    """Rows that queries leave out.

    Args:
        query: int64 [pairs].
        place: int64 [pairs] places among this rank's rows, ascending.
    """

    query: Tensor
    place: Tensor

    def mask_block(self, products: Tensor, first: int) -> Tensor:
        """Masks products [Q, n] with the rows at the places from `first` on, in place."""
        if self.place.numel():
            ends = torch.tensor([first, first + products.shape[1]], device=products.device)
            low, high = torch.searchsorted(self.place, ends).tolist()
            products[self.query[low:high], self.place[low:high] - first] = -torch.inf
        return products

    def keys(self, pieces: list[LocalRows], num_places: int) -> Tensor:
        """Returns the pairs in one number, ascending: int64 ``query * num_places + internal row``.

        Args:
            pieces: the rows of this rank.
            num_places: above all internal rows.
        """
        if not self.place.numel():
            return self.place
        return (self.query * num_places + internal_of(pieces, self.place)).sort().values


class Scan:
    """The products of queries with all rows of this rank.

    Args:
        pieces: the rows of this rank. A place is the number of a row in these pieces, one after
            the other.
        queries: float64 [Q, columns], on the device.
        k: the number of rows per query.
        dtype: the dtype of the table.
    """

    def __init__(
        self, pieces: list[LocalRows], queries: Tensor, k: int, dtype: torch.dtype
    ) -> None:
        self.pieces = pieces
        self.queries = queries
        self.k = k
        self.device = queries.device
        self.num_rows = sum(map(len, pieces))
        if dtype == torch.float64:
            self.dtype = torch.float64
        else:
            self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.users_dtype = dtype
        self.is_filtered = self.device.type in _FILTERED_DEVICES and ProductFilter.supports(
            queries.shape[1], dtype, self.device
        )

    def candidates(self, excluded: Excluded) -> Candidates:
        """Returns rows. The k rows with the largest products that are not excluded are among them,
        and rows with equal products.

        Raises ValueError if a row is not finite.
        """
        everything = torch.arange(len(self.queries), device=self.device)
        if self.is_filtered:
            result = self._filter(everything, excluded)
        else:
            places = torch.empty((len(self.queries), 0), dtype=torch.int64, device=self.device)
            counts = torch.zeros(len(self.queries), dtype=torch.int32, device=self.device)
            result = Candidates(places, counts, 0, everything)
        # Most rows that rounding confuses with the k-th are in a few times k rows.
        factor = 3 if self.dtype == torch.bfloat16 else 0
        width = min((1 + factor) * self.k + (64 if factor else 16), self.num_rows)
        while result.open_queries.numel():
            at_once = max(1, _MOST_CANDIDATES // max(1, width))
            still_open = []
            missing = max(0, width - result.places.shape[1])
            result.places = torch.nn.functional.pad(result.places, (0, missing))
            result.most = max(result.most, width)
            for part in torch.split(result.open_queries, at_once):
                best, where, is_complete = self._search(part, width, excluded)
                result.places[part, :width] = internal_of(self.pieces, where)
                result.counts[part] = (best > -torch.inf).sum(1, dtype=torch.int32)
                still_open.append(part[~is_complete])
            result.open_queries = torch.cat(still_open)
            width = min(4 * width, self.num_rows)
        return result

    def _filter(self, chosen: Tensor, excluded: Excluded, guesses: bool = True) -> Candidates:
        """Returns candidates of some queries."""
        capacity = min(max(_LEAST_CAPACITY, _CAPACITY * self.k), max(1, self.num_rows))
        num_places = max(
            (piece.first + len(piece) * piece.step for piece in self.pieces), default=0
        )
        parts = []
        for part in torch.split(chosen, max(1, _MOST_FILTERED // capacity)):
            keys = self._of_queries(part, excluded).keys(self.pieces, num_places)
            queries = self.queries if len(part) == len(self.queries) else self.queries[part]
            search = ProductFilter(queries, self.k, self.users_dtype, capacity, guesses)
            result = search.search(self.pieces, keys, num_places)
            failed = result.open_queries
            if failed.numel() and guesses:
                again = self._filter(part[failed], excluded, guesses=False)
                result.places[failed, : again.places.shape[1]] = again.places
                result.counts[failed] = again.counts
                result.most = max(result.most, again.most)
                result.open_queries = failed[again.open_queries]
            parts.append(result)
        if len(parts) == 1:
            return parts[0]
        most = max(part.most for part in parts)
        begins = accumulate((len(part.counts) for part in parts), initial=0)
        return Candidates(
            torch.cat([part.places[:, :most] for part in parts]),
            torch.cat([part.counts for part in parts]),
            most,
            torch.cat([part.open_queries + i for part, i in zip(parts, begins, strict=False)]),
        )

    def _search(
        self, chosen: Tensor, width: int, excluded: Excluded
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the `width` largest rounded products of some queries, their places, and whether
        no other row can be among the k largest: [n, width], [n, width], [n].
        """
        queries = self.queries[chosen]
        mine = self._of_queries(chosen, excluded)
        best, where, largest_norm = self._scan(queries, width, mine)
        is_finite = bool(largest_norm.isfinite())
        if self.dtype == torch.float64 and not is_finite:
            raise ValueError("table: a row has NaN, infinite or too large values")
        if self.dtype != torch.float64 and not (is_finite and bool(largest_norm > _LEAST_NORM)):
            # The squares, or the products, may be too large or too small for float32.
            self.dtype = torch.float64
            return self._search(chosen, width, excluded)
        norms = torch.linalg.vector_norm(queries, dim=1)
        # The second term is for values that are rounded to zero, or where a GPU flushes them.
        underflow = self.queries.shape[1] * LEAST_NORMAL * (1 + norms + largest_norm)
        error = self._relative_error() * norms * largest_norm + underflow
        if width >= self.num_rows:
            return best, where, torch.ones_like(error, dtype=torch.bool)
        last, kth = best[:, -1].double(), best[:, self.k - 1].double()
        return best, where, last + 2 * error < kth

    def _scan(
        self, queries: Tensor, width: int, excluded: Excluded
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the `width` largest rounded products of queries with all rows, their places, and
        the largest norm of a row, a float64 scalar.
        """
        rounded = queries.to(self.dtype)
        best_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        best = torch.empty((len(queries), 0), dtype=best_dtype, device=self.device)
        where = torch.empty((len(queries), 0), dtype=torch.int64, device=self.device)
        largest_norm = torch.zeros((), dtype=torch.float64, device=self.device)
        step, first = self._step(len(queries), self.dtype), 0
        for piece in self.pieces:
            for low in range(0, len(piece), step):
                block = piece.block(low, min(low + step, len(piece)), self.dtype, self.device)
                norm = torch.linalg.vector_norm(block, dim=1, dtype=best_dtype).max()
                largest_norm = torch.maximum(largest_norm, norm.double())
                products = excluded.mask_block(rounded @ block.T, first + low)
                best, where = _merge(best, where, products, first + low, width)
            first += len(piece)
        return best, where, largest_norm

    def _step(self, num_queries: int, dtype: torch.dtype) -> int:
        """Returns the rows of a block whose products are written."""
        row_bytes = (num_queries + self.queries.shape[1]) * dtype.itemsize
        return max(256, _BLOCK_BYTES[self.device.type] // max(1, row_bytes))

    def _relative_error(self) -> float:
        """Bounds the error of a product, over the product of the norms."""
        columns = self.queries.shape[1]
        if self.dtype == torch.float64:
            return (columns + 8) * 2.0**-52
        if self.dtype == torch.float32:  # of both vectors, the products and their sum
            return (columns + 8) * 2.0**-23
        # Both vectors are rounded to 8 bits, and the sum, once or, where it is split, more often.
        return (4.1 + columns / 64) * 2.0**-9 + columns * 2.0**-22

    def _of_queries(self, chosen: Tensor, excluded: Excluded) -> Excluded:
        """Returns what some queries exclude, with their number among these queries."""
        if not excluded.place.numel():
            return excluded
        number = torch.full((len(self.queries),), -1, device=self.device)
        number[chosen] = torch.arange(len(chosen), device=self.device)
        query = number[excluded.query]
        return Excluded(query[query >= 0], excluded.place[query >= 0])


def _merge(
    best: Tensor, where: Tensor, products: Tensor, offset: int, width: int
) -> tuple[Tensor, Tensor]:
    """Merges the products of a block into the `width` best ones of each query.

    Args:
        best, where: [n, up to width] products, falling, and their places.
        products: [n, rows of the block].
        offset: the place of the first row of the block.
    """
    columns = None
    if best.shape[1] == width and width:
        # After a few blocks, only few products are above the least of the best.
        query, column = (products > best[:, -1:]).nonzero(as_tuple=True)
        begins = torch.searchsorted(query, torch.arange(len(best) + 1, device=query.device))
        most = int(begins.diff().max()) if len(best) else 0
        if most <= width:
            slot = torch.arange(query.numel(), device=query.device) - begins[query]
            columns = torch.zeros((len(best), most), dtype=torch.int64, device=query.device)
            columns[query, slot] = column
            values = torch.full_like(columns, -torch.inf, dtype=products.dtype)
            values[query, slot] = products[query, column]
    if columns is None:
        values, columns = products.topk(min(width, products.shape[1]), dim=1)
    return _join(best, where, values.to(best.dtype), columns + offset, width)


def _join(
    best: Tensor, where: Tensor, products: Tensor, places: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Returns the `width` best of two lists of products for each query, and their places."""
    best, where = torch.cat([best, products], 1), torch.cat([where, places], 1)
    best, order = best.topk(min(width, best.shape[1]), dim=1)
    return best, where.gather(1, order)


def places_of(pieces: list[LocalRows], internal: Tensor) -> Tensor:
    """Returns the places of internal rows; -1 for rows that other ranks scan."""
    places = torch.full_like(internal, -1)
    offset = 0
    for piece in pieces:
        stored = (internal - piece.first).div(piece.step, rounding_mode="floor")
        is_here = (stored >= 0) & (stored < len(piece)) & (piece.internal(stored) == internal)
        places = torch.where(is_here, stored + offset, places)
        offset += len(piece)
    return places


def internal_of(pieces: list[LocalRows], places: Tensor) -> Tensor:
    """Returns the internal rows of places."""
    internal = torch.zeros_like(places)
    offset = 0
    for piece in pieces:
        stored = places - offset
        is_here = (stored >= 0) & (stored < len(piece))
        internal = torch.where(is_here, piece.internal(stored), internal)
        offset += len(piece)
    return internal
