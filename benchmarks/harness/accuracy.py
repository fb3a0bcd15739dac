"""What the scripts of docs/benchmarks/accuracy.md share: options, the best epoch, and tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from harness.markdown import filled, table


def parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options of trainings that are evaluated every few epochs."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--seeds", type=int, default=5)
    add("--epochs", type=int, default=60)
    add("--eval-every", type=int, default=5)
    add("--hidden", type=int, default=64)
    add("--dropout", type=float, default=0.5)
    add("--lr", type=float, default=0.01)
    add("--weight-decay", type=float, default=5e-4)
    add_page(result)
    result.set_defaults(**defaults)
    return result


def add_page(result: argparse.ArgumentParser) -> None:
    result.add_argument("--out", type=Path, help="Markdown file whose table is replaced")


def add_graphs(result: argparse.ArgumentParser) -> None:
    result.add_argument("graphs", type=Path, nargs="+", help=".npz files of labelled graphs")
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def optimizer_of(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)


def best_test(
    args: argparse.Namespace,
    step: Callable[[], object],
    predict: Callable[[], Tensor],
    data: Any,
) -> float:
    """Trains, and returns the test accuracy in percent at the best validation accuracy.

    Args:
        step: trains for an epoch.
        predict: returns the classes of all nodes.
        data: has the labels and masks.
    """
    best, at_best = -1.0, 0.0
    for epoch in range(args.epochs):
        step()
        if (epoch + 1) % args.eval_every == 0:
            right = predict() == data.y
            val, test = (float(right[m].float().mean()) for m in (data.val_mask, data.test_mask))
            if val > best:
                best, at_best = val, test
    return 100 * at_best


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of the means, with its standard error."""
    error = 0.0
    if len(ours) > 1:
        error = ((stdev(ours) ** 2 + stdev(theirs) ** 2) / len(ours)) ** 0.5
    return f"{mean(ours) - mean(theirs):+.2f} ± {error:.2f}"


def paired_difference(exact: Sequence[float], other: Sequence[float]) -> str:
    """The mean difference of each seed, with its standard error."""
    apart = [b - a for a, b in zip(exact, other, strict=True)]
    error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
    return f"{mean(apart):+.2f} ± {error:.2f}"


def publish(
    name: str,
    args: argparse.Namespace,
    head: Sequence[str],
    lines: Sequence[Sequence[object]],
    package: str,
    texts: int = 1,
) -> None:
    """Prints a table and how it was made; on the page `args.out` it replaces the one of a name.

    Args:
        package: whose version is told beside torch's.
    """
    options = [f"{key} {value}" for key, value in vars(args).items() if _is_setting(value)]
    source = f"Made by `benchmarks/{Path(sys.argv[0]).name}` with {', '.join(options)}; torch "
    source += f"{torch.__version__}, {package} {version(package)}."
    text = "\n".join([*table(head, lines, texts), source])
    print(text)
    if args.out is not None:
        args.out.write_text(filled(args.out.read_text(), {name: text}))


def _is_setting(value: object) -> bool:
    """Whether it is more than the name of a file or folder."""
    return isinstance(value, int | float | str) and not isinstance(value, bool)
