"""One rank of the demo: shares the graph, trains GraphSAGE, and a network without the graph."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import MLP, GraphSAGE

import peergraph_pyg
from peergraph.fullgraph import named_model
from peergraph.memory import Group
from peergraph_demo.code_graph import load_code_graph
from peergraph_demo.products import products_graph

_SPLITS = ("train", "val", "test")
_MLP_EPOCHS = 30  # it has no neighbours to read, so its epochs cost next to nothing
_LEARNING_RATE, _DROPOUT = 0.003, 0.3
_NORM: dict[str, Any] = {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}

Result = dict[str, Any]
"""What `--json` writes."""
Steps = Callable[[nn.Module, Tensor, bool], Iterator[tuple[Tensor, Tensor]]]
"""Yields logits and labels of batches, given a model, nodes, and whether to shuffle these."""


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Trains and prints the result. Collective: torch.distributed is initialised."""
    _say(f"{dist.get_world_size()} ranks started in {time() - args.begin:.1f} s")
    data, result = _share(args, device)
    nodes = {name: data[f"{name}_mask"].nonzero().view(-1).cpu() for name in _SPLITS}
    if args.full_graph:
        _train_full_graph(args, data, result)
    for name in _SPLITS:
        del data[f"{name}_mask"]  # else the loaders would gather them for every batch
    width, classes = data.x.size(1), result["num_classes"]
    if not args.full_graph:
        model: nn.Module = _sage(args, width, classes).to(device)
        steps = _sage_steps(args, data, device)
        result["accuracy"] = _train_batches(model, steps, nodes, args.epochs or 3, result)
    model = MLP([width, args.hidden, args.hidden, classes], dropout=_DROPOUT, **_NORM).to(device)
    steps = _mlp_steps(args, data, device)
    start = perf_counter()
    result["mlp_accuracy"] = _train_batches(model, steps, nodes, _MLP_EPOCHS, None)
    _say(f"MLP, no graph: {perf_counter() - start:.2f} s")
    peergraph_pyg.store_of(data).close()
    _say(f"\n{'accuracy':<16}{'validation':>12}{'test':>12}")
    for name, key in (("GraphSAGE", "accuracy"), ("MLP, no graph", "mlp_accuracy")):
        _say(f"{name:<16}{result[key]['val']:>12.4f}{result[key]['test']:>12.4f}")
    if args.json is not None and dist.get_rank() == 0:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


def _share(args: argparse.Namespace, device: torch.device) -> tuple[Any, Result]:
    """Puts the graph of each machine's first rank into a store that all its ranks read."""
    group, graph, about = Group.current(device=device), None, None
    if group.rank == 0:
        is_code = args.data == "code"
        graph = load_code_graph() if is_code else products_graph(args.scale)
        about = (graph.name, graph.num_classes)
        del graph.name, graph.num_classes
    start = perf_counter()
    data = peergraph_pyg.share(graph, plan=args.plan, device=device)
    name, num_classes = group.broadcast(about)
    store = peergraph_pyg.store_of(data)
    _say(f"{name}: {store.num_nodes():,} nodes, {store.num_edges():,} edges, {num_classes} classes")
    _say(f"shared with {dist.get_world_size()} ranks in {perf_counter() - start:.1f} s")
    _say(f"\n{store.plan}\n")
    sizes = {"num_nodes": store.num_nodes(), "num_classes": num_classes}
    result = {"graph": name, **sizes, "plan": store.plan.to_dict(), "ranks": dist.get_world_size()}
    return data, {**result, "losses": [], "seconds": [], "accuracy": {}}


def _sage(args: argparse.Namespace, num_features: int, num_classes: int) -> GraphSAGE:
    torch.manual_seed(0)
    layers = len(args.fanouts)
    return GraphSAGE(num_features, args.hidden, layers, num_classes, dropout=_DROPOUT, **_NORM)


