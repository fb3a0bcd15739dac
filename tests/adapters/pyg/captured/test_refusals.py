"""What `capture` refuses, and losses that depend on padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GraphSAGE, SAGEConv
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from tests.adapters.captured_results import adam
from tests.adapters.pyg.captured.training import (
    CLASSES,
    FANOUTS,
    NODES,
    WIDTH,
    loss_of,
    make_loader,
    sage,
    untrimmed_loss,
)


class Centred(nn.Module):
    """Subtracts the mean over the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(x - x.mean(0), edge_index)
        return out


def test_losses_that_depend_on_padding(plain: Data, device: torch.device) -> None:
    model, loader = Centred().to(device), make_loader(plain, device)
    training = peergraph_pyg.capture(loader, model, adam(model), untrimmed_loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))
    # A loss of all edges.
    model = sage(device)
    training = peergraph_pyg.capture(
        loader, model, adam(model), lambda m, b: loss_of(m, b) + b.edge_attr.square().mean()
    )
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))
    # A loss of all rows.
    model = sage(device)
    training = peergraph_pyg.capture(
        loader, model, adam(model), lambda m, b: F.cross_entropy(m(b.x, b.edge_index), b.y)
    )
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))


@pytest.mark.parametrize("norm", ["batch_norm", "graph_norm", "pair_norm", "instance_norm"])
def test_norms_over_all_rows(plain: Data, norm: str) -> None:
    model = GraphSAGE(WIDTH, 16, 2, CLASSES, norm=norm)
    loader = make_loader(plain, torch.device("cpu"), num_neighbors=[3, 2])
    with pytest.raises(NotImplementedError, match=r"model\.norms\.0: \w+Norm computes over all"):
        peergraph_pyg.capture(loader, model, adam(model), untrimmed_loss)


class Others(NegativeSampling):
    """Negatives of a user."""


def refused_arguments(plain: Data, kind: str) -> tuple[Any, nn.Module, Any]:
    """Loader, model and optimizer, one of which :func:`capture` refuses."""
    cpu, model = torch.device("cpu"), GraphSAGE(WIDTH, 16, 3, CLASSES)
    if kind == "unshared":
        return NeighborLoader(plain, FANOUTS), model, adam(model)
    if kind == "other":
        return [plain], model, adam(model)
    if kind in ("input_links", "negatives"):
        data = peergraph_pyg.share(plain, device=cpu)
        links = torch.tensor([[0], [NODES if kind == "input_links" else 1]])
        negatives = Others("binary") if kind == "negatives" else None
        loader = LinkNeighborLoader(data, FANOUTS, links, neg_sampling=negatives)
        return loader, model, adam(model)
    options: dict[str, dict[str, Any]] = {
        "transform": {"transform": lambda batch: batch},
        "output": {"transform_sampler_output": lambda out: out},
        "subgraph_type": {"subgraph_type": "induced"},
        "input_nodes": {"input_nodes": torch.tensor([NODES])},
    }
    loader = make_loader(plain, cpu, **options.get(kind, {}))
    if kind == "optimizer":
        return loader, model, torch.optim.LBFGS(model.parameters())
    if kind == "parameters":
        return loader, model, adam(nn.Linear(2, 2))
    if kind == "model":
        return loader, nn.DataParallel(model), adam(model)
    return loader, model, adam(model)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("unshared", TypeError, "is not over data that peergraph_pyg.share"),
        ("other", TypeError, "loader must be a NeighborLoader or a LinkNeighborLoader, got list"),
        ("input_links", IndexError, f"edge_label_index: .* out of range for {NODES} nodes"),
        ("negatives", NotImplementedError, "neg_sampling by Others of the loader"),
        ("transform", NotImplementedError, r"transform \(call it in `loss`\) of the loader"),
        ("output", NotImplementedError, "transform_sampler_output of the loader"),
        ("subgraph_type", NotImplementedError, "subgraph_type of the loader"),
        ("input_nodes", IndexError, f"out of range for {NODES} nodes"),
        ("optimizer", NotImplementedError, "LBFGS cannot be captured"),
        ("parameters", ValueError, "parameters that are not the model's"),
        ("model", NotImplementedError, "DataParallel is not supported"),
    ],
)
def test_refused(plain: Data, kind: str, error: type[Exception], match: str) -> None:
    loader, model, optimizer = refused_arguments(plain, kind)
    with pytest.raises(error, match=match):
        peergraph_pyg.capture(loader, model, optimizer, loss_of)


def test_wrong_calls(plain: Data) -> None:
    cpu = torch.device("cpu")
    loader, model = make_loader(plain, cpu), sage(cpu)
    with pytest.raises(ValueError, match="warmup must be at least 2 steps, got 1"):
        peergraph_pyg.capture(loader, model, adam(model), loss_of, warmup=1)
    for value, error, match in (
        (torch.zeros(2), TypeError, r"a tensor of one number, .* got \[2\]"),
        (None, TypeError, "got NoneType"),
        (torch.zeros(()), ValueError, "does not depend on a parameter"),
    ):
        training = peergraph_pyg.capture(
            loader, model, adam(model), lambda model, batch, value=value: value
        )
        with pytest.raises(error, match=match):
            next(iter(training))
    training = peergraph_pyg.capture(loader, model, adam(model), loss_of)
    first = iter(training)
    next(first)
    with pytest.raises(RuntimeError, match="is being iterated already"):
        next(iter(training))
    first.close()
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(NotImplementedError, match="autocast to float16"),
    ):
        next(iter(training))
    peergraph_pyg.store_of(loader.data).close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(training))


def test_losses_that_depend_on_numbers_of_rows(plain: Data, device: torch.device) -> None:
    """Padding changes them whatever its values are, also where random numbers hide it."""
    loader = make_loader(plain, device)

    def of_nodes(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch) * 100 / batch.num_nodes

    def of_edges(model: nn.Module, batch: Any) -> Tensor:
        degrees = torch.bincount(batch.edge_index[0], minlength=batch.num_nodes)
        return loss_of(model, batch) / degrees.float().mean()

    for loss in (of_nodes, of_edges):
        for dropout in (0.0, 0.5):
            model = sage(device, dropout)
            training = peergraph_pyg.capture(loader, model, adam(model), loss)
            with pytest.raises(ValueError, match="depends on rows of padding.*batch.batch_size"):
                next(iter(training))
            assert all(module.training for module in model.modules())


def test_losses_with_random_numbers_of_seeds(plain: Data, device: torch.device) -> None:
    """They are not refused: without padding, they have other random numbers."""
    loader, model = make_loader(plain, device), sage(device)

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        noise = F.dropout(torch.ones(len(batch.x), 1, device=device))[: batch.batch_size]
        return loss_of(model, batch) * noise.mean()

    assert (
        torch.stack(list(peergraph_pyg.capture(loader, model, adam(model), noisy))).isfinite().all()
    )
