"""`capture` of link prediction: the links, labels and losses of a loop over the loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from peergraph.store import NODE
from peergraph_pyg import ExcludeTargets, HardNegatives, InBatchNegatives
from tests.adapters.captured_results import adam, loop_results, shrink_shapes
from tests.adapters.pyg.captured.training import (
    BATCH,
    FANOUTS,
    NODES,
    TypedSage,
    captured,
    check,
    check_exceeding,
    sage,
    typed_data,
)

LINKS = 6 * BATCH + 9


def links(plain: Data) -> Tensor:
    assert plain.edge_index is not None
    return plain.edge_index[:, 40 : 40 + LINKS]


def labels(kind: str) -> Tensor | None:
    if kind == "classes":
        return torch.arange(LINKS) % 3
    return torch.rand(LINKS, 2, generator=torch.Generator().manual_seed(3))


def options_of(kind: str) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "ratio": {"neg_sampling_ratio": 1.5},
        "classes": {"neg_sampling_ratio": 1.0, "edge_label": labels("classes")},
        "values": {"edge_label": labels("values")},
        "triplet": {"neg_sampling": "triplet"},
        "triplets": {"neg_sampling": NegativeSampling("triplet", 3)},
        "weights": {"neg_sampling": NegativeSampling("binary", 2, dst_weight=torch.rand(NODES))},
        "in batch": {"neg_sampling": InBatchNegatives(2)},
        "hard": {"neg_sampling": HardNegatives(torch.arange(NODES)[:, None] % 50, 1, "binary")},
        "excluded": {
            "neg_sampling_ratio": 1.0,
            "transform_sampler_output": ExcludeTargets(reverse=True),
        },
        "excluded, triplet": {
            "neg_sampling": "triplet",
            "transform_sampler_output": ExcludeTargets(),
        },
    }
    return options[kind]


def make_loader(plain: Data, device: torch.device, **options: Any) -> LinkNeighborLoader:
    """Returns a loader of six full batches and one of 9 links, in a random order."""
    arguments = {"batch_size": BATCH, "shuffle": True, "edge_label_index": links(plain), **options}
    return LinkNeighborLoader(peergraph_pyg.share(plain, device=device), FANOUTS, **arguments)


def ends_of(batch: Any) -> list[Tensor]:
    """The rows of the ends of positives and negatives, as sources and destinations."""
    if "src_index" not in batch:
        return list(batch.edge_label_index)
    source, negative = batch.src_index, batch.dst_neg_index.view(len(batch.src_index), -1)
    repeated = source[:, None].expand_as(negative).flatten()
    destinations = torch.cat([batch.dst_pos_index, negative.flatten()])
    return [torch.cat([source, repeated]), destinations]


def targets_of(batch: Any, size: int) -> Tensor:
    if "src_index" not in batch:
        return batch.edge_label.float()
    is_positive = torch.arange(size, device=batch.x.device) < len(batch.src_index)
    return is_positive.float()


def scores_of(model: nn.Module, batch: Any) -> Tensor:
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    source, destination = ends_of(batch)
    return (out[source] * out[destination]).sum(1)


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, ids of the ends of links, targets, and the positions of the links."""
    batch = batch.to(batch.x.device)  # the links of the loop's batches are on the CPU
    scores = scores_of(model, batch)
    targets = targets_of(batch, len(scores))
    wide = scores.view(-1, *[1] * (targets.dim() - 1)).expand_as(targets)
    ids = torch.stack([batch.n_id[ends] for ends in ends_of(batch)])
    return F.mse_loss(wide.sigmoid(), targets), ids, targets, batch.input_id


@pytest.mark.parametrize(
    "kind",
    [
        *("ratio", "classes", "values", "triplet", "triplets", "weights", "in batch", "hard"),
        *("excluded", "excluded, triplet"),
    ],
)
def test_losses_are_those_of_the_loop(plain: Data, device: torch.device, kind: str) -> None:
    loader = make_loader(plain, device, **options_of(kind))
    training, results = check(loader, lambda: sage(device), loss_of)
    assert len(training) == 7
    # The number of distinct ends differs between batches, and has room in the shape.
    assert training.shape is not None
    ends = {len(ids.unique()) for _, ids, _, _ in results[:6]}
    assert len(ends) > 1
    assert max(ends) < training.shape.rows_per_hop[NODE][0] < 2 * results[0][1].numel()


