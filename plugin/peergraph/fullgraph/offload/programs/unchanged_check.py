"""Whether tensors on the device still have the rows that they had when a function was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peergraph.fullgraph.layout.content_digest import PendingDigest
from peergraph.fullgraph.offload.programs.record import ResidentOperand


class UnchangedCheck:
    """Compares the digests of tensors on the device with those of their records.

    A GPU computes the digests, and a pass that is queued after them, before the host waits for them
    in :meth:`wait`.

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

    def wait(self) -> None:
        """Raises RuntimeError if a tensor was changed in place since its record."""
        if any(recorded.value() != now.value() for recorded, now in self._digests):
            raise RuntimeError(
                "a partitioned tensor was changed in place before the rows that were recorded "
                "with it were computed: change a copy, tensor.clone()"
            )