def _train_full_graph(args: argparse.Namespace, data: Any, result: Result) -> None:
    """Trains without sampling: every rank runs the steps of one process, on its part of the rows.

    An epoch is one step on all training nodes.
    """
    whole = peergraph_pyg.full_graph(data)
    widths = [whole.x.size(1), *[args.hidden] * (len(args.fanouts) - 1), result["num_classes"]]
    plan = peergraph_pyg.partition_of(whole).plan.with_model(named_model(widths, "sage"))
    _say(f"{plan}\n")
    result["plan"] = plan.to_dict()
    x, edge_index = whole.x.float(), whole.edge_index
    model = _sage(args, widths[0], result["num_classes"]).to(whole.x.to_local().device)
    model = peergraph_pyg.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for epoch in range(args.epochs or 100):
        start = perf_counter()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.cross_entropy(out[whole.train_mask], whole.y[whole.train_mask])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        _end_epoch(result, epoch, loss.item(), perf_counter() - start)
    model.eval()
    with torch.no_grad():
        correct = model(x, edge_index).argmax(dim=-1) == whole.y
    for name in ("val", "test"):
        mask = whole[f"{name}_mask"]
        result["accuracy"][name] = int(correct[mask].sum()) / int(mask.sum())


def _sage_steps(args: argparse.Namespace, data: Any, device: torch.device) -> Steps:
    """Batches of an unmodified NeighborLoader."""

    def steps(model: nn.Module, nodes: Tensor, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
        loader = NeighborLoader(
            data, list(args.fanouts), nodes, batch_size=args.batch_size, shuffle=shuffle
        )
        for batch in loader:
            batch = batch.to(device)
            # Each layer is computed only for the nodes that later ones need.
            out = model(
                batch.x.float(),
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )
            yield out[: batch.batch_size], batch.y[: batch.batch_size]

    return steps


def _mlp_steps(args: argparse.Namespace, data: Any, device: torch.device) -> Steps:
    """The nodes' own features: what GraphSAGE has more is what the graph adds."""

    def steps(model: nn.Module, nodes: Tensor, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
        order = nodes[torch.randperm(len(nodes))] if shuffle else nodes
        for ids in torch.split(order.to(device), args.batch_size):
            yield model(data.x[ids].float()), data.y[ids]

    return steps


def _train_batches(
    model: nn.Module, steps: Steps, nodes: dict[str, Tensor], epochs: int, result: Result | None
) -> dict[str, float]:
    """Returns the accuracies. Fills in the result's epochs. Collective."""
    device = next(model.parameters()).device
    distributed = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None
    )
    torch.manual_seed(1 + dist.get_rank())  # ranks draw different neighbours and dropout masks
    optimizer = torch.optim.Adam(distributed.parameters(), lr=_LEARNING_RATE)
    part = _equal_share(nodes["train"])
    for epoch in range(epochs):
        start, losses = perf_counter(), []
        for logits, y in steps(distributed, part, True):
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)
        if result is not None:
            _end_epoch(result, epoch, float(mean), perf_counter() - start)
    model.eval()
    start, accuracy = perf_counter(), {}
    for name in ("val", "test"):
        part = nodes[name][dist.get_rank() :: dist.get_world_size()]
        correct = torch.zeros((), dtype=torch.int64, device=device)
        with torch.no_grad():
            for logits, y in steps(model, part, False) if len(part) else ():
                correct += (logits.argmax(1) == y).sum()
        dist.all_reduce(correct)
        accuracy[name] = int(correct) / len(nodes[name])
    if result is not None:
        _say(f"validation and test: {perf_counter() - start:.2f} s")
    return accuracy


def _equal_share(nodes: Tensor) -> Tensor:
    """This rank's nodes, as many as others have: the first nodes are repeated for that."""
    ranks = dist.get_world_size()
    size = -(-len(nodes) // ranks)
    return nodes[torch.arange(dist.get_rank(), size * ranks, ranks) % len(nodes)]


def _end_epoch(result: Result, epoch: int, loss: float, seconds: float) -> None:
    result["losses"].append(loss)
    result["seconds"].append(seconds)
    if epoch < 3 or (epoch + 1) % 10 == 0:
        _say(f"epoch {epoch + 1}: loss {loss:.4f}, {seconds:.2f} s")


def _say(text: str) -> None:
    """Prints once, not once a rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)
