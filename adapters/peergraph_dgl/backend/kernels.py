"""DGL's message passing on Peergraph's kernels, with DGL's operator names and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.aggregate import Csc

from .edge_list import Edges
from .joint_gradients import join_gradients
from .materialize import materialize

Feature = Tensor | None
TypedEdges = tuple[int, int, Edges]
"""Source node type, destination node type, edges."""

# The value of a maximum or minimum over no edges, as DGL's kernels return it.
_EMPTY_VALUE = {"max": -torch.inf, "min": torch.inf}


def spmm(edges: Edges, op: str, reduce: str, lhs: Feature, rhs: Feature) -> Tensor:
    """Computes messages on the edges of one relation and reduces them at the destinations.

    Args:
        edges: the relation.
        op: ``copy_lhs``, ``copy_rhs``, ``add``, ``sub``, ``mul`` or ``div``.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        lhs: [sources, *features]; rhs: [edges, *features]. Features broadcast as in NumPy.

    Returns:
        [destinations, *features]. Destinations without edges get 0 for ``sum`` and ``mean``, and an
        infinity for ``max`` and ``min``, which DGL's callers replace by 0 after they merged the
        relations. All values are 0 if there are no edges.
    """
    out = spmm_zero_filled(edges, op, reduce, lhs, rhs)
    if reduce not in _EMPTY_VALUE or not edges.num_edges:
        return out
    return edges.fill_empty_rows(out, _EMPTY_VALUE[reduce])


def spmm_zero_filled(edges: Edges, op: str, reduce: str, lhs: Feature, rhs: Feature) -> Tensor:
    """Does the same as :func:`spmm`, with 0 for all destinations without edges."""
    csc = edges.csc()
    if op == "copy_lhs":
        return csc.spmm("copy_u", reduce, _operand(op, lhs))
    if op == "copy_rhs":
        return csc.spmm("copy_e", reduce, e=_operand(op, rhs))
    x, e = _aligned(_operand(op, lhs), _operand(op, rhs))
    return csc.spmm(op, reduce, x, e)


def sddmm(
    edges: Edges, op: str, lhs: Feature, rhs: Feature, lhs_target: str, rhs_target: str
) -> Tensor:
    """Computes a value for each edge of one relation.

    Args:
        edges: the relation.
        op: ``copy_lhs``, ``copy_rhs``, ``add``, ``sub``, ``mul``, ``div`` or ``dot``.
        lhs, rhs: features of the targets.
        lhs_target, rhs_target: ``u`` (sources), ``v`` (destinations) or ``e`` (edges).

    Returns:
        [edges, *features]; the last dimension of a ``dot`` has size 1.
    """
    csc = edges.csc()
    if op == "copy_lhs":
        return csc.sddmm("copy", _operand(op, lhs), lhs_target=lhs_target)
    if op == "copy_rhs":
        return csc.sddmm("copy", _operand(op, rhs), lhs_target=rhs_target)
    left, right = _same_rank(_operand(op, lhs), _operand(op, rhs))
    if op != "dot":
        return csc.sddmm(op, left, right, lhs_target, rhs_target)
    scalar = left.dim() == 1
    if scalar:
        left, right = left.unsqueeze(-1), right.unsqueeze(-1)
    if left.shape[-1] != right.shape[-1]:
        raise ValueError(f"dot: the last dimensions differ, {left.shape[-1]} and {right.shape[-1]}")
    out = csc.sddmm("dot", left, right, lhs_target, rhs_target)
    return out if scalar else out.unsqueeze(-1)


def sddmm_by_type(
    relations: Sequence[TypedEdges],
    op: str,
    lhs: Sequence[Feature] | None,
    rhs: Sequence[Feature] | None,
    lhs_target: str,
    rhs_target: str,
) -> tuple[Tensor, ...]:
    """Does the same as :func:`sddmm`, for each of several relations.

    Args:
        relations: edges with the types of their ends.
        lhs, rhs: features by node type, or by relation for edges.
    """
    left, right = lhs or (), rhs or ()
    inputs = join_gradients([*left, *right])
    left, right = inputs[: len(left)], inputs[len(left) :]
    result = []
    for etype, (source, destination, edges) in enumerate(relations):
        position = {"u": source, "v": destination, "e": etype}
        x = left[position[lhs_target]] if left else None
        y = right[position[rhs_target]] if right else None
        result.append(sddmm(edges, op, x, y, lhs_target, rhs_target))
    return tuple(result)


def softmax(edges: Edges, scores: Tensor, edge_ids: Tensor | None, norm_by: str) -> Tensor:
    """Softmax of edge scores over the edges of each destination, or of each source.

    Args:
        edges: the relation.
        scores: [edges, *heads].
        edge_ids: the edges that have a score; None: all.
        norm_by: ``dst`` or ``src``.
    """
    _check_norm_by(norm_by)
    if edge_ids is not None:
        edges = edges.select(edge_ids)
    if norm_by == "src":
        edges = edges.reverse()
    return edges.csc().edge_softmax(materialize(scores))


def spmm_by_type(
    relations: Sequence[TypedEdges],
    op: str,
    reduce: str,
    lhs: Sequence[Feature],
    rhs: Sequence[Feature],
) -> tuple[Feature, ...]:
    """Does the same as :func:`spmm`, reduced at the destinations over the edges of several
    relations.

    Args:
        relations: edges with the types of their ends.
        lhs: features by node type; rhs: features by relation.

    Returns:
        Results by node type; None for types that are no destination.
    """
    if reduce == "mean":
        raise NotImplementedError("reduce 'mean' over several relations at once")
    inputs = join_gradients([*lhs, *rhs])
    lhs, rhs = inputs[: len(lhs)], inputs[len(lhs) :]
    parts: dict[int, list[Tensor]] = {}
    empty: dict[int, Tensor] = {}
    for etype, (source, destination, edges) in enumerate(relations):
        out = spmm(edges, op, reduce, lhs[source], rhs[etype])
        if edges.num_edges or reduce == "sum":
            parts.setdefault(destination, []).append(out)
        else:  # A relation without edges must not take part in a maximum or minimum.
            empty[destination] = out
    parts.update({ntype: [out] for ntype, out in empty.items() if ntype not in parts})
    return tuple(
        _merge(reduce, parts[ntype]) if ntype in parts else None for ntype in range(len(lhs))
    )


def softmax_by_type(
    relations: Sequence[TypedEdges], scores: Sequence[Feature], norm_by: str
) -> tuple[Feature, ...]:
    """Does the same as :func:`softmax`, at each node over the edges of several relations.

    Args:
        relations: edges with the types of their ends.
        scores: [edges, *heads] by relation.
        norm_by: ``dst`` or ``src``.
    """
    _check_norm_by(norm_by)
    scores = join_gradients(scores)
    groups: dict[int, list[int]] = {}
    for etype, (source, destination, _) in enumerate(relations):
        groups.setdefault(destination if norm_by == "dst" else source, []).append(etype)
    result: list[Feature] = [None] * len(relations)
    for etypes in groups.values():
        edges = [relations[etype][2] for etype in etypes]
        if norm_by == "src":
            edges = [part.reverse() for part in edges]
        parts = [_operand("edge_softmax", scores[etype]) for etype in etypes]
        weights = edges[0].softmax_with(edges[1:], parts)
        for etype, part in zip(etypes, weights, strict=True):
            result[etype] = part
    return tuple(result)


def segment_reduce(op: str, values: Tensor, offsets: Tensor) -> Tensor:
    """Sum, maximum or minimum of each segment of consecutive rows; 0 for empty segments.

    Args:
        op: ``sum``, ``max`` or ``min``.
        values: [rows, *features].
        offsets: [segments + 1] int32 or int64, from 0 to the number of rows; verified on the CPU
            only.
    """
    # The kernel copies edge features, so any source node will do.
    sources = torch.zeros(values.shape[0], dtype=torch.int64, device=values.device)
    csc = Csc(offsets, sources, 1, check=values.device.type == "cpu")
    return csc.spmm("copy_e", op, e=materialize(values))


def segment_mm(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """Multiplies each segment of consecutive rows of `a` by its matrix of `b`.

    Args:
        a: [rows, k].
        b: [segments, k, n].
        lengths: [segments] number of rows of each; on a GPU, reading them synchronises.
    """
    if b.dim() != 3:
        raise ValueError(f"b: expected three dimensions, got {list(b.shape)}")
    segments = a.split(lengths.tolist())  # type: ignore[no-untyped-call]
    return torch.cat([rows @ matrix for rows, matrix in zip(segments, b, strict=True)])


def gather_mm(a: Tensor, b: Tensor, idx_a: Feature = None, idx_b: Feature = None) -> Tensor:
    """Multiplies each row by a matrix: ``a[idx_a[i]] @ b[idx_b[i]]``.

    Args:
        a: [rows, k].
        b: [matrices, k, n].
        idx_a, idx_b: rows and matrices; None: all in order.
    """
    if b.dim() != 3:
        raise ValueError(f"b: expected three dimensions, got {list(b.shape)}")
    rows = a if idx_a is None else a[idx_a.long()]
    matrices = b if idx_b is None else b[idx_b.long()]
    return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)


def _merge(reduce: str, parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    values = torch.stack(parts)
    if reduce == "sum":
        return values.sum(0)
    return values.amax(0) if reduce == "max" else values.amin(0)


def _check_norm_by(norm_by: str) -> None:
    if norm_by not in ("dst", "src"):
        raise ValueError(f"norm_by: expected 'dst' or 'src', got {norm_by!r}")


def _operand(op: str, feature: Feature) -> Tensor:
    if feature is None:
        raise ValueError(f"op {op!r}: an operand is missing")
    return materialize(feature)


def _same_rank(lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    if lhs.dim() == rhs.dim():
        return lhs, rhs
    rank = max(lhs.dim(), rhs.dim())
    left, right = (
        tensor.reshape(tensor.shape[0], *[1] * (rank - tensor.dim()), *tensor.shape[1:])
        for tensor in (lhs, rhs)
    )
    return left, right


def _aligned(lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """Expands operands to what the kernels broadcast: edge features by leading dimensions only."""
    x, e = _same_rank(lhs, rhs)
    if x.shape[1:] == e.shape[1:]:
        return x, e
    try:
        features = torch.broadcast_shapes(x.shape[1:], e.shape[1:])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"features do not broadcast: {list(lhs.shape[1:])} and {list(rhs.shape[1:])}"
        ) from None
    narrow = tuple(e.shape[1:])
    while narrow and narrow[-1] == 1:
        narrow = narrow[:-1]
    if narrow != tuple(features[: len(narrow)]):
        e = e.expand(-1, *features)
    return x if x.shape[1:] == features else x.expand(-1, *features), e
