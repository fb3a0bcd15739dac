"""`capture` of batches with times and of disjoint samples: the losses of a loop over the loader."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from tests.adapters.captured_results import adam
from tests.adapters.pyg.captured.training import (
    BATCH,
    FANOUTS,
    NODES,
    TypedSage,
    check,
    sage,
    typed_data,
)
from tests.adapters.pyg.captured.training import loss_of as loss_of_nodes

SEEDS, TIMES = torch.arange(50, 50 + 6 * BATCH + 8), 100
LINKS = 6 * BATCH + 9


def timed(plain: Data) -> Data:
    random = torch.Generator().manual_seed(2)
    data = plain.clone()
    data.time = torch.randint(TIMES, (NODES,), generator=random)
    data.edge_time = torch.randint(TIMES, (data.num_edges,), generator=random)
    return data


def input_times(count: int) -> Tensor:
    return 40 + torch.arange(count) % (TIMES - 40)


def options_of(kind: str) -> dict[str, Any]:
    latest = input_times(len(SEEDS))
    options: dict[str, dict[str, Any]] = {
        "disjoint": {"disjoint": True},
        "nodes": {"time_attr": "time", "input_time": latest},
        "own times": {"time_attr": "time"},
        "edges": {"time_attr": "edge_time", "input_time": latest},
        "last": {"time_attr": "edge_time", "input_time": latest, "temporal_strategy": "last"},
        "window": {"time_attr": "edge_time", "input_time": latest, "time_window": 30},
        "starts": {"time_attr": "time", "input_time": latest, "input_start_time": latest - 35},
    }
    return options[kind]


def time_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The loss with the age of each node, beside the seeds' positions and the oldest node."""
    batch = batch.to(batch.x.device)  # the times of the loop's batches are on the CPU
    size = batch.batch_size
    latest = batch.get("seed_time", batch.time[:size])
    age = (latest[batch.batch] - batch.time) / TIMES
    with_age = copy.copy(batch)  # a clone's edges would have lost their structures
    with_age.x = batch.x + age[:, None]
    return loss_of_nodes(model, with_age), batch.input_id, age[:size].clone()


@pytest.mark.parametrize(
    "kind", ["disjoint", "nodes", "own times", "edges", "last", "window", "starts"]
)
def test_nodes(plain: Data, device: torch.device, kind: str) -> None:
    loader = NeighborLoader(
        peergraph_pyg.share(timed(plain), device=device),
        FANOUTS,
        input_nodes=SEEDS,
        batch_size=BATCH,
        shuffle=True,
        **options_of(kind),
    )
    check(loader, lambda: sage(device), time_loss)


