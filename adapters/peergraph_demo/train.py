"""One rank of the demo, from the graph in rank 0's memory to the result."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from peergraph.memory import Group
from peergraph_demo.full_graph import train_full_graph
from peergraph_demo.inputs import load_graph, to_pyg
from peergraph_demo.mlp import train_mlp
from peergraph_demo.options import DemoOptions
from peergraph_demo.result import DemoResult
from peergraph_demo.sage import train_sage
from peergraph_demo.team import Team

_SPLITS = ("train", "val", "test")
_MLP_EPOCHS = 10  # of the network without the graph, which trains on batches, beside a full graph


def train(options: DemoOptions, device: torch.device) -> DemoResult:
    """Shares the graph, trains GraphSAGE and the MLP; the same result on every rank.

    Collective: torch.distributed must be initialised, `options` checked and the same on all ranks.
    The first rank of each machine holds the graph until it is in the store.
    """
    import peergraph_pyg

    team = Team(device)
    data, result = _share(team, options)
    splits = {name: data[f"{name}_mask"].nonzero().view(-1).cpu() for name in _SPLITS}
    if options.full_graph:
        training = options.training(len(splits["train"]), team.ranks)
        train_full_graph(team, training, data, result)
        for name in _SPLITS:
            del data[f"{name}_mask"]
        train_mlp(team, replace(training, epochs=_MLP_EPOCHS), data, splits, result)
        peergraph_pyg.store_of(data).close()
        return result
    for name in _SPLITS:
        del data[f"{name}_mask"]  # else the loaders would gather them for every batch
    training = options.training(len(splits["train"]), team.ranks)
    store = peergraph_pyg.store_of(data)
    with store.measure() if options.measure else nullcontext() as measured:
        train_sage(team, training, data, splits, result)
    if measured is not None:
        assert store.group is not None
        result.measured = str(measured.of_all_ranks(store.group))
    train_mlp(team, training, data, splits, result)
    store.close()
    return result


def _share(team: Team, options: DemoOptions) -> tuple[Any, DemoResult]:
    import peergraph_pyg

    group = Group.current(device=team.device)
    data, about = None, None
    if group.rank == 0:
        graph = load_graph(options, progress=team.is_first)
        about = (graph.name, graph.num_classes)
        team.say(str(graph))
        data = to_pyg(graph)
        del graph
    start = perf_counter()
    data = peergraph_pyg.share(
        data, plan=options.plan, memory_budget=options.memory_budget, device=team.device
    )
    name, num_classes = group.broadcast(about)
    store = peergraph_pyg.store_of(data)
    team.say(f"shared with {team.ranks} ranks in {perf_counter() - start:.1f} s\n\n{store.plan}\n")
    return data, DemoResult(
        graph=name,
        num_nodes=store.num_nodes(),
        num_edges=store.num_edges(),
        num_classes=num_classes,
        device=team.device.type,
        ranks=team.ranks,
        plan=store.plan.to_dict(),
    )
