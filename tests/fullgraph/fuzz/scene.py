"""What a program sees: a graph, tensors made from seeds, models, `check` and `raises`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.utils import degree, scatter, softmax

import peergraph_pyg
from peergraph.fullgraph import keyed_random

CLASSES = 3
DRAWS_PARAMETERS = ("make_model(", "reset(")


@dataclass
class Observation:
    """A tensor or number that a program passed to `check`."""

    line: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool | None
    value: np.ndarray[Any, Any]


def graph_of(seed: int) -> Data:
    """A plain graph: some nodes without edges, self loops, ten rows or more."""
    draw = np.random.default_rng(seed)
    nodes, features = int(draw.integers(10, 31)), int(draw.integers(2, 7))
    edges = np.unique(
        draw.integers(0, nodes - 1, (int(draw.integers(nodes, 4 * nodes)), 2)), axis=0
    )
    edges = edges[draw.permutation(len(edges))]
    data = Data(edge_index=torch.from_numpy(edges.T.copy()), num_nodes=nodes)
    data.x = torch.from_numpy(draw.normal(size=(nodes, features)))
    data.y = torch.from_numpy(draw.integers(0, CLASSES, nodes))
    data.n_id = torch.arange(nodes)
    for name in ("train_mask", "val_mask"):
        data[name] = torch.from_numpy(draw.random(nodes) < 0.5)
        data[name][: nodes // 8 + 1] = True
    data.edge_weight = torch.from_numpy(draw.random(len(edges)) + 0.1)
    data.edge_attr = torch.from_numpy(draw.normal(size=(len(edges), 2)))
    data.edge_mask = torch.from_numpy(draw.random(len(edges)) < 0.8)
    return data


class Scene:
    """The names of one run of a program.

    Args:
        seed: of the graph.
        chunks: None: plain tensors; 0: rows on the device; else chunks of offloaded rows.
        device: of the group, where `chunks` is not None.
    """

    def __init__(self, seed: int, chunks: int | None = None, device: str = "cpu") -> None:
        self.is_plain = chunks is None
        self.device = device if chunks is not None else "cpu"
        self.observations: list[Observation] = []
        self.line, self.has_modes, self.has_dropout = 0, False, False
        data = graph_of(seed)
        if chunks is not None:
            options: dict[str, Any] = {"offload": True, "num_chunks": chunks} if chunks else {}
            if device == "cuda":
                options["device"] = f"cuda:{torch.cuda.current_device()}"
            data = peergraph_pyg.full_graph(data, **options)
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
            "data": data,
            "x": data.x,
            "y": data.y,
            "n_id": data.n_id,
            "mask": data.train_mask,
            "edge_index": data.edge_index,
            **{name: getattr(self, name) for name in ("check", "raises", "draw", "ids")},
            **{name: getattr(self, name) for name in ("chosen", "make_model", "state_of")},
            "by_numpy": by_numpy,
            "reset": reset,
        }

    def run(self, lines: list[str]) -> None:
        """Runs the statements in turn; `self.line` is the one that raised."""
        seed_all(0)
        # Views of torch that are made in no_grad need gradients; copies of rows do not.
        self.has_modes = any("grad(" in line or "grad_enabled(" in line for line in lines)
        for self.line, line in enumerate(lines):
            self.execute(line)

    def execute(self, line: str) -> None:
        """Runs a statement. Plain tensors get the dropout that partitioned ones get."""
        self.has_dropout |= "dropout" in line.lower()
        is_keyed = self.is_plain and self.has_dropout
        is_keyed = is_keyed and not any(name in line for name in DRAWS_PARAMETERS)
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
        needs_grad = None if self.has_modes or value._is_view() else value.requires_grad
        shape = tuple(value.shape)
        with torch.no_grad():
            rows = value.detach()
            whole = rows.full_tensor() if hasattr(rows, "full_tensor") else rows
            array = whole.to("cpu", copy=True).numpy()
        self.observations.append(
            Observation(self.line, name, shape, str(value.dtype), needs_grad, array)
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
        return torch.as_tensor(numbers, device=self.device)

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

    def make_model(self, kind: str, columns: int, seed: int, accelerate: bool = False) -> nn.Module:
        """A model of two layers; with Peergraph's kernels on full graphs if `accelerate`."""
        seed_all(seed)
        model: nn.Module = Net(kind, columns).double()
        if accelerate and not self.is_plain:
            model = peergraph_pyg.accelerate(model)
        return model.to(self.device)

    def state_of(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """The tensors of the optimizer's state, in the order of its parameters."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states = [optimizer.state.get(p, {}) for p in parameters]
        return [s[key] for s in states for key in sorted(s) if isinstance(s[key], Tensor)]


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


CONVS = {
    "GCN": lambda a, b: gnn.GCNConv(a, b),
    "SAGE": lambda a, b: gnn.SAGEConv(a, b),
    "SAGEmax": lambda a, b: gnn.SAGEConv(a, b, aggr="max"),
    "GAT": lambda a, b: gnn.GATConv(a, b, heads=2, concat=False),
    "GATv2": lambda a, b: gnn.GATv2Conv(a, b),
    "GIN": lambda a, b: gnn.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))),
    "Graph": lambda a, b: gnn.GraphConv(a, b),
    "SG": lambda a, b: gnn.SGConv(a, b, K=2),
    "TAG": lambda a, b: gnn.TAGConv(a, b, K=2),
    "Transformer": lambda a, b: gnn.TransformerConv(a, b),
    "LG": lambda a, b: gnn.LGConv(),
}
NORMS = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "graph": gnn.GraphNorm,
    "pair": lambda columns: gnn.PairNorm(),
}


class Net(nn.Module):
    """Two layers named like ``GCN``, ``GAT+batch+dropout`` or ``MLP+layer``."""

    def __init__(self, kind: str, columns: int) -> None:
        super().__init__()
        conv, *parts = kind.split("+")
        hidden = columns if conv == "LG" else 4
        make = CONVS.get(conv, nn.Linear)
        self.first, self.second = make(columns, hidden), make(hidden, CLASSES)
        self.head = nn.Linear(hidden, CLASSES) if conv == "LG" else nn.Identity()
        self.norm = next((NORMS[part](hidden) for part in parts if part in NORMS), nn.Identity())
        self.dropout = 0.4 if "dropout" in parts else 0.0
        self.residual = "residual" in parts and conv != "LG"

    def forward(self, x: Tensor, edge_index: Any, *weight: Tensor) -> Tensor:
        edges = () if isinstance(self.first, nn.Linear) else (edge_index, *weight)
        h = self.first(x, *edges)
        h = F.elu(self.norm(h))
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        out = self.second(h, *edges)
        out = self.head(out)
        return out + h[:, :CLASSES] if self.residual else out

    def reset_parameters(self) -> None:
        """Draws the parameters anew, as the parts do."""
        for part in self.children():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
