"""One rank of the demo: GraphSAGE with DDP over one store, and an MLP that sees no graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .clock import PhaseClock
from .inputs import load_graph, to_pyg
from .options import DemoOptions

_SPLITS = ("train", "val", "test")
# The MLP has no neighbours to read, so its epochs cost next to nothing.
_MLP_EPOCHS_PER_EPOCH = 10


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
    """What a run of the demo found; `to_dict` is what `--json` writes."""

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

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values."""
        return asdict(self)


class Rank:
    """This process's part of the run. torch.distributed must be initialised. Collective.

    Args:
        options: checked options, the same on all ranks.
        device: this rank's device.
    """

    def __init__(self, options: DemoOptions, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.is_first = self.rank == 0

    def run(self) -> DemoResult:
        """Loads on rank 0, shares, trains, evaluates; the same result on every rank."""
        import peergraph_pyg

        data, result = self._share()
        splits = {name: data[f"{name}_mask"].nonzero().view(-1).cpu() for name in _SPLITS}
        for name in _SPLITS:
            del data[f"{name}_mask"]  # else the loaders would gather them for every batch
        self._train_sage(data, splits, result)
        self._train_mlp(data, splits, result)
        peergraph_pyg.store_of(data).close()
        return result

    def say(self, text: str) -> None:
        """Prints once, not once a rank."""
        if self.is_first:
            print(text, flush=True)

    def _share(self) -> tuple[Any, DemoResult]:
        import peergraph_pyg

        options = self.options
        data, about = None, None
        if self.is_first:
            graph = load_graph(options)
            about = (graph.name, graph.num_classes)
            self.say(str(graph))
            data = to_pyg(graph)
            del graph
        start = perf_counter()
        data = peergraph_pyg.share(
            data, plan=options.plan, memory_budget=options.memory_budget, device=self.device
        )
        store = peergraph_pyg.store_of(data)
        name, num_classes = store.group.broadcast(about)
        self.say(
            f"shared by {self.ranks} ranks in {perf_counter() - start:.1f} s\n\n{store.plan}\n"
        )
        return data, DemoResult(
            graph=name,
            num_nodes=store.num_nodes(),
            num_edges=store.num_edges(),
            num_classes=num_classes,
            device=str(self.device.type),
            ranks=self.ranks,
            plan=store.plan.to_dict(),
        )

    def _train_sage(self, data: Any, splits: dict[str, Tensor], result: DemoResult) -> None:
        from torch_geometric.nn import GraphSAGE

        options = self.options
        torch.manual_seed(options.seed)
        model = GraphSAGE(
            data.x.size(1),
            options.hidden,
            num_layers=len(options.fanouts),
            out_channels=result.num_classes,
            dropout=options.dropout,
            norm="batch_norm",
        ).to(self.device)
        ddp = self._distribute(model)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=options.lr)
        # From here on ranks draw different neighbours and dropout masks.
        torch.manual_seed(options.seed + 1 + self.rank)
        loader = self._loader(data, self._equal_share(splits["train"]), shuffle=True)
        clock = PhaseClock(loader, self.device)
        for epoch in range(options.epochs):
            clock.synchronise = epoch == options.epochs - 1
            start = perf_counter()
            loss = self._sage_epoch(ddp, optimizer, clock, len(loader), epoch)
            seconds = [perf_counter() - start, *clock.seconds.values()]
            accuracy = self._sage_accuracy(model, data, splits["val"])
            result.epochs.append(Epoch(loss, accuracy, *self._mean(seconds)))
            self.say(f"epoch {epoch + 1}: loss {loss:.4f}, validation accuracy {accuracy:.4f}")
        result.val_accuracy = result.epochs[-1].val_accuracy
        result.test_accuracy = self._sage_accuracy(model, data, splits["test"])

    def _sage_epoch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clock: PhaseClock,
        steps: int,
        epoch: int,
    ) -> float:
        from tqdm import tqdm

        model.train()
        total = torch.zeros((), device=self.device)
        with tqdm(
            total=steps,
            desc=f"epoch {epoch + 1}/{self.options.epochs}",
            unit=" batches",
            disable=not self.is_first,
        ) as bar:
            for batch in clock.batches():
                batch = batch.to(self.device)
                loss = F.cross_entropy(_sage(model, batch), batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
                bar.update()
        return self._mean([float(total) / steps])[0]

    @torch.no_grad()
    def _sage_accuracy(self, model: nn.Module, data: Any, nodes: Tensor) -> float:
        model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        share = nodes[self.rank :: self.ranks]
        for batch in self._loader(data, share, shuffle=False) if len(share) else ():
            batch = batch.to(self.device)
            guess = _sage(model, batch).argmax(dim=1)
            correct += (guess == batch.y[: batch.batch_size]).sum()
        return self._accuracy(correct, nodes)

    def _train_mlp(self, data: Any, splits: dict[str, Tensor], result: DemoResult) -> None:
        from torch_geometric.nn import MLP
        from tqdm import tqdm

        options = self.options
        torch.manual_seed(options.seed)
        model = MLP(
            in_channels=data.x.size(1),
            hidden_channels=options.hidden,
            out_channels=result.num_classes,
            num_layers=3,
            dropout=options.dropout,
        ).to(self.device)
        ddp = self._distribute(model)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=options.lr)
        torch.manual_seed(options.seed + 1 + self.rank)
        share = self._equal_share(splits["train"])
        epochs = range(_MLP_EPOCHS_PER_EPOCH * options.epochs)
        for _ in tqdm(epochs, desc="MLP, no graph", unit=" epochs", disable=not self.is_first):
            ddp.train()
            for nodes in share[torch.randperm(len(share))].split(options.batch_size):
                loss = F.cross_entropy(ddp(self._features(data, nodes)), self._labels(data, nodes))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        result.mlp_val_accuracy = self._mlp_accuracy(model, data, splits["val"])
        result.mlp_test_accuracy = self._mlp_accuracy(model, data, splits["test"])

    @torch.no_grad()
    def _mlp_accuracy(self, model: nn.Module, data: Any, nodes: Tensor) -> float:
        model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for part in nodes[self.rank :: self.ranks].split(self.options.batch_size):
            guess = model(self._features(data, part)).argmax(dim=1)
            correct += (guess == self._labels(data, part)).sum()
        return self._accuracy(correct, nodes)

    def _features(self, data: Any, nodes: Tensor) -> Tensor:
        x: Tensor = data.x[nodes.to(self.device)]
        return x.float()

    def _labels(self, data: Any, nodes: Tensor) -> Tensor:
        y: Tensor = data.y[nodes.to(self.device)]
        return y

    def _loader(self, data: Any, nodes: Tensor, *, shuffle: bool) -> Any:
        from torch_geometric.loader import NeighborLoader

        return NeighborLoader(
            data,
            num_neighbors=list(self.options.fanouts),
            input_nodes=nodes,
            batch_size=self.options.batch_size,
            shuffle=shuffle,
            num_workers=self.options.num_workers,
        )

    def _distribute(self, model: nn.Module) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def _equal_share(self, nodes: Tensor) -> Tensor:
        """This rank's training nodes: as many on each rank, so that all take the same number of
        steps; the first nodes are repeated to make it so."""
        size = -(-len(nodes) // self.ranks)
        return nodes[torch.arange(self.rank, size * self.ranks, self.ranks) % len(nodes)]

    def _accuracy(self, correct: Tensor, nodes: Tensor) -> float:
        dist.all_reduce(correct)
        return int(correct) / len(nodes)

    def _mean(self, values: list[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(v) for v in total / self.ranks]


def _sage(model: nn.Module, batch: Any) -> Tensor:
    """Logits of the seeds. Each layer is computed only for the nodes that later ones need."""
    out: Tensor = model(
        batch.x.float(),
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return out[: batch.batch_size]
