"""DGL's message passing by Peergraph's kernels, with DGL's meaning of names and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.aggregate import Csc, edge_softmax, g_sddmm, g_spmm
from peergraph.store import StoreTensor

from .edge_list import Relation
from .materialize import whole
from .one_function import as_inputs_of_one

Feature = Tensor | None

# What an extremum starts from.
_WORST = {"max": -torch.inf, "min": torch.inf}


def spmm(relation: Relation, op: str, reduce: str, lhs: Feature, rhs: Feature) -> Tensor:
    """Messages of the edges of one relation, reduced at their destinations.

    Args:
        relation: the edges.
        op: ``copy_lhs``, ``copy_rhs``, ``add``, ``sub``, ``mul`` or ``div``.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        lhs: [sources, *features]; rhs: [edges, *features]. Features broadcast as numpy's do.

    Returns:
        [destinations, *features]: without edges 0, or an infinity for ``max`` and ``min``, for
        which DGL's callers write 0 once they have put relations together. A graph without any
        edges has 0 throughout.
    """
    out = reduced(relation, op, reduce, lhs, rhs)
    if reduce not in _WORST or not relation.num_edges:
        return out
    if out.device.type != "cpu":  # The number of rows would have to be waited for.
        return out.masked_fill(_like_rows(relation.in_degrees() == 0, out), _WORST[reduce])
    empty = relation.empty_rows()
    return out.index_fill_(0, empty, _WORST[reduce]) if empty.numel() else out


def reduced(relation: Relation, op: str, reduce: str, lhs: Feature, rhs: Feature) -> Tensor:
    """As :func:`spmm`, but 0 for all destinations without edges."""
    csc = relation.structure()
    if op == "copy_lhs":
        return g_spmm(csc, "copy_u", reduce, _only(op, lhs))
    if op == "copy_rhs":
        return g_spmm(csc, "copy_e", reduce, e=_only(op, rhs))
    x, e = _aligned(_only(op, lhs), _only(op, rhs))
    return g_spmm(csc, op, reduce, x, e)


def sddmm(
    relation: Relation, op: str, lhs: Feature, rhs: Feature, lhs_target: str, rhs_target: str
) -> Tensor:
    """A value for each edge of one relation; ``dot`` keeps its last dimension, of one item.

    Args:
        relation: the edges.
        op: ``copy_lhs``, ``copy_rhs``, ``add``, ``sub``, ``mul``, ``div`` or ``dot``.
        lhs, rhs: features of what the targets say: ``u``, ``v`` or ``e``.
    """
    csc = relation.structure()
    if op == "copy_lhs":
        return g_sddmm(csc, "copy", _only(op, lhs), lhs_target=lhs_target)
    if op == "copy_rhs":
        return g_sddmm(csc, "copy", _only(op, rhs), lhs_target=rhs_target)
    left, right = _same_rank(_only(op, lhs), _only(op, rhs))
    if op != "dot":
        return g_sddmm(csc, op, left, right, lhs_target, rhs_target)
    scalar = left.dim() == 1
    if scalar:
        left, right = left.unsqueeze(-1), right.unsqueeze(-1)
    if left.shape[-1] != right.shape[-1]:
        raise ValueError(f"dot: the last dimensions differ, {left.shape[-1]} and {right.shape[-1]}")
    out = g_sddmm(csc, "dot", left, right, lhs_target, rhs_target)
    return out if scalar else out.unsqueeze(-1)


def sddmm_of_types(
    relations: Sequence[tuple[int, int, Relation]],
    op: str,
    lhs: Sequence[Feature] | None,
    rhs: Sequence[Feature] | None,
    lhs_target: str,
    rhs_target: str,
) -> tuple[Tensor, ...]:
    """As :func:`sddmm`, for each of several relations.

    Args:
        relations: with the types of their ends.
        lhs, rhs: features by node type or, of edges, by relation.
    """
    left, right = lhs or (), rhs or ()
    inputs = as_inputs_of_one([*left, *right])
    left, right = inputs[: len(left)], inputs[len(left) :]
    result = []
    for etype, (source, destination, relation) in enumerate(relations):
        at = {"u": source, "v": destination, "e": etype}
        x = left[at[lhs_target]] if left else None
        y = right[at[rhs_target]] if right else None
        result.append(sddmm(relation, op, x, y, lhs_target, rhs_target))
    return tuple(result)


def softmax(relation: Relation, scores: Tensor, edges: Tensor | None, norm_by: str) -> Tensor:
    """Softmax of edge scores over the edges at each destination, or at each source.

    Args:
        relation: the edges.
        scores: [edges, *heads].
        edges: ids of the edges that there are scores for; None: all.
        norm_by: ``dst`` or ``src``.
    """
    if norm_by not in ("dst", "src"):
        raise ValueError(f"norm_by: expected 'dst' or 'src', got {norm_by!r}")
    if edges is not None:
        at = edges.long()
        relation = Relation(relation.num_src, relation.num_dst, relation.src[at], relation.dst[at])
    if norm_by == "src":
        relation = relation.reverse()
    return edge_softmax(relation.structure(), _in_memory(scores))


def spmm_of_types(
    relations: Sequence[tuple[int, int, Relation]],
    op: str,
    reduce: str,
    lhs: Sequence[Feature],
    rhs: Sequence[Feature],
) -> tuple[Feature, ...]:
    """As :func:`spmm` over several relations, reduced at destinations over all of them.

    Args:
        relations: with the types of their ends.
        lhs: features by node type; rhs: features by relation.

    Returns:
        By node type; None where there is no destination.
    """
    if reduce == "mean":
        raise NotImplementedError("reduce 'mean' over several relations at once")
    inputs = as_inputs_of_one([*lhs, *rhs])
    lhs, rhs = inputs[: len(lhs)], inputs[len(lhs) :]
    parts: dict[int, list[Tensor]] = {}
    empty: dict[int, Tensor] = {}
    for etype, (source, destination, relation) in enumerate(relations):
        out = spmm(relation, op, reduce, lhs[source], rhs[etype])
        if relation.num_edges or reduce == "sum":
            parts.setdefault(destination, []).append(out)
        else:  # It has no say in an extremum.
            empty[destination] = out
    parts.update({ntype: [out] for ntype, out in empty.items() if ntype not in parts})
    return tuple(
        _merged(reduce, parts[ntype]) if ntype in parts else None for ntype in range(len(lhs))
    )


def softmax_of_types(
    relations: Sequence[tuple[int, int, Relation]], scores: Sequence[Feature], norm_by: str
) -> tuple[Feature, ...]:
    """As :func:`softmax` over several relations: at each node over the edges of all of them.

    Args:
        relations: with the types of their ends.
        scores: by relation, [edges, *heads].
        norm_by: ``dst`` or ``src``.
    """
    if norm_by not in ("dst", "src"):
        raise ValueError(f"norm_by: expected 'dst' or 'src', got {norm_by!r}")
    scores = as_inputs_of_one(scores)
    groups: dict[int, list[int]] = {}
    for etype, (source, destination, _) in enumerate(relations):
        groups.setdefault(destination if norm_by == "dst" else source, []).append(etype)
    result: list[Feature] = [None] * len(relations)
    for etypes in groups.values():
        edges = [relations[etype][2] for etype in etypes]
        ends = [r.dst if norm_by == "dst" else r.src for r in edges]
        num_ends = edges[0].num_dst if norm_by == "dst" else edges[0].num_src
        # The kernel reads scores of edges only, so what the sources are does not matter.
        end = torch.cat(ends)
        joined = Relation(1, num_ends, torch.zeros_like(end), end)
        given = [_only("edge_softmax", scores[etype]) for etype in etypes]
        weights = edge_softmax(joined.structure(), torch.cat(given))
        parts = weights.split([r.num_edges for r in edges])  # type: ignore[no-untyped-call]
        for etype, part in zip(etypes, parts, strict=True):
            result[etype] = part
    return tuple(result)


def segment_reduce(op: str, values: Tensor, offsets: Tensor) -> Tensor:
    """Sums, maxima or minima of runs of rows.

    Args:
        op: ``sum``, ``max`` or ``min``; 0 for empty runs.
        values: [rows, *features].
        offsets: [runs + 1] int32 or int64, from 0 to the rows; verified on the CPU only.
    """
    # The kernels copy from edges, so what the sources are does not matter.
    sources = torch.zeros(values.shape[0], dtype=torch.int64, device=values.device)
    near = values.device.type == "cpu"
    return g_spmm(Csc(offsets, sources, 1, check=near), "copy_e", op, e=_in_memory(values))


def segment_mm(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """Runs of rows of `a`, each times a matrix of its own.

    Args:
        a: [rows, k]; b: [runs, k, n]; lengths: [runs], on the CPU unless that costs a wait.
    """
    if b.dim() != 3:
        raise ValueError(f"b: expected three dimensions, got {list(b.shape)}")
    runs = a.split(lengths.tolist())  # type: ignore[no-untyped-call]
    return torch.cat([run @ matrix for run, matrix in zip(runs, b, strict=True)])


def gather_mm(a: Tensor, b: Tensor, idx_a: Feature = None, idx_b: Feature = None) -> Tensor:
    """Rows of `a`, each times one of the matrices `b`: ``a[idx_a[i]] @ b[idx_b[i]]``.

    Args:
        a: [rows, k]; b: [matrices, k, n]; idx_a, idx_b: which; None: in order.
    """
    if b.dim() != 3:
        raise ValueError(f"b: expected three dimensions, got {list(b.shape)}")
    rows = a if idx_a is None else a[idx_a.long()]
    matrices = b if idx_b is None else b[idx_b.long()]
    return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)


def _merged(reduce: str, parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    values = torch.stack(parts)
    if reduce == "sum":
        return values.sum(0)
    return values.amax(0) if reduce == "max" else values.amin(0)


def _like_rows(flags: Tensor, values: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (values.dim() - 1))


def _only(op: str, feature: Feature) -> Tensor:
    if feature is None:
        raise ValueError(f"op {op!r}: an operand is missing")
    return _in_memory(feature)


def _in_memory(values: Tensor) -> Tensor:
    """What a kernel can take the address of: a column of a shared graph is read."""
    return whole(values) if isinstance(values, StoreTensor) else values


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
    """Operands whose rows broadcast as the kernels let those of edges: by leading dimensions."""
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
