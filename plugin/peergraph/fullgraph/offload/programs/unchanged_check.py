"""Whether tensors on the device still have the rows that they had when a function was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from peergraph.fullgraph.layout.digest import HostCopy, content_digest
from peergraph.fullgraph.offload.programs.record import ResidentOperand


class UnchangedCheck:
    """Compares the digests of tensors on the device with those of their records.

    On a GPU the comparison is queued, and a pass after it, before the host waits in :meth:`wait`.

    Args:
        operands: of a pass; those that are no tensors on the device are ignored.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        checked = {
            id(operand.digest): (operand.tensor._local, operand.digest)
            for operand in operands
            if isinstance(operand, ResidentOperand) and operand.digest is not None
        }
        self._changed: HostCopy | None = None
        if checked:
            now = torch.stack([content_digest(local) for local, _ in checked.values()])
            recorded = torch.stack([digest for _, digest in checked.values()])
            self._changed = HostCopy((now != recorded).any())

    def wait(self) -> None:
        """Raises RuntimeError if a tensor was changed in place since its record."""
        if self._changed is not None and bool(self._changed.wait()):
            raise RuntimeError(
                "a partitioned tensor was changed in place before the rows that were recorded "
                "with it were computed: change a copy, tensor.clone()"
            )
