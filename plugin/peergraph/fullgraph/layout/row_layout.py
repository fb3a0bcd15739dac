"""Which rank holds which rows of an array whose rows are partitioned over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.layout.content_digest import current_digest
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.memory import Group
from peergraph.memory.region.free_memory import check_count

_Lazy = Callable[[], Tensor]
_MIN_KEPT = 4  # selections that a layout keeps, however large
_MAX_KEPT = 256  # and however small: rows may be read one by one


class RowLayout:
    """The rows of a global array by rank: nodes of a type, edges of a relation, or selected rows.

    The user numbers the rows 0 to `size - 1`. Rank r holds `counts[r]` of them. An internal row
    number is `offsets[rank] + local row`. Layouts are immutable and compared by identity first, so
    selections are cached: the same mask or ids give the same layout object. Their tensors serve all
    modes, so none of them is of inference mode.
    """

    group: Ranks
    """The ranks."""
    counts: tuple[int, ...]
    """Rows by rank."""
    offsets: tuple[int, ...]
    """First internal row of each rank."""
    size: int
    """Rows of all ranks."""
    local_count: int
    """Rows of this rank."""
    parent: RowLayout | None
    """The layout that this one was derived from, or None."""
    unique: bool
    """Whether no row of `parent` was selected more than once."""
    repeats: int
    """For :meth:`repeat`: rows for each row of `parent`; else 1."""
    tiles: int
    """For :meth:`tile`: copies of the rows of `parent`; else 1."""
    parts: tuple[RowLayout, ...]
    """For :meth:`concatenate`: the layouts one after the other; else empty."""
    bounds: tuple[int, int, int] | None
    """For :meth:`select_range`: first row, end and step; else None."""
    by_ids: bool
    """Whether a plain list of ids, which every rank holds, named the rows or some of them."""

    def __init__(
        self,
        group: Ranks,
        counts: Sequence[int],
        positions: Tensor | _Lazy,
        internal_rows: Tensor | _Lazy | None = None,
        *,
        parent: RowLayout | None = None,
        parent_rows: Tensor | _Lazy | None = None,
        unique: bool = True,
        repeats: int = 1,
        tiles: int = 1,
        parts: tuple[RowLayout, ...] = (),
        by_ids: bool = False,
    ) -> None:
        self.group = group
        self.counts = tuple(int(count) for count in counts)
        if len(self.counts) != group.world_size:
            raise ValueError(
                f"counts must have one number for each of the {group.world_size} ranks, "
                f"got {len(self.counts)}"
            )
        self.offsets = (0, *accumulate(self.counts))[:-1]
        self.size = sum(self.counts)
        self.local_count = self.counts[group.rank]
        self.parent = parent
        self._parent_rows = parent_rows
        self.unique = unique
        self.repeats = repeats
        self.tiles = tiles
        self.parts = parts
        self.bounds: tuple[int, int, int] | None = None
        self.by_machine: bool = parent is None or parent.by_machine
        """Whether a row that several ranks of another machine need is sent to that machine once,
        where a rank passes it on (:class:`MachineHaloPlan`); else owners send it to each rank."""
        self.by_ids = by_ids or (parent is not None and parent.by_ids)
        self._positions = positions
        self._internal_rows = internal_rows
        self._derived: dict[tuple[str, int], RowLayout] = {}
        self._concatenated: RowLayout | None = None
        self._by_content: dict[object, RowLayout] = {}
        self._compared: WeakKeyDictionary[RowLayout, bool] = WeakKeyDictionary()

    @property
    def processes(self) -> Group:
        """The ranks as processes, which have machines and shared memory; a chunk's have none."""
        assert isinstance(self.group, Group)
        return self.group

    @property
    def parent_rows(self) -> Tensor | None:
        """[local_count] int64: rows of a selection as local rows of `parent`; None otherwise."""
        if not (self._parent_rows is None or isinstance(self._parent_rows, Tensor)):
            with torch.inference_mode(False):
                self._parent_rows = self._parent_rows()
        return self._parent_rows

    @classmethod
    @torch.inference_mode(False)
    def contiguous(cls, group: Ranks, size: int) -> RowLayout:
        """Returns the layout in the user's order, cut in blocks that differ by at most one row."""
        check_count("size", size)
        small, larger = divmod(size, group.world_size)
        counts = [small + (rank < larger) for rank in range(group.world_size)]
        start = sum(counts[: group.rank])
        positions = torch.arange(start, start + counts[group.rank], device=group.device)
        return cls(group, counts, positions, lambda: torch.arange(size, device="cpu"))

    @classmethod
    def from_order(cls, group: Ranks, order: Tensor, counts: Sequence[int]) -> RowLayout:
        """Returns the layout that cuts `order` in blocks of `counts` rows.

        Args:
            order: [size] int64, equal on all ranks: the user's row of each internal row.
            counts: rows by rank; their sum is `size`.

        Raises:
            ValueError: `order` is no permutation, or `counts` do not sum to its length.
        """
        if order.dim() != 1 or sum(counts) != order.numel():
            raise ValueError(
                f"order must be one row number for each of sum(counts) = {sum(counts)} rows, "
                f"got shape {tuple(order.shape)}"
            )
        order = order.to("cpu", torch.int64)
        size = order.numel()
        internal_rows = torch.full((size,), -1, device="cpu")
        if size and (int(order.min()) < 0 or int(order.max()) >= size):
            raise ValueError(f"order must hold row numbers of 0..{size - 1}")
        internal_rows[order] = torch.arange(size, device="cpu")
        if size and int(internal_rows.min()) < 0:
            raise ValueError("order must hold every row once")
        start = sum(counts[: group.rank])
        positions = order[start : start + counts[group.rank]].to(group.device)
        return cls(group, counts, positions, internal_rows)

    @property
    def positions(self) -> Tensor:
        """[local_count] int64 on the group's device: the user's row of each local row.

        For a selection by mask the first use is collective.
        """
        if not isinstance(self._positions, Tensor):
            with torch.inference_mode(False):
                self._positions = self._positions()
        return self._positions

    @property
    def internal_rows(self) -> Tensor:
        """[size] int64 on the CPU: the internal row of each of the user's rows.

        For a selection by mask the first use is collective.
        """
        if not isinstance(self._internal_rows, Tensor):
            make = self._internal_rows or self._gather_internal_rows
            with torch.inference_mode(False):
                self._internal_rows = make()
        return self._internal_rows

    def rows_of(self, rank: int) -> slice:
        """The internal rows that a rank has."""
        return slice(self.offsets[rank], self.offsets[rank] + self.counts[rank])

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rank and the local row of each of the user's rows `ids`, int64 on the CPU.

        Raises:
            IndexError: an id is not one of -size..size - 1.
        """
        return self.owners_of(self.internal_rows[self.positive_ids(ids)])

    def positive_ids(self, ids: Tensor) -> Tensor:
        """Returns the user's rows `ids`, int64 on the CPU, counted from the first row only.

        Raises:
            IndexError: an id is not one of -size..size - 1.
        """
        ids = ids.to("cpu", torch.int64)
        if ids.numel() and (int(ids.min()) < -self.size or int(ids.max()) >= self.size):
            raise IndexError(
                f"row ids must be in -{self.size}..{self.size - 1}, "
                f"got {int(ids.min())}..{int(ids.max())}"
            )
        return torch.where(ids < 0, ids + self.size, ids)

    def owners_of(self, internal_rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rank that holds each internal row, and its local row there, int64."""
        offsets = torch.tensor(self.offsets, device=internal_rows.device)
        internal_rows = internal_rows.long()
        # Ranks without rows have the offset of the next one; `right` finds the last of them.
        owner = torch.searchsorted(offsets, internal_rows, right=True) - 1
        return owner, internal_rows - offsets[owner]

    @torch.inference_mode(False)
    def select_mask(self, local_mask: Tensor) -> RowLayout:
        """Returns the layout of the rows that a mask selects, in the user's order. Collective.

        Masks that are equal on every rank give the same object.

        Args:
            local_mask: [local_count] bool on the group's device: this rank's rows of the mask.
        """
        if local_mask.shape != (self.local_count,) or local_mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be bool of shape ({self.local_count},) on this rank, "
                f"got {local_mask.dtype} of shape {tuple(local_mask.shape)}"
            )
        key = ("mask", *self.digests(local_mask))
        layout = self._by_content.get(key)
        if layout is None:
            rows = local_mask.nonzero().squeeze(1)
            layout = RowLayout(
                self.group,
                self.group.all_gather(rows.numel()),
                lambda: self._rank_of_rows(rows),
                parent=self,
                parent_rows=rows,
            )
            self._keep(key, layout)
        return layout

    @torch.inference_mode(False)
    def select_plain_mask(self, mask: Tensor) -> RowLayout:
        """Returns the layout of the rows that a mask of all rows selects. Collective.

        It is the object that :meth:`select_mask` returns for this rank's rows of the mask.

        Args:
            mask: [size] bool on any device, equal on all ranks.

        Raises:
            ValueError: the masks differ between ranks.
        """
        key = ("plain mask", self.check_equal(mask, "a plain mask"))
        layout = self._by_content.get(key)
        if layout is None:
            rows = self.positions.to(mask.device)
            layout = self.select_mask(mask[rows].to(self.group.device))
            self._keep(key, layout)
        return layout

    def select_ids(self, ids: Tensor) -> RowLayout:
        """Returns the layout of the rows `ids`, in their order; ids may repeat. Collective.

        Equal ids give the same object; all rows in the user's order give this layout.

        Args:
            ids: [k] integers, the user's rows, equal on all ranks; negative ones count from the
                end.

        Raises:
            ValueError: the ids differ between ranks.
            IndexError: an id is not one of -size..size - 1.
        """
        if ids.dim() != 1 or ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise ValueError(
                f"ids must be a list of integers, got {ids.dtype} of shape {tuple(ids.shape)}"
            )
        key = ("ids", self.check_equal(ids, "row ids"))
        layout = self._by_content.get(key)
        if layout is None:
            ids_on_cpu = ids.detach().to("cpu", torch.int64)
            if torch.equal(ids_on_cpu, torch.arange(self.size, device="cpu")):
                return self
            layout = self._make_selection(ids_on_cpu)
            self._keep(key, layout)
        return layout

    def select_range(self, rows: slice) -> RowLayout:
        """Returns the layout of a range of the user's rows; of all rows this layout.

        Of a selection by mask the first call is collective.

        Raises:
            ValueError: the step is not positive.
        """
        if rows.step is not None and rows.step <= 0:
            raise ValueError("step must be greater than zero")
        bounds = rows.indices(self.size)
        if bounds == (0, self.size, 1):
            return self
        key = ("range", *bounds)
        layout = self._by_content.get(key)
        if layout is None:
            start, stop, step = bounds
            ids = torch.arange(start, max(start, stop), step, device="cpu")
            layout = self._make_selection(ids)
            layout.bounds = bounds
            self._keep(key, layout)
        return layout

    def blocks(self, count: int) -> RowLayout:
        """Returns the layout of `count` rows of a plain table of ids, cut in blocks."""
        layout = self._by_content.get(("blocks", count))
        if layout is None:
            layout = RowLayout.contiguous(self.group, count)
            layout.by_ids = True
            self._keep(("blocks", count), layout)
        return layout

    def digests(self, local: Tensor) -> list[bytes]:
        """Returns the digest of each rank's plain tensor. Collective; synchronises a GPU."""
        with self.group.collective("selection of rows"):
            digests: list[bytes] = self.group.all_gather(current_digest(local))
        return digests

    def check_equal(self, tensor: Tensor, name: str) -> bytes:
        """Returns the digest of a plain tensor that is equal on all ranks. Collective.

        Raises:
            ValueError: the ranks have different ones; it names the tensor as `name`.
        """
        digests = self.digests(tensor)
        if any(digest != digests[0] for digest in digests):
            raise ValueError(
                f"{name} must be equal on all ranks, but they differ: draw them from the same seed"
            )
        return digests[0]

    def repeat(self, count: int) -> RowLayout:
        """Returns the layout in which each row becomes `count` consecutive rows."""
        if count == 1:
            return self
        if self.repeats > 1 and self.parent is not None:
            return self.parent.repeat(self.repeats * count)
        key = ("repeat", count)
        if key not in self._derived:

            def spread(rows: Tensor) -> Tensor:
                steps = torch.arange(count, device=rows.device)
                return (rows.unsqueeze(1) * count + steps).flatten()

            self._derived[key] = RowLayout(
                self.group,
                [rows * count for rows in self.counts],
                lambda: spread(self.positions),
                lambda: spread(self.internal_rows),
                parent=self,
                repeats=count,
            )
        return self._derived[key]

    def tile(self, count: int) -> RowLayout:
        """Returns the layout of `count` copies of the rows, one copy after the other."""
        if count == 1:
            return self
        key = ("tile", count)
        if key not in self._derived:

            def positions() -> Tensor:
                steps = torch.arange(count, device=self.group.device)
                return (steps.unsqueeze(1) * self.size + self.positions).flatten()

            self._derived[key] = RowLayout(
                self.group,
                [rows * count for rows in self.counts],
                positions,
                parent=self,
                tiles=count,
            )
        return self._derived[key]

    @property
    def base(self) -> RowLayout:
        """The layout that this one is made of by :meth:`repeat` and :meth:`tile`, or this one."""
        layout = self
        while layout.parent is not None and layout._parent_rows is None:
            layout = layout.parent
        return layout

    def rebased(self, other: RowLayout) -> RowLayout:
        """Returns the layout that is made of `other` as this one is made of :attr:`base`."""
        if self.parent is None or self._parent_rows is not None:
            return other
        parent = self.parent.rebased(other)
        return parent.repeat(self.repeats) if self.repeats > 1 else parent.tile(self.tiles)

    def concatenate(self, other: RowLayout) -> RowLayout:
        """Returns the layout of these rows and then those of `other`, without communication."""
        first, second = self.parts or (self,), other.parts or (other,)
        result = self._concatenated
        if result is None or result.parts != (*first, *second):
            result = RowLayout(
                self.group,
                [a + b for a, b in zip(self.counts, other.counts, strict=True)],
                lambda: torch.cat([self.positions, other.positions + self.size]),
                parts=(*first, *second),
                by_ids=self.by_ids or other.by_ids,
            )
            self._concatenated = result
        return result

    def same_rows(self, other: RowLayout) -> bool:
        """Whether each rank holds the same of the user's rows in the same order.

        Collective where the layouts are two objects with equal counts that were never compared.
        """
        if other is self:
            return True
        if other.counts != self.counts:
            return False
        same = self._compared.get(other)
        if same is None:
            equal = torch.equal(self.positions, other.positions)
            same = all(self.group.all_gather(equal))
            self._compared[other] = other._compared[self] = same
        return same

    def __repr__(self) -> str:
        return f"RowLayout(size={self.size}, counts={self.counts}, rank={self.group.rank})"

    def _keep(self, key: object, layout: RowLayout) -> None:
        """Keeps a selection, and of the older ones no more than twice this layout's rows.

        All ranks keep the same: they would wait for each other where one has it and another not.
        """
        self._by_content[key] = layout
        rows = sum(selection.size for selection in self._by_content.values())
        for old in list(self._by_content)[:-_MIN_KEPT]:
            if rows <= 2 * self.size and len(self._by_content) <= _MAX_KEPT:
                break
            rows -= self._by_content.pop(old).size

    @torch.inference_mode(False)
    def _make_selection(self, ids: Tensor) -> RowLayout:
        owner, local_rows = self.locate(ids)
        chosen = (owner == self.group.rank).nonzero().squeeze(1)

        def internal_rows() -> Tensor:
            result = torch.empty_like(owner)
            result[torch.argsort(owner, stable=True)] = torch.arange(len(owner), device="cpu")
            return result

        return RowLayout(
            self.group,
            torch.bincount(owner, minlength=self.group.world_size).tolist(),
            chosen.to(self.group.device),
            internal_rows,
            parent=self,
            parent_rows=local_rows[chosen].to(self.group.device),
            by_ids=True,
            unique=ids.numel() < 2 or int(torch.bincount(ids % max(self.size, 1)).max()) == 1,
        )

    def _rank_of_rows(self, rows: Tensor) -> Tensor:
        """The place of this rank's local `rows` among all ranks' ones, in the user's order."""
        mine = self.positions[rows]
        others = self.group.all_gather(mine.cpu())
        return torch.searchsorted(torch.cat(others).sort().values.to(mine.device), mine)

    def _gather_internal_rows(self) -> Tensor:
        order = torch.cat(self.group.all_gather(self.positions.cpu()))
        result = torch.empty_like(order)
        result[order] = torch.arange(self.size, device="cpu")
        return result
