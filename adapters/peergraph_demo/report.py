"""The demo's last words."""

from __future__ import annotations

from peergraph_demo.clock import PHASES
from peergraph_demo.result import DemoResult

_SHOWN_EPOCHS = 3


def summary(result: DemoResult) -> str:
    """Tables: accuracy with and without the graph, where the time went, and if asked for, reads."""
    where = "GPUs" if result.device == "cuda" else "CPU ranks"
    lines = [
        "",
        f"{result.graph}: {result.num_nodes:,} nodes, {result.num_edges:,} edges, "
        f"{result.num_classes} classes, on {result.ranks} {where}",
        "",
        f"{'accuracy':<16}{'validation':>12}{'test':>12}",
        _row("GraphSAGE", result.val_accuracy, result.test_accuracy),
        _row("MLP, no graph", result.mlp_val_accuracy, result.mlp_test_accuracy),
        "",
        f"{'seconds':<16}{'epoch':>12}" + "".join(f"{name:>12}" for name in PHASES),
    ]
    shown = list(enumerate(result.epochs, start=1))[-_SHOWN_EPOCHS:]
    for number, epoch in shown:
        phases = "".join(f"{getattr(epoch, name):>12.2f}" for name in PHASES)
        lines.append(f"{f'epoch {number}':<16}{epoch.seconds:>12.2f}{phases}")
    if result.device == "cuda":
        lines.append(
            "The last epoch waits for the GPU at every phase, to measure it; in the others the "
            "phases overlap and only the epoch's time counts."
        )
    if result.measured is not None:
        lines += ["", result.measured]
    return "\n".join(lines)


def _row(name: str, val: float, test: float) -> str:
    return f"{name:<16}{val:>12.4f}{test:>12.4f}"
