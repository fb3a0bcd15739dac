"""The cache of dry runs: functions of rows run on few rows once, and not again in each epoch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor

from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap

_MOST_DRY_RUNS = 1024


class DryRun(NamedTuple):
    """The result of a function that has run on few rows."""

    probe: PartitionedTensor
    """The result, without autograd's history."""
    needs_grad: bool
    is_leaf: bool
    is_operand: int | None
    """The operand that the function returns; None: it returns a new tensor."""
    aliases: tuple[int, ...]
    """The operands whose memory the result shares."""


def cache_dry_run(dry_runs: dict[Hashable, DryRun], key: Hashable, dry_run: DryRun) -> None:
    """Adds a dry run to the cache, unless its result has integers: they may be ids."""
    if not dry_run.probe._local.is_floating_point():
        return
    if len(dry_runs) >= _MOST_DRY_RUNS:
        dry_runs.clear()
    dry_runs[key] = dry_run


def share_memory(probe: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors of few rows have one storage."""
    assert isinstance(probe, PartitionedTensor) and isinstance(other, PartitionedTensor)
    own, others = (x._local.untyped_storage()._cdata for x in (probe, other))
    return bool(own == others)


def separate_probes(probes: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Returns the probes of some operands. Only those of views of one tensor share memory.

    Results of the same cached dry run have one probe. A function that changes one of them, or
    returns a view of it, must not seem to do so with the others.

    Args:
        probes: of the operands.
        tensors: the operands.
    """
    separate: list[Tensor] = []
    for place, (probe, tensor) in enumerate(zip(probes, tensors, strict=True)):
        if isinstance(tensor, OffloadedTensor) and any(
            isinstance(other, OffloadedTensor)
            and share_memory(probe, separate[earlier])
            and not _are_views(tensor, other)
            for earlier, other in enumerate(tensors[:place])
        ):
            assert isinstance(probe, PartitionedTensor)
            copied = wrap(probe._local.detach().clone(), probe.row_layout, probe.partitioned_dim)
            probe = copied.requires_grad_(probe.requires_grad)
        separate.append(probe)
    return separate


def _are_views(tensor: OffloadedTensor, other: OffloadedTensor) -> bool:
    """Returns whether one of two tensors is a view of the other, or both are views of a third."""
    aliases = tensor._cell.aliases
    return bool(aliases) and aliases is other._cell.aliases
