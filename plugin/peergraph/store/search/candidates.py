"""Finds the rows that can be among the k with the largest products, with products that are rounded.

Every product is off by at most an error that the norms of the two vectors bound. So a row whose
product is below the k-th largest by more than twice that bound is not among the k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory.table.local_rows import LocalRows
from peergraph.store.search.product_filter import ProductFilter

_BLOCK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
_LEAST_NORMAL = 2.0**-126
_MOST_CANDIDATES = 1 << 22  # of all queries that are searched at once
_FILTERED_DEVICES = {"cuda"}
"""Devices whose kernel multiplies stored rows and writes only the products above a threshold."""
_LEAST_UNFILTERED = 1 << 15  # rows whose products are written, from which thresholds come
_GROWTH = 7  # times the rows so far are filtered at once
_CAPACITY = 16  # times the candidates of a query are the most that a filter writes


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

    def mask(self, products: Tensor, places: Tensor) -> Tensor:
        """Masks products [Q, n] with the rows at `places` [Q, n]. Returns them."""
        if not self.place.numel() or not products.numel():
            return products
        count = len(products)
        keys = (self.place * count + self.query).sort().values
        numbers = torch.arange(count, device=products.device)[:, None]
        pairs = places * count + numbers
        at = torch.searchsorted(keys, pairs).clamp(max=len(keys) - 1)
        return torch.where(keys[at] == pairs, -torch.inf, products)


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

    def candidates(self, excluded: Excluded) -> Tensor:
        """Returns places of rows, int64 [Q, n], -1: none. The k rows with the largest products that
        are not excluded are among them, and rows with equal products.

        Raises ValueError if a row is not finite.
        """
        # Most rows that rounding confuses with the k-th are in a few times k rows.
        rough = any(
            piece.codec is not None and piece.codec.stored == "int8" for piece in self.pieces
        )
        factor = 0 if self.dtype != torch.bfloat16 else 11 if rough and self.is_filtered else 3
        width = min((1 + factor) * self.k + (64 if factor else 16), self.num_rows)
        places = torch.full((len(self.queries), width), -1, device=self.device)
        open_queries = torch.arange(len(self.queries), device=self.device)
        while open_queries.numel():
            at_once = max(1, _MOST_CANDIDATES // max(1, width))
            still_open = []
            if width > places.shape[1]:
                places = torch.nn.functional.pad(places, (0, width - places.shape[1]), value=-1)
            for part in torch.split(open_queries, at_once):
                best, where, is_complete = self._search(part, width, excluded)
                places[part, :width] = torch.where(best == -torch.inf, -1, where)
                still_open.append(part[~is_complete])
            open_queries = torch.cat(still_open)
            width = min(4 * width, self.num_rows)
        return places

    def _search(
        self, chosen: Tensor, width: int, excluded: Excluded
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the `width` largest rounded products of some queries, their places, and whether
        no other row can be among the k largest: [n, width], [n, width], [n].
        """
        queries = self.queries[chosen]
        mine = self._of_queries(chosen, excluded)
        product_filter = None
        if self.is_filtered and self.dtype != torch.float64:
            product_filter = ProductFilter(queries, self.users_dtype, _CAPACITY * width)
        best, where, largest_norm = self._scan(queries, width, mine, product_filter)
        if not bool(largest_norm.isfinite()):
            if self.dtype == torch.float64:
                raise ValueError("table: a row has NaN, infinite or too large values")
            # The squares, or the products, may be too large for float32.
            self.dtype = torch.float64
            return self._search(chosen, width, excluded)
        norms = torch.linalg.vector_norm(queries, dim=1)
        # The second term is for values that are rounded to zero, or where a GPU flushes them.
        underflow = self.queries.shape[1] * _LEAST_NORMAL * (1 + norms + largest_norm)
        if product_filter is None:
            error = self._relative_error() * norms
        else:
            error = torch.maximum(product_filter.error, norms * 2.0**-22)
        error = error * largest_norm + underflow
        if width >= self.num_rows:
            return best, where, torch.ones_like(error, dtype=torch.bool)
        last, kth = best[:, -1].double(), best[:, self.k - 1].double()
        return best, where, last + 2 * error < kth

    def _scan(
        self,
        queries: Tensor,
        width: int,
        excluded: Excluded,
        product_filter: ProductFilter | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the `width` largest rounded products of queries with all rows, their places, and
        the largest norm of a row, a float64 scalar.
        """
        # Beside a filter, few products are written. They are exact, so that the thresholds are.
        dtype = self.dtype if product_filter is None else torch.float64
        rounded = queries.to(dtype)
        norm_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        best_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        best = torch.empty((len(queries), 0), dtype=best_dtype, device=self.device)
        where = torch.empty((len(queries), 0), dtype=torch.int64, device=self.device)
        largest_norm = torch.zeros((), dtype=torch.float64, device=self.device)
        unfiltered = max(_LEAST_UNFILTERED, 8 * width)
        for piece, first, begin, end, is_filtered in self._ranges(
            len(queries), unfiltered, product_filter
        ):
            hits = None
            if product_filter is not None and is_filtered:
                hits = product_filter.find(piece, begin, end, best[:, -1])
            if hits is not None:
                largest_norm = torch.maximum(largest_norm, hits.largest_norm)
                places = hits.places + first + begin
                products = excluded.mask(hits.products, places)
                best, where = _join(best, where, products, places, width)
                continue
            # Without a filter, or where it finds more products than it has room for.
            step = self._step(len(queries), dtype)
            for low in range(begin, end, step):
                block = piece.block(low, min(low + step, end), dtype, self.device)
                norm = torch.linalg.vector_norm(block, dim=1, dtype=norm_dtype).max()
                largest_norm = torch.maximum(largest_norm, norm.double())
                products = rounded @ block.T
                products = products if product_filter is None else products.to(best_dtype)
                products = excluded.mask_block(products, first + low)
                best, where = _merge(best, where, products, first + low, width)
        return best, where, largest_norm

    def _ranges(
        self, num_queries: int, unfiltered: int, product_filter: ProductFilter | None
    ) -> Iterator[tuple[LocalRows, int, int, int, bool]]:
        """Yields ranges of rows: the piece, the place of its first row, the range in the piece, and
        whether it is filtered. A filter needs thresholds from the rows before.
        """
        first = 0
        for piece in self.pieces:
            begin = 0
            while begin < len(piece):
                is_filtered = product_filter is not None and first + begin >= unfiltered
                if product_filter is None:
                    step = self._step(num_queries, self.dtype)
                elif is_filtered:
                    step = min(_GROWTH * (first + begin), product_filter.rows_at_once(piece))
                else:
                    step = unfiltered - first - begin
                end = min(begin + step, len(piece))
                yield piece, first, begin, end, is_filtered
                begin = end
            first += len(piece)

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
    """Returns the internal rows of places; -1 stays -1."""
    internal = torch.full_like(places, -1)
    offset = 0
    for piece in pieces:
        stored = places - offset
        is_here = (stored >= 0) & (stored < len(piece))
        internal = torch.where(is_here, piece.internal(stored), internal)
        offset += len(piece)
    return internal
