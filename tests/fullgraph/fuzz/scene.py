"""What a program sees: a graph, tensors that are made from seeds, models, `check`, `raises`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.utils import degree, scatter, softmax

import peergraph_pyg
from peergraph.fullgraph import keyed_random
from tests.fullgraph.fuzz.graphs import graph_names
from tests.fullgraph.fuzz.models import Net, OptimizerPair
from tests.fullgraph.fuzz.report import Configuration

DRAWS_PARAMETERS = ("make_model(", "reset(")
DRAWS_ROWS = ("model", "dropout", "checkpoint")


@dataclass
class Observation:
    """A tensor or number that a program passed to `check`."""

    line: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool | None
    value: np.ndarray[Any, Any]
    slack: float = 0.0
    """How far other values may be away, beside what rounding of their type makes."""


class Scene:
    """The names of one run of a program.

    Args:
        seed: of the graph.
        where: the kind of graph, its float type, chunks and device.
        is_plain: on plain tensors of the CPU instead.
    """

    def __init__(self, seed: int, where: Configuration, is_plain: bool = False) -> None:
        self.is_plain, self.where = is_plain, where
        self.device = "cpu" if is_plain else where.device
        self.dtype: torch.dtype = getattr(torch, where.dtype)
        self.observations: list[Observation] = []
        self.line, self.has_dropout = 0, False
        self.names: dict[str, Any] = {
            "torch": torch,
            "F": F,
            "nn": nn,
            "np": np,
            "copy": copy,
            "checkpoint": checkpoint,
            "LGConv": gnn.LGConv,
            "global_add_pool": gnn.global_add_pool,
            "scatter": scatter,
            "softmax": softmax,
            "degree": degree,
            **graph_names(seed, where, is_plain),
            **{name: getattr(self, name) for name in ("check", "raises", "draw", "ids")},
            **{name: getattr(self, name) for name in ("chosen", "make_model", "state_of")},
            "by_numpy": by_numpy,
            "reset": reset,
            "OptimizerPair": OptimizerPair,
            "autocast": partial(torch.autocast, self.device, torch.bfloat16),
        }

    def run(self, lines: list[str]) -> None:
        """Runs the statements in turn; `self.line` is the one that raised."""
        seed_all(0)
        for self.line, line in enumerate(lines):
            self.execute(line)

    def execute(self, line: str) -> None:
        """Runs a statement. Plain tensors get the dropout that partitioned ones get."""
        self.has_dropout |= "dropout" in line.lower()
        is_keyed = self.is_plain and self.has_dropout
        is_keyed = is_keyed and not any(name in line for name in DRAWS_PARAMETERS)
        # Within a mode of torch's, views of inference mode lose `requires_grad`.
        if "inference_mode" in line:
            is_keyed = is_keyed and any(name in line.lower() for name in DRAWS_ROWS)
        with keyed_random() if is_keyed else nullcontext():
            exec(_compiled(line), self.names)

    def check(self, name: str, value: Any) -> None:
        """Notes a value. Collective on full graphs."""
        if isinstance(value, (tuple, list)):
            for i, part in enumerate(value):
                self.check(f"{name}[{i}]", part)
            return
        if isinstance(value, dict):
            for key, part in value.items():
                self.check(f"{name}[{key!r}]", part)
            return
        if not isinstance(value, Tensor):
            array = np.asarray(value if value is not None else np.nan)
            self.observations.append(
                Observation(self.line, name, array.shape, type(value).__name__, False, array)
            )
            return
        shape = tuple(value.shape)
        with torch.no_grad():
            rows = value.detach()
            whole = rows.full_tensor() if hasattr(rows, "full_tensor") else rows
            whole = whole.float() if whole.dtype == torch.bfloat16 else whole
            array = whole.to("cpu", copy=True).numpy()
        self.observations.append(
            Observation(self.line, name, shape, str(value.dtype), value.requires_grad, array)
        )

    @contextmanager
    def raises(self) -> Iterator[None]:
        """Notes whether the block raises, as it does on plain tensors."""
        try:
            yield
        except (ValueError, TypeError, IndexError, RuntimeError):
            has_raised = True
        else:
            has_raised = False
        self.check("raises", has_raised)

    def draw(self, *shape: int, seed: int) -> Tensor:
        """Normal numbers, plain."""
        numbers = np.random.default_rng(seed).normal(size=shape)
        return torch.as_tensor(numbers, device=self.device, dtype=self.dtype)

    def ids(self, size: int, count: int, seed: int, distinct: bool = False) -> Tensor:
        """`count` plain ids of `size` rows."""
        draw = np.random.default_rng(seed)
        numbers = draw.permutation(size)[:count] if distinct else draw.integers(0, size, count)
        return torch.as_tensor(numbers, device=self.device)

    def chosen(self, size: int, seed: int) -> Tensor:
        """A plain mask of `size` rows, at least one of them chosen."""
        mask = np.random.default_rng(seed).random(size) < 0.5
        mask[0] = True
        return torch.as_tensor(mask, device=self.device)

    def make_model(
        self, kind: str, columns: int, seed: int, accelerate: bool = False, backend: str = ""
    ) -> nn.Module:
        """A model of two layers.

        Args:
            kind, columns: see :class:`Net`.
            seed: of the parameters.
            accelerate: with Peergraph's kernels on full graphs.
            backend: of torch.compile, on full graphs.
        """
        seed_all(seed)
        model: nn.Module = Net(kind, columns).to(self.dtype)
        if accelerate and not self.is_plain:
            model = _accelerate(model, self.where.graph)
        if backend and not self.is_plain:
            torch._dynamo.reset()
            model.compile(backend=backend)
        return model.to(self.device)

    def state_of(self, optimizer: torch.optim.Optimizer | OptimizerPair) -> list[Tensor]:
        """The tensors of the optimizer's state, in the order of its parameters."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states = [optimizer.state.get(p, {}) for p in parameters]
        return [s[key] for s in states for key in sorted(s) if isinstance(s[key], Tensor)]


def _accelerate(model: nn.Module, graph: str) -> nn.Module:
    if graph != "dgl":
        return peergraph_pyg.accelerate(model)
    import peergraph_dgl

    return peergraph_dgl.accelerate(model)


def seed_all(seed: int) -> None:
    """Seeds the numbers that programs draw, all on the CPU.

    torch.manual_seed also notes for each kind of GPU that is not there where it was called from,
    which takes longer than many a statement, and memory that it keeps.
    """
    torch.default_generator.manual_seed(seed)


@lru_cache(maxsize=4096)
def _compiled(line: str) -> CodeType:
    return compile(line, "<line>", "exec")


def reset(model: nn.Module, seed: int) -> None:
    """Draws a model's parameters anew, on the CPU, in place."""
    seed_all(seed)
    if not next(model.parameters()).is_cuda:
        model.reset_parameters()  # type: ignore[operator]
        return
    drawn = copy.deepcopy(model).cpu()
    reset(drawn, seed)
    model.load_state_dict(drawn.state_dict())


def by_numpy(tensor: Tensor) -> Any:
    """The memory of a plain tensor, to be written without torch's knowledge; on GPUs its data."""
    return tensor.data if tensor.is_cuda else tensor.detach().numpy()
