"""Whether tensors on the device still have the rows that they had when a function was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peergraph.fullgraph.layout.content_digest import PendingDigest
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.offload.programs.record import ResidentOperand


class UnchangedCheck:
    """Compares the digests of tensors on the device with those of their records.

    A GPU computes the digests, and a pass that is queued after them, before the host waits for them
    in :func:`require_unchanged`.

    Args:
        operands: of a pass; those that are no tensors on the device are ignored.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        recorded = {
            id(operand.digest): (operand.digest, operand.tensor._local)
            for operand in operands
            if isinstance(operand, ResidentOperand) and operand.digest is not None
        }
        self._digests = [(digest, PendingDigest(local)) for digest, local in recorded.values()]

    def is_changed(self) -> bool:
        """Returns whether a tensor of this rank was changed in place since its record."""
        return any(recorded.value() != now.value() for recorded, now in self._digests)

    @property
    def has_tensors(self) -> bool:
        """Whether there is anything to compare; the same on all ranks."""
        return bool(self._digests)


def require_unchanged(checks: Sequence[UnchangedCheck], group: Ranks) -> None:
    """Raises RuntimeError on all ranks if a tensor of one was changed in place since its record.

    Collective where there are tensors to compare.
    """
    checks = [check for check in checks if check.has_tensors]
    if not checks:
        return
    refuse_changed(any(check.is_changed() for check in checks), group)


def refuse_changed(is_changed: bool, group: Ranks) -> None:
    """Raises RuntimeError on all ranks if `is_changed` on one. Collective."""
    if group.world_size > 1:
        with group.collective("comparison of what a pass over offloaded rows reads"):
            is_changed = any(group.all_gather(is_changed))
    if is_changed:
        raise RuntimeError(
            "a tensor was changed in place before the rows or gradients of an offloaded graph that "
            "were recorded with it were computed: change a copy, tensor.clone()"
        )
