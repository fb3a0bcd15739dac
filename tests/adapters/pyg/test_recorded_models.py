"""Plans of models that run on a small graph first: what the model does, and what it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv, TransformerConv

import peergraph_pyg
from peergraph.fullgraph import FullGraphPlan, RecordedModel
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES, EDGES, COLUMNS, CLASSES = 3000, 30_000, 24, 5
ALONE = Group(0, 1, torch.device("cpu"), 60.0)


def random_data() -> Data:
    draw = torch.Generator().manual_seed(3)
    return Data(
        x=torch.randn(NODES, COLUMNS, generator=draw),
        edge_index=torch.randint(NODES, (2, EDGES), generator=draw),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.05,
        train_idx=torch.arange(2000, 2900),
    )


class Norms(nn.Module):
    """Two layers with running statistics and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = GCNConv(COLUMNS, 16), nn.BatchNorm1d(16)
        self.second = GCNConv(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        h = F.dropout(F.relu(self.norm(self.first(x, edge_index))), training=self.training)
        out: Tensor = self.second(h, edge_index)
        return out


def loss_of_mask(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)[data.train_mask]
    return F.cross_entropy(out, data.y[data.train_mask])


def loss_of_ids(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)[data.train_idx]
    return F.cross_entropy(out, data.y[data.train_idx])


def plan_for(data: Any, model: nn.Module, loss: Any, **options: Any) -> FullGraphPlan:
    parts = peergraph_pyg.full_graph(
        data, 4 << 20, model=model, loss=loss, offload=True, group=ALONE, **options
    )
    return peergraph_pyg.partition_of(parts).plan


@pytest.mark.parametrize("loss", [loss_of_mask, loss_of_ids])
def test_the_model_stays_as_it_is(loss: Any) -> None:
    model = peergraph_pyg.accelerate(Norms())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = plan_for(random_data(), model, loss, order="original")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert plan.offload is not None
    assert plan.offload.model.name == "Norms"
    assert not plan.offload.model.assumed
    names = [step.name for step in plan.offload.passes]
    assert names[0] == "forward 1"
    assert "backward 1" in names


def test_selected_rows_have_the_share_of_the_mask() -> None:
    plan = plan_for(random_data(), Norms(), loss_of_mask)
    assert plan.model is not None
    shares = {step.share for step in plan.model.schedule.passes} - {1.0}
    assert all(share == pytest.approx(0.05, abs=0.01) for share in shares)
    assert shares


def test_typed_models_count_rows_of_types() -> None:
    draw = torch.Generator().manual_seed(3)
    data = HeteroData()
    for name, count in (("a", 3000), ("b", 1000)):
        data[name].x = torch.randn(count, COLUMNS, generator=draw)
    data["b"].y = torch.randint(CLASSES, (1000,), generator=draw)
    for source, target, ends in (("a", "b", (3000, 1000)), ("b", "a", (1000, 3000))):
        edges = torch.stack([torch.randint(n, (9000,), generator=draw) for n in ends])
        data[source, "to", target].edge_index = edges

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = ((COLUMNS, 16), (16, CLASSES))
            self.layers = nn.ModuleList(
                HeteroConv({t: SAGEConv(size[0], size[1]) for t in data.edge_types})
                for size in sizes
            )

        def forward(self, x: Any, edges: Any) -> Any:
            x = {name: F.relu(rows) for name, rows in self.layers[0](x, edges).items()}
            return self.layers[1](x, edges)

    def loss(model: Any, parts: Any) -> Tensor:
        out = model(parts.x_dict, parts.edge_index_dict)["b"]
        return F.cross_entropy(out, parts["b"].y)

    plan = plan_for(data, peergraph_pyg.accelerate(Typed()), loss)
    assert plan.model is not None
    shares = sorted(rows.share for rows in plan.model.schedule.rows if rows.is_input)
    assert shares == pytest.approx([0.25, 0.75], abs=0.01)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_matrix_of_edges(is_weighted: bool) -> None:
    data = random_data()
    values = torch.rand(EDGES) if is_weighted else torch.ones(EDGES)
    edges = torch.sparse_coo_tensor(data.edge_index, values, (NODES, NODES)).coalesce()
    data.adj_t = edges.to_sparse_csr()
    del data.edge_index

    def loss(model: Any, parts: Any) -> Tensor:
        out = model(parts.x, parts.adj_t)[parts.train_mask]
        return F.cross_entropy(out, parts.y[parts.train_mask])

    plan = plan_for(data, peergraph_pyg.accelerate(Norms()), loss)
    assert plan.model is not None
    assert len(plan.model.schedule.passes) > 4


def test_types_without_nodes_or_edges() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(50, 4), torch.zeros(0, 4)
    data["a"].y = torch.zeros(50, dtype=torch.int64)
    data["b", "to", "a"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    layer = peergraph_pyg.accelerate(HeteroConv({("b", "to", "a"): SAGEConv(4, 3)}))

    def loss(model: Any, parts: Any) -> Tensor:
        return F.cross_entropy(model(parts.x_dict, parts.edge_index_dict)["a"], parts["a"].y)

    assert plan_for(data, layer, loss).offload is not None


def test_messages_of_edges_are_counted() -> None:
    """Messages of a layer without a kernel take memory for each edge; sums take none."""

    def edge_bytes(layer: nn.Module, accelerates: bool) -> float:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Tensor, edge_index: Any) -> Tensor:
                out: Tensor = self.layer(x, edge_index)
                return out

        model = peergraph_pyg.accelerate(Model()) if accelerates else Model()
        plan = plan_for(random_data(), model, loss_of_mask)
        assert plan.model is not None
        return max(step.edge_bytes for step in plan.model.schedule.passes)

    assert edge_bytes(GCNConv(COLUMNS, CLASSES), True) <= 8
    assert edge_bytes(TransformerConv(COLUMNS, CLASSES), False) >= 4 * CLASSES


def test_errors() -> None:
    with pytest.raises(TypeError, match="loss must be a function of the model"):
        plan_for(random_data(), Norms(), None)
    with pytest.raises(TypeError, match="model must be what"):
        peergraph_pyg.full_graph(random_data(), model=3, group=ALONE)

    def wrong(model: Any, data: Any) -> Tensor:
        raise KeyError("no such rows")

    with pytest.raises(KeyError, match="no such rows"):
        plan_for(random_data(), Norms(), wrong)


def _check_ranks() -> None:
    model, options = Norms(), {"offload": True, "num_chunks": 3}
    data = peergraph_pyg.full_graph(
        random_data(), 8 << 20, model=model, loss=loss_of_mask, device="cpu", **options
    )
    plan = peergraph_pyg.partition_of(data).plan
    assert isinstance(plan.model, RecordedModel)
    shared = peergraph_pyg.share(random_data(), device="cpu")
    stored = peergraph_pyg.full_graph(shared, 8 << 20, model=model, loss=loss_of_mask, **options)
    other = peergraph_pyg.partition_of(stored).plan
    assert isinstance(other.model, RecordedModel)
    assert [p.name for p in other.model.schedule.passes] == [
        p.name for p in plan.model.schedule.passes
    ]
    group = Group.current("cpu")
    assert len(set(group.all_gather(repr(plan.model)))) == 1


def test_ranks_have_one_plan() -> None:
    run_ranks(_check_ranks, 2)
