"""What a run of the demo found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Epoch:
    """One epoch of GraphSAGE: mean loss, validation accuracy, seconds (mean over ranks)."""

    loss: float
    val_accuracy: float
    seconds: float
    sampling: float
    gathering: float
    training: float


@dataclass
class DemoResult:
    """Accuracies are shares of all nodes of a split; `to_dict` is what `--json` writes."""

    graph: str
    num_nodes: int
    num_edges: int
    num_classes: int
    device: str
    ranks: int
    plan: dict[str, Any]
    epochs: list[Epoch] = field(default_factory=list)
    val_accuracy: float = 0.0
    test_accuracy: float = 0.0
    mlp_val_accuracy: float = 0.0
    mlp_test_accuracy: float = 0.0
    measured: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain values."""
        return asdict(self)