def link_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of links, beside the ends and the trees that all nodes belong to."""
    batch = batch.to(batch.x.device)
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    if "src_index" in batch:
        ends = [batch.src_index, batch.dst_pos_index]
        labels = torch.ones(len(batch.src_index), device=out.device)
        pairs = (out[batch.src_index, None] * out[batch.dst_neg_index]).mean()
    else:
        ends, labels, pairs = list(batch.edge_label_index), batch.edge_label, 0
    scores = (out[ends[0]] * out[ends[1]]).sum(1)
    loss = F.binary_cross_entropy_with_logits(scores, labels.float()) + pairs
    return loss, batch.n_id[torch.cat(ends)], batch.batch[torch.cat(ends)]


@pytest.mark.parametrize("negatives", ["none", "binary", "triplet"])
@pytest.mark.parametrize("kind", ["disjoint", "nodes", "edges", "window", "starts"])
def test_links(plain: Data, device: torch.device, kind: str, negatives: str) -> None:
    options = options_of(kind)
    latest = input_times(LINKS)
    if "input_time" in options:
        options["edge_label_time"] = latest
        del options["input_time"]
    if "input_start_time" in options:
        del options["input_start_time"]
        options["edge_label_start_time"] = latest - 35
    if negatives == "none":
        options["edge_label"] = torch.ones(LINKS)
    else:
        options["neg_sampling"] = NegativeSampling(negatives, 2)
    assert plain.edge_index is not None
    loader = LinkNeighborLoader(
        peergraph_pyg.share(timed(plain), device=device),
        FANOUTS,
        plain.edge_index[:, :LINKS],
        batch_size=BATCH,
        shuffle=True,
        **options,
    )
    check(loader, lambda: sage(device), link_loss)


def with_age(batch: Any, latest: Tensor) -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    """The rows of both types, with the age of each node, and the edges."""
    x = {
        t: torch.cat([rows, (latest[batch[t].batch] - batch[t].time)[:, None] / TIMES], 1)
        for t, rows in batch.x_dict.items()
    }
    return x, batch.edge_index_dict


@pytest.fixture(scope="module")
def typed() -> HeteroData:
    random = torch.Generator().manual_seed(1)
    data = typed_data()
    for node_type in data.node_types:
        count = data[node_type].num_nodes
        data[node_type].time = torch.randint(TIMES, (count,), generator=random)
    return data


def make_typed_model(typed: HeteroData, device: torch.device) -> nn.Module:
    torch.manual_seed(5)
    model = TypedSage(typed.edge_types).to(device)
    with torch.no_grad():  # the sizes of its weights
        example = typed.clone().to(device)
        for node_type in example.node_types:
            count = example[node_type].num_nodes
            example[node_type].batch = torch.zeros(count, dtype=torch.long, device=device)
        model(*with_age(example, torch.zeros(1, device=device)))
    return peergraph_pyg.accelerate(model)


def test_typed_nodes(typed: HeteroData, device: torch.device) -> None:
    """As relational models: the time of a seed beside those of the nodes of its tree."""
    loader = NeighborLoader(
        peergraph_pyg.share(typed, device=device),
        [4, 3],
        input_nodes=("user", SEEDS[: 6 * BATCH + 8]),
        input_time=input_times(len(SEEDS)),
        time_attr="time",
        batch_size=BATCH,
        shuffle=True,
    )

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        batch = batch.to(device)
        users = batch["user"]
        out = model(*with_age(batch, users.seed_time))["user"][: users.batch_size]
        return out.square().mean(), users.seed_time

    check(loader, lambda: make_typed_model(typed, device), loss)


@pytest.mark.parametrize("relation", [("user", "buys", "item"), ("user", "knows", "user")])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_typed_links(
    typed: HeteroData, device: torch.device, relation: tuple[str, str, str], mode: str
) -> None:
    loader = LinkNeighborLoader(
        peergraph_pyg.share(typed, device=device),
        [4, 3],
        (relation, typed[relation].edge_index[:, :LINKS]),
        edge_label_time=input_times(LINKS),
        time_attr="time",
        neg_sampling=NegativeSampling(mode, 2),
        batch_size=BATCH,
        shuffle=True,
    )

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        batch = batch.to(device)
        source_type, _, target_type = relation
        if mode == "binary":
            source, target = batch[relation].edge_label_index
            latest = batch[relation].edge_label_time[:BATCH]
        else:
            source, target = batch[source_type].src_index, batch[target_type].dst_neg_index[:, 1]
            latest = batch[source_type].seed_time
        out = model(*with_age(batch, latest))
        value = (out[source_type][source] * out[target_type][target]).sum(1).square().mean()
        trees = [batch[t].batch[e] for t, e in ((source_type, source), (target_type, target))]
        return value, *trees

    check(loader, lambda: make_typed_model(typed, device), loss)


def test_a_loss_that_counts_the_nodes_of_a_tree(plain: Data, device: torch.device) -> None:
    """Padding belongs to one of the seeds, whose number of nodes it changes."""
    loader = NeighborLoader(
        peergraph_pyg.share(plain, device=device),
        FANOUTS,
        input_nodes=SEEDS,
        batch_size=BATCH,
        disjoint=True,
    )
    model = sage(device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        counts = torch.zeros(batch.batch_size, device=device)
        counts = counts.index_add(0, batch.batch, torch.ones_like(batch.batch, dtype=torch.float))
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        return (out.square().sum(1) / counts).mean()

    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))
