"""What a plan may use, and what the user asks for."""

from __future__ import annotations

from dataclasses import dataclass

from peergraph.fullgraph.exchange.mode_cost import MODES
from peergraph.fullgraph.layout.duplication import MAX_CHUNKS
from peergraph.number_arguments import check_number


@dataclass(frozen=True)
class PlanLimits:
    """What a :class:`FullGraphPlan` may use, and what the user asks for.

    Args:
        memory_budget: bytes of each rank's device; None: no limit.
        mode: how rows are exchanged; None: the quickest mode that fits into the budget.
        modes: that the ranks can use.
        offload: whether rows are kept in host memory (HongTu); None: where all rows do not fit into
            the budget.
        num_chunks: of each rank, for offloaded training; None: the number that moves least.
        host_memory, file_memory: bytes of the host and of files, for all ranks together; None: the
            topology's.
        hidden_bytes: bytes of an element of rows that offloaded training stores; None: as layers
            compute them.

    Raises:
        ValueError: an unknown mode, a number out of range, or what is for offloaded training with
            ``offload=False``.
    """

    memory_budget: int | None = None
    mode: str | None = None
    modes: tuple[str, ...] = MODES
    offload: bool | None = None
    num_chunks: int | None = None
    host_memory: int | None = None
    file_memory: int = 0
    hidden_bytes: int | None = None

    def __post_init__(self) -> None:
        check_number("memory_budget", self.memory_budget, 0)
        check_number("num_chunks", self.num_chunks, 1, MAX_CHUNKS)
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.offload is False:
            if self.num_chunks is not None:
                raise ValueError(
                    f"num_chunks is for offloaded training, got {self.num_chunks} and offload=False"
                )
            if self.hidden_bytes is not None:
                raise ValueError(
                    "a dtype of stored rows is for offloaded training, got offload=False"
                )
