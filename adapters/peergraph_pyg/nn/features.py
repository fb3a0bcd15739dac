"""Features that users pass to layers: of sources and destinations, plain or lazy."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from peergraph.fullgraph import PartitionedTensor
from peergraph.integration import note, require
from peergraph.memory import TableRows

from ..data.lazy_features import LazyRows, gathered, is_plain, rows_or_tensor


class Ends(NamedTuple):
    """Features of the sources and destinations of edges; `x_dst` is None without destinations'."""

    x_src: Tensor
    x_dst: Tensor | None

    @property
    def distinct(self) -> tuple[Tensor, ...]:
        """The features that there are, each once."""
        if self.x_dst is None or self.x_dst is self.x_src:
            return (self.x_src,)
        return self.x_src, self.x_dst


def ends_of(x: Any) -> Ends:
    """Returns features of sources and destinations, given a pair or one tensor of sources."""
    pair = tuple(x) if isinstance(x, (tuple, list)) else (x, None)
    require(len(pair) == 2 and pair[0] is not None, f"x is {kind_of(x)}")
    return Ends(*pair)


def is_rows(value: Any) -> bool:
    """Returns whether `value` is a plain tensor, or one whose first dimension is partitioned."""
    return is_plain(value) or is_partitioned(value)


def is_partitioned(value: Any) -> bool:
    """Returns whether `value` is a tensor whose first dimension is partitioned over the ranks."""
    return isinstance(value, PartitionedTensor) and value.partitioned_dim == 0


def first_rows(x: Tensor, count: int) -> Tensor:
    """Returns the first rows of `x`, marked so that :func:`are_first_rows` knows them."""
    # The first operation that torch passes on to a subclass takes longer than a launch.
    rows: Tensor
    if isinstance(x, LazyRows) and not x.requires_grad:
        rows = x.first(count)
    else:
        rows = x.narrow(0, 0, count)
    rows.peergraph_first_of = x  # type: ignore[attr-defined]
    return rows


def are_first_rows(rows: Tensor | None, x: Tensor) -> bool:
    """Returns whether `rows` are the first rows of `x`, and their gradient goes to `x` alone.

    Slices that users made do not count: users may ask for their gradients.
    """
    if type(x) is not Tensor and not isinstance(x, PartitionedTensor):
        return False
    return _is_marked(rows, x)


def _is_marked(rows: Tensor | None, x: Tensor) -> bool:
    """Returns whether `rows` are `x`, or the result of :func:`first_rows` of `x`."""
    return rows is x or getattr(rows, "peergraph_first_of", None) is x


def kind_of(value: Any) -> str:
    """Returns the type of a value in words."""
    if type(value) is Tensor:
        return f"{value.dtype} {value.layout} tensor".replace("torch.", "")
    return type(value).__name__


def table_rows_or_tensor(x: Tensor, num_reads: int) -> Tensor | TableRows:
    """Returns rows of a table where it pays to read them in place, else a tensor.

    Args:
        x: features, perhaps lazy.
        num_reads: rows that the kernel reads, repeated ones included.
    """
    rows = rows_or_tensor(x, num_reads)
    if isinstance(rows, TableRows):
        note("features: read from the table, not gathered")
    return rows


def self_rows(x: Ends) -> Tensor | None:
    """Returns features of destinations; None if there are none or they are the first rows."""
    if x.x_dst is None or are_first_rows(x.x_dst, x.x_src):
        return None
    if type(x.x_src) is LazyRows and _is_marked(x.x_dst, x.x_src):
        return None
    return gathered(x.x_dst)


def weighted_operands(kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
    """Returns features and weights of edges, which PyG takes as [edges] or as [edges, 1]."""
    x, weight = ends_of(kwargs["x"]), kwargs["edge_weight"]
    if weight is None:
        return x, None
    fits = is_rows(weight) and x.x_src.dim() == 2
    require(fits, "there are weights and more than features")
    return x, weight.reshape(-1)
