"""Random programs over shared data: batches while rows and masks are written, by all ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from tests.fullgraph.fuzz.graphs import plain_graph
from tests.fullgraph.fuzz.report import DIFFERS, EQUAL, UNNAMED, Configuration, Outcome
from tests.fullgraph.fuzz.scene import seed_all

DEPTH = 2
TABLES = ("x", "y", "train_mask", "edge_attr", "edge_weight")


class SharedScene:
    """Shared data and plain tables that are written in the same way.

    Args:
        seed: of the graph.
        options: of `share`.
    """

    def __init__(self, seed: int, options: dict[str, Any]) -> None:
        plain = plain_graph(seed)
        self.edges = plain.edge_index
        self.data = peergraph_pyg.share(plain.clone(), **options)
        self.device = options["device"]
        self.tables = {name: plain[name].clone() for name in TABLES}
        self.earlier: dict[str, list[Tensor]] = {name: [] for name in TABLES}
        self.names: dict[str, Any] = {
            "torch": torch,
            "np": np,
            "data": self.data,
            "peergraph_pyg": peergraph_pyg,
            "NeighborLoader": NeighborLoader,
            "LinkNeighborLoader": LinkNeighborLoader,
            "write": self.write,
            "read": self.read,
            "take": self.take,
            "same": self.same,
            "inputs": self.inputs,
        }

    def write(
        self, name: str, ids: list[int], value: float, writer: int, whole: bool = False
    ) -> None:
        """One rank writes rows; the others wait until it has. Collective."""
        dist.barrier()
        table = self.tables[name]
        self.earlier[name] = [table.clone(), *self.earlier[name][: 2 * DEPTH]]
        index = slice(None) if whole else torch.tensor(ids)
        rows = table[index]
        values = (
            rows.logical_not() if rows.dtype == torch.bool else (rows * 0 + value).to(rows.dtype)
        )
        if dist.get_rank() == writer % dist.get_world_size():
            self.data[name][index if whole else index.to(self.device)] = values.to(self.device)
            if self.device != "cpu":
                torch.cuda.synchronize()
        table[index] = values
        dist.barrier()

    def read(self, name: str, index: Any) -> None:
        """Reads rows of shared data directly."""
        self._compare(f"{name}[{index}]", self.data[name][index], [self.tables[name][index]])

    def take(self, batches: Iterator[Any], count: int = 1, ahead: int = 0) -> None:
        """Compares the next batches with the tables.

        Args:
            batches: of a loader.
            count: the number of batches.
            ahead: the batches that were made before the writes of the loop, perhaps.
        """
        for _ in range(count):
            batch = next(batches, None)
            if batch is None:
                return
            nodes, edges = batch.n_id.cpu(), batch.e_id.cpu()
            self._compare("edges", nodes[batch.edge_index.cpu()], [self.edges[:, edges]])
            for name, ids in (
                ("x", nodes),
                ("y", nodes),
                ("edge_attr", edges),
                ("edge_weight", edges),
            ):
                if name in batch:
                    versions = [self.tables[name], *self.earlier[name][: ahead and 2 * DEPTH]]
                    self._compare(name, batch[name], [version[ids] for version in versions])
            batch.x.zero_()  # a batch is private

    def same(self, first: Any, second: Any, seed: int) -> None:
        """Compares the batches of two loaders with the same seed."""
        seed_all(seed)
        right = [(b.n_id.cpu(), b.edge_index.cpu()) for b in first]
        seed_all(seed)
        for batch, (nodes, edges) in zip(second, right, strict=True):
            self._compare("n_id", batch.n_id, [nodes])
            self._compare("edge_index", batch.edge_index, [edges])

    def inputs(self, loader: Any) -> None:
        """Compares the loader's input nodes with the mask as it is now."""
        right = self.tables["train_mask"].nonzero().view(-1)
        parts = [batch.n_id[: batch.batch_size].cpu() for batch in loader]
        nodes = torch.cat(parts) if parts else right.new_empty(0)  # a mask of no node: no batch
        self._compare("inputs", nodes.sort().values, [right])

    def _compare(self, name: str, value: Tensor, versions: list[Tensor]) -> None:
        """Compares with the present rows; each row may also be that of an earlier version."""
        value = value.cpu()
        if value.shape != versions[0].shape or value.dtype != versions[0].dtype:
            raise AssertionError(
                f"{name}: {value.dtype} of shape {tuple(value.shape)}, right is "
                f"{versions[0].dtype} of shape {tuple(versions[0].shape)}"
            )
        if not value.numel():
            return
        rows = value.reshape(value.shape[0] if value.dim() else 1, -1)
        equal = torch.stack([(rows == right.reshape(rows.shape)).all(1) for right in versions])
        if not bool(equal.any(0).all()):
            raise AssertionError(
                f"{name}: rows {(~equal.any(0)).nonzero().view(-1).tolist()} differ"
            )