def test_a_loop_in_order(plain: Data, device: torch.device) -> None:
    """Without shuffling, a smaller last batch, or an `edge_label_index`: all edges of the graph."""
    options: dict[str, Any] = {"shuffle": False, "drop_last": True, "edge_label_index": None}
    loader = make_loader(plain, device, batch_size=2000, neg_sampling_ratio=0.5, **options)
    check(loader, lambda: sage(device), loss_of, epochs=3, num_eager=0)


@pytest.mark.parametrize("kind", ["seeds", "hops"])
def test_batches_that_exceed_the_shape(
    plain: Data, device: torch.device, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Their steps are those of the loop, and counted; the next epoch's shape has room."""
    shrink_shapes(monkeypatch, *((0, 14) if kind == "seeds" else (1, 40)))
    loader = make_loader(plain, device, **options_of("ratio"))
    check_exceeding(loader, lambda: sage(device), loss_of)


def test_negatives_that_change(plain: Data, device: torch.device) -> None:
    """The next epoch has another shape."""
    loader = make_loader(plain, device, **options_of("ratio"))
    settings = loader.neg_sampling, NegativeSampling("triplet", 2)

    def epochs(epoch: Any) -> list[Any]:
        results = []
        torch.manual_seed(9)
        for negatives in settings:
            loader.neg_sampling = negatives
            results += epoch()
        return results

    model = sage(device)
    expected = epochs(lambda: loop_results(loader, model, loss_of, epochs=1))
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    results = epochs(lambda: captured(training, 1))
    assert training.num_eager == 2
    for (_, *others), (_, *of_loop) in zip(results, expected, strict=True):
        assert all(map(torch.equal, others, of_loop))


def test_losses_that_depend_on_padding(plain: Data, device: torch.device) -> None:
    loader, model = make_loader(plain, device, **options_of("ratio")), sage(device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        batch = batch.to(batch.x.device)
        return scores_of(model, batch).mean() + batch.x.mean()

    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))


REVERSE = {
    ("user", "buys", "item"): ("item", "rev_buys", "user"),
    ("user", "knows", "user"): ("user", "knows", "user"),
}


@pytest.mark.parametrize("relation", list(REVERSE))
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_types(device: torch.device, relation: tuple[str, str, str], mode: str) -> None:
    """The ends of links between two types are seeds; the links and their reverses are excluded."""
    data = typed_data()
    data["item", "rev_buys", "user"].edge_index = data["user", "buys", "item"].edge_index.flip(0)
    loader = LinkNeighborLoader(
        peergraph_pyg.share(data, device=device),
        [4, 3],
        (relation, data[relation].edge_index[:, :LINKS]),
        neg_sampling=NegativeSampling(mode, 2),
        transform_sampler_output=ExcludeTargets(relation, reverse=REVERSE[relation]),
        batch_size=BATCH,
        shuffle=True,
    )
    edge_types = data.edge_types

    def make() -> nn.Module:
        torch.manual_seed(5)
        model = TypedSage(edge_types).to(device)
        with torch.no_grad():
            data.to(device)
            model(data.x_dict, data.edge_index_dict)  # the sizes of its weights
        return peergraph_pyg.accelerate(model)

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        batch = batch.to(device)
        out = model(batch.x_dict, batch.edge_index_dict)
        source_type, _, target_type = relation
        if mode == "binary":
            ends = list(batch[relation].edge_label_index)
            targets = batch[relation].edge_label
        else:
            source = batch[source_type].src_index
            negative = batch[target_type].dst_neg_index
            destinations = torch.cat([batch[target_type].dst_pos_index[:, None], negative], 1)
            ends = [source[:, None].expand_as(destinations).flatten(), destinations.flatten()]
            targets = (torch.arange(3, device=device) == 0).float().repeat(BATCH)[: len(ends[0])]
        scores = (out[source_type][ends[0]] * out[target_type][ends[1]]).sum(1)
        types = (source_type, target_type)
        ids = torch.stack([batch[t].n_id[e] for t, e in zip(types, ends, strict=True)])
        return F.binary_cross_entropy_with_logits(scores, targets), ids

    check(loader, make, loss)