def make_loader_program(seed: int) -> list[str]:
    """Returns statements: loaders, batches, writes, reads; the last loader may be prefetched."""
    draw = np.random.default_rng([seed, 2])
    plain = plain_graph(seed)
    nodes, edges = plain.num_nodes, plain.edge_index.shape[1]

    def some(count: int) -> list[int]:
        return [int(i) for i in draw.permutation(count)[: int(draw.integers(1, count))]]

    def one_of(*texts: str) -> str:
        return texts[int(draw.integers(len(texts)))]

    def loader() -> str:
        fanouts = [int(k) for k in draw.choice([-1, 1, 2, 3], int(draw.integers(1, 3)))]
        shared = f"num_neighbors={fanouts}, batch_size={draw.integers(1, 9)}"
        shared += one_of("", ", shuffle=True")
        if draw.random() < 0.35:
            pairs = f"torch.tensor({plain.edge_index[:, :5].tolist()})"
            links = one_of("None", f"data.edge_index[:, {some(edges)}]", pairs)
            negatives = one_of("", ", neg_sampling_ratio=1.0", ", neg_sampling='triplet'")
            return f"LinkNeighborLoader(data, edge_label_index={links}, {shared}{negatives})"
        inputs = one_of("None", "data.train_mask", f"torch.tensor({some(nodes)})", f"{some(nodes)}")
        kind = one_of("", "", ", subgraph_type='induced'", ", replace=True", ", disjoint=True")
        return f"NeighborLoader(data, input_nodes={inputs}, {shared}{kind})"

    def write() -> str:
        name = one_of(*TABLES)
        rows = some(edges if name.startswith("edge") else nodes)
        whole = one_of(*[""] * 9, ", whole=True")
        return f"write({name!r}, {rows}, {draw.integers(3)}, {draw.integers(3)}{whole})"

    def read() -> str:
        rows = some(nodes)
        index = one_of(
            *(
                f"{rows}",
                f"torch.tensor({rows})",
                f"np.array({rows})",
                f"slice({rows[0]}, None, 2)",
            ),
            *(f"{rows[0]}", f"{-1 - rows[0]}", f"torch.arange({nodes}) % 3 == 0"),
        )
        return f"read({one_of('x', 'y', 'train_mask')!r}, {index})"

    lines: list[str] = []
    for number in range(int(draw.integers(1, 4))):
        ahead = int(draw.integers(1, DEPTH + 1)) if draw.random() < 0.4 else 0
        lines.append(f"loader = {loader()}")
        if draw.random() < 0.4:
            lines.append(
                f"same(loader, peergraph_pyg.prefetch(loader, {draw.integers(3)}), {number})"
            )
        lines.append(f"batches = iter(peergraph_pyg.prefetch(loader, {ahead}))")
        for _ in range(int(draw.integers(2, 10))):
            kind = draw.choice(["take", "take", "write", "write", "read"])
            line = {"write": write, "read": read}.get(str(kind), lambda: "")()
            lines.append(
                line or f"take(batches, {draw.integers(1, 4)}{', ahead=1' if ahead else ''})"
            )
        if draw.random() < 0.4:
            lines.append(
                "inputs(NeighborLoader(data, [2], input_nodes=data.train_mask, batch_size=4))"
            )
    return lines


def run_loader_program(lines: list[str], seed: int, where: Configuration) -> Outcome:
    """Runs a program of loaders. Collective; does not raise."""
    place = "cpu" if where.device == "cpu" else f"cuda:{torch.cuda.current_device()}"
    os.environ["PEERGRAPH_PREFETCH"] = "0"
    seed_all(0)
    scene = SharedScene(seed, {"plan": where.plan, "device": place})
    outcome, number = Outcome(EQUAL), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number, line in enumerate(lines):
                exec(compile(line, f"<line {number}>", "exec"), scene.names)
        except AssertionError as error:
            outcome = Outcome(DIFFERS, number, str(error)[:400])
        except Exception as error:
            outcome = Outcome(UNNAMED, number, f"{type(error).__name__}: {error}"[:400])
    scene.names.clear()
    outcome.statements = len(lines)
    if outcome.kind == EQUAL:
        peergraph_pyg.store_of(scene.data).close()
    return outcome
