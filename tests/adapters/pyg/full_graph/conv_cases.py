"""PyG's layers on a partitioned graph, by name: Peergraph's eight and as many others as work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.utils import degree, scatter, softmax, to_dense_batch

from .graphs import EDGE_WIDTH, RELATIONS, WIDTH, small_graph
from .ranks import check_model, shared

OUT = 5
Call = Callable[[nn.Module, Any], Tensor]


def plain(model: nn.Module, data: Any) -> Tensor:
    """Features and edges only."""
    out: Tensor = model(data.x, data.edge_index)
    return out


def weighted(model: nn.Module, data: Any) -> Tensor:
    """With a weight for each edge."""
    out: Tensor = model(data.x, data.edge_index, data.edge_weight)
    return out


def with_attributes(model: nn.Module, data: Any) -> Tensor:
    """With features of edges."""
    out: Tensor = model(data.x, data.edge_index, data.edge_attr)
    return out


def typed(model: nn.Module, data: Any) -> Tensor:
    """With the relation of each edge."""
    out: Tensor = model(data.x, data.edge_index, data.edge_type)
    return out


def mlp(width: int = WIDTH, out: int = OUT) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, out))


class _Edges(MessagePassing):
    """A user's layer: parameters, dropout of messages and normalisation by message and update."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(2 * WIDTH + EDGE_WIDTH, OUT)
        self.norm = nn.BatchNorm1d(OUT)
        self.gate = nn.Parameter(torch.ones(1, OUT))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return out

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor, index: Tensor) -> Tensor:
        h = self.norm(self.lin(torch.cat([x_i, x_j - x_i, edge_attr], dim=-1)))
        return h * softmax(h, index)

    def update(self, inputs: Tensor, x: Tensor) -> Tensor:
        return inputs * self.gate + x[:, :1]


class _Scattered(MessagePassing):
    """A user's layer that aggregates by itself, and reads features by the ends of edges."""

    def __init__(self) -> None:
        super().__init__(aggr=None)
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        h = self.lin(x)
        similar = torch.cosine_similarity(h[row], h[col]).unsqueeze(-1)
        norm = degree(col, x.size(0), dtype=x.dtype).clamp(min=1).pow(-0.5)
        out: Tensor = self.propagate(edge_index, x=h, norm=norm.unsqueeze(-1), similar=similar)
        return out

    def message(self, x_j: Tensor, norm_i: Tensor, norm_j: Tensor, similar: Tensor) -> Tensor:
        return x_j * norm_i * norm_j * similar

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return scatter(inputs, index, dim=0, dim_size=dim_size, reduce="max")


class _Embeddings(nn.Module):
    """RGCN with an embedding for each node, as PyG's entity example, and with trained features."""

    def __init__(self) -> None:
        super().__init__()
        nodes = small_graph().num_nodes
        self.convs = nn.ModuleList(
            [
                pyg.RGCNConv(nodes, OUT, RELATIONS),
                pyg.RGCNConv(nodes, OUT, RELATIONS, num_bases=2),
                pyg.FastRGCNConv(nodes, OUT, RELATIONS, num_bases=2),
            ]
        )
        self.features = nn.Parameter(torch.randn(nodes, 4, dtype=torch.float64))
        self.last = pyg.RGCNConv(4, 4, RELATIONS, num_blocks=2)
        self.lin = nn.Linear(WIDTH + 4, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = self.lin(torch.cat([x, self.last(self.features, edge_index, edge_type)], 1))
        return h + sum(conv(None, edge_index, edge_type) for conv in self.convs)


def _degrees() -> Tensor:
    data = small_graph()
    return torch.bincount(torch.bincount(data.edge_index[1], minlength=data.num_nodes))


# Layers that Peergraph computes, with their options.
FUSED: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "SAGE": (lambda: pyg.SAGEConv(WIDTH, OUT), plain),
    "SAGE max": (lambda: pyg.SAGEConv(WIDTH, OUT, aggr="max"), plain),
    "SAGE min": (lambda: pyg.SAGEConv(WIDTH, OUT, aggr="min", bias=False), plain),
    "SAGE sum": (lambda: pyg.SAGEConv(WIDTH, OUT, aggr="sum", normalize=True), plain),
    "SAGE project": (lambda: pyg.SAGEConv(WIDTH, OUT, project=True), plain),
    "SAGE no root": (lambda: pyg.SAGEConv(WIDTH, OUT, root_weight=False), plain),
    "SAGE median": (lambda: pyg.SAGEConv(WIDTH, OUT, aggr="median"), plain),
    "SAGE several": (lambda: pyg.SAGEConv(WIDTH, OUT, aggr=["mean", "max", "std"]), plain),
    "SAGE softmax": (
        lambda: pyg.SAGEConv(WIDTH, OUT, aggr="softmax", aggr_kwargs={"learn": True}),
        plain,
    ),
    "GCN": (lambda: pyg.GCNConv(WIDTH, OUT), plain),
    "GCN wide": (lambda: pyg.GCNConv(WIDTH, 2 * WIDTH), plain),
    "GCN cached": (lambda: pyg.GCNConv(WIDTH, OUT, cached=True), plain),
    "GCN improved": (lambda: pyg.GCNConv(WIDTH, OUT, improved=True), plain),
    "GCN no loops": (lambda: pyg.GCNConv(WIDTH, OUT, add_self_loops=False), plain),
    "GCN no norm": (lambda: pyg.GCNConv(WIDTH, OUT, normalize=False, bias=False), plain),
    "GCN weighted": (lambda: pyg.GCNConv(WIDTH, OUT), weighted),
    "GCN weighted no norm": (lambda: pyg.GCNConv(WIDTH, OUT, normalize=False), weighted),
    "GCN weighted improved": (lambda: pyg.GCNConv(WIDTH, OUT, improved=True), weighted),
    "GIN": (lambda: pyg.GINConv(mlp()), plain),
    "GIN eps": (lambda: pyg.GINConv(mlp(), train_eps=True, eps=0.3), plain),
    "GIN norm": (
        lambda: pyg.GINConv(pyg.MLP([WIDTH, 8, OUT], norm="batch_norm")),
        plain,
    ),
    "GINE": (lambda: pyg.GINEConv(mlp(), train_eps=True, edge_dim=EDGE_WIDTH), with_attributes),
    "Graph": (lambda: pyg.GraphConv(WIDTH, OUT), plain),
    "Graph max": (lambda: pyg.GraphConv(WIDTH, OUT, aggr="max"), plain),
    "Graph weighted": (lambda: pyg.GraphConv(WIDTH, OUT, aggr="mean"), weighted),
    "RGCN": (lambda: pyg.RGCNConv(WIDTH, OUT, RELATIONS), typed),
    "RGCN bases": (lambda: pyg.RGCNConv(WIDTH, OUT, RELATIONS, num_bases=2), typed),
    "RGCN blocks": (lambda: pyg.RGCNConv(WIDTH, 4, RELATIONS, num_blocks=2), typed),
    "RGCN sum": (lambda: pyg.RGCNConv(WIDTH, OUT, RELATIONS, aggr="add", bias=False), typed),
    "GAT": (lambda: pyg.GATConv(WIDTH, OUT), plain),
    "GAT heads": (lambda: pyg.GATConv(WIDTH, OUT, heads=3), plain),
    "GAT mean": (lambda: pyg.GATConv(WIDTH, OUT, heads=2, concat=False), plain),
    "GAT no loops": (lambda: pyg.GATConv(WIDTH, OUT, heads=2, add_self_loops=False), plain),
    "GAT residual": (lambda: pyg.GATConv(WIDTH, OUT, heads=2, residual=True), plain),
    "GAT edges": (lambda: pyg.GATConv(WIDTH, OUT, heads=2, edge_dim=EDGE_WIDTH), with_attributes),
    "GAT edges filled": (
        lambda: pyg.GATConv(WIDTH, OUT, edge_dim=EDGE_WIDTH, fill_value="max"),
        with_attributes,
    ),
    "GATv2": (lambda: pyg.GATv2Conv(WIDTH, OUT, heads=2), plain),
    "GATv2 shared": (lambda: pyg.GATv2Conv(WIDTH, OUT, share_weights=True, concat=False), plain),
    "GATv2 edges": (
        lambda: pyg.GATv2Conv(WIDTH, OUT, heads=2, edge_dim=EDGE_WIDTH, residual=True),
        with_attributes,
    ),
    "GATv2 no loops": (lambda: pyg.GATv2Conv(WIDTH, OUT, add_self_loops=False), plain),
}

# Layers whose messages run through PyG's own code.
OTHERS: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "Transformer": (lambda: pyg.TransformerConv(WIDTH, OUT, heads=2), plain),
    "Transformer edges": (
        lambda: pyg.TransformerConv(WIDTH, OUT, heads=2, edge_dim=EDGE_WIDTH, beta=True),
        with_attributes,
    ),
    "Cheb": (lambda: pyg.ChebConv(WIDTH, OUT, K=3), plain),
    "Cheb weighted": (lambda: pyg.ChebConv(WIDTH, OUT, K=2, normalization="rw"), weighted),
    "SG": (lambda: pyg.SGConv(WIDTH, OUT, K=2), plain),
    "SSG": (lambda: pyg.SSGConv(WIDTH, OUT, alpha=0.1, K=2), plain),
    "TAG": (lambda: pyg.TAGConv(WIDTH, OUT, K=2), weighted),
    "APPNP": (lambda: pyg.APPNP(K=3, alpha=0.1), weighted),
    "ARMA": (lambda: pyg.ARMAConv(WIDTH, OUT, num_stacks=2, num_layers=2), plain),
    "GatedGraph": (lambda: pyg.GatedGraphConv(WIDTH + 1, num_layers=2), plain),
    "ResGated": (lambda: pyg.ResGatedGraphConv(WIDTH, OUT), plain),
    "PNA": (
        lambda: pyg.PNAConv(
            WIDTH,
            OUT,
            aggregators=["mean", "min", "max", "std"],
            scalers=["identity", "amplification", "attenuation"],
            deg=_degrees(),
            edge_dim=EDGE_WIDTH,
        ),
        with_attributes,
    ),
    "Edge": (lambda: pyg.EdgeConv(pyg.MLP([2 * WIDTH, 8, OUT])), plain),
    "NN": (
        lambda: pyg.NNConv(WIDTH, OUT, mlp(EDGE_WIDTH, WIDTH * OUT), aggr="mean"),
        with_attributes,
    ),
    "GEN": (
        lambda: pyg.GENConv(WIDTH, OUT, learn_t=True, edge_dim=EDGE_WIDTH, norm="layer"),
        with_attributes,
    ),
    "GMM": (lambda: pyg.GMMConv(WIDTH, OUT, dim=EDGE_WIDTH, kernel_size=2), with_attributes),
    "FeaSt": (lambda: pyg.FeaStConv(WIDTH, OUT, heads=2), plain),
    "LE": (lambda: pyg.LEConv(WIDTH, OUT), weighted),
    "ClusterGCN": (lambda: pyg.ClusterGCNConv(WIDTH, OUT, diag_lambda=0.1), plain),
    "GCN2": (
        lambda: pyg.GCN2Conv(WIDTH, alpha=0.1, theta=0.5, layer=1),
        lambda m, d: m(d.x, d.x, d.edge_index),
    ),
    "FiLM": (lambda: pyg.FiLMConv(WIDTH, OUT, RELATIONS), typed),
    "RGAT": (lambda: pyg.RGATConv(WIDTH, OUT, RELATIONS, heads=2), typed),
    "FastRGCN": (lambda: pyg.FastRGCNConv(WIDTH, OUT, RELATIONS, num_bases=2), typed),
    "RGCN embeddings": (_Embeddings, typed),
    "EG": (
        lambda: pyg.EGConv(WIDTH, 6, num_heads=2, num_bases=2, aggregators=["symnorm", "max"]),
        plain,
    ),
    "CG": (lambda: pyg.CGConv(WIDTH, EDGE_WIDTH, batch_norm=True), with_attributes),
    "General": (
        lambda: pyg.GeneralConv(WIDTH, OUT, EDGE_WIDTH, attention=True, heads=2),
        with_attributes,
    ),
    "AGNN": (lambda: pyg.AGNNConv(), plain),
    "FA": (lambda: pyg.FAConv(WIDTH, dropout=0.0), lambda m, d: m(d.x, d.x, d.edge_index)),
    "MixHop": (lambda: pyg.MixHopConv(WIDTH, OUT, powers=[0, 1, 2]), plain),
    "Signed": (
        lambda: pyg.SignedConv(WIDTH, OUT, first_aggr=True),
        lambda m, d: m(d.x, d.edge_index, d.edge_index),
    ),
    "PDN": (lambda: pyg.PDNConv(WIDTH, OUT, EDGE_WIDTH, 4), with_attributes),
    "LG": (lambda: pyg.LGConv(), plain),
    "Simple": (lambda: pyg.SimpleConv(aggr="mean", combine_root="self_loop"), plain),
    "AntiSymmetric": (lambda: pyg.AntiSymmetricConv(WIDTH), plain),
    "PointNet": (
        lambda: pyg.PointNetConv(mlp(WIDTH + 3), mlp(OUT)),
        lambda m, d: m(d.x, d.pos, d.edge_index),
    ),
    "PointTransformer": (
        lambda: pyg.PointTransformerConv(WIDTH, OUT),
        lambda m, d: m(d.x, d.pos, d.edge_index),
    ),
    "SuperGAT": (
        lambda: pyg.SuperGATConv(WIDTH, OUT, heads=2, attention_type="MX").eval(),
        plain,
    ),
    "MF": (lambda: pyg.MFConv(WIDTH, OUT, max_degree=4), plain),
    "Dir SAGE": (lambda: pyg.DirGNNConv(pyg.SAGEConv(WIDTH, OUT)), plain),
    "Dir GCN": (
        lambda: pyg.DirGNNConv(pyg.GCNConv(WIDTH, OUT), alpha=0.3, root_weight=False),
        plain,
    ),
    "GPS of linear attention": (
        lambda: pyg.GPSConv(WIDTH, pyg.GINConv(mlp(out=WIDTH)), heads=2, attn_type="performer"),
        plain,
    ),
    "a user's with edges": (_Edges, with_attributes),
    "a user's with scatter": (_Scattered, plain),
    "GCN reversed": (lambda: pyg.GCNConv(WIDTH, OUT, flow="target_to_source"), plain),
    "Graph reversed": (
        lambda: pyg.GraphConv(WIDTH, OUT, flow="target_to_source", aggr="mean"),
        weighted,
    ),
}

# Of layers that are not Peergraph's, those that have one of them within.
WITH_FUSED = ("AntiSymmetric", "Dir SAGE", "Dir GCN", "GPS of linear attention")

WITH_EDGE_GRADIENTS = {weighted: ("x", "edge_weight"), with_attributes: ("x", "edge_attr")}


def _case(make: Callable[[], nn.Module], call: Call, accelerated: bool) -> Callable[[], None]:
    def run() -> None:
        inputs = WITH_EDGE_GRADIENTS.get(call, ("x",))
        check_model(make(), shared(small_graph), call, inputs=inputs, accelerated=accelerated)

    return run


def return_attention() -> None:
    """Weights of attention, with the edges that they belong to."""

    def call(model: nn.Module, data: Any) -> Tensor:
        out, (edge_index, alpha) = model(data.x, data.edge_index, return_attention_weights=True)
        assert edge_index.shape == (2, alpha.shape[0])
        # Each node's weights sum to one.
        sums = scatter(alpha, edge_index[1], 0, dim_size=data.num_nodes)
        with_sums: Tensor = torch.cat([out, sums], dim=1)
        return with_sums

    for make in (pyg.GATConv, pyg.GATv2Conv):
        check_model(make(WIDTH, OUT, heads=2), small_graph(), call)


def inner_products() -> None:
    """A user's decoder: products of features at both ends of every edge."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv(WIDTH, OUT)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            z = self.conv(x, edge_index)
            scores = (z[edge_index[0]] * z[edge_index[1]]).sum(-1).sigmoid()
            sums = scatter(scores, edge_index[1], dim_size=x.size(0))
            return F.relu(z) + sums.unsqueeze(-1)

    check_model(Decoder(), small_graph())


def one_graph() -> None:
    """Norms and pooling by a batch vector that says that all nodes are one graph."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, OUT)
            self.norms = nn.ModuleList([
                pyg.GraphNorm(OUT), pyg.LayerNorm(OUT), pyg.InstanceNorm(OUT), pyg.PairNorm(),
            ])  # fmt: skip
            self.attention = pyg.AttentionalAggregation(nn.Linear(OUT, 1))

        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            x = self.lin(x)
            for norm in self.norms:
                x = x + norm(x, batch)
            pools = (pyg.global_add_pool, pyg.global_mean_pool, pyg.global_max_pool)
            pooled = sum(pool(x, b) for pool in pools for b in (batch, None))
            return x * (pooled + self.attention(x, batch))

    data = small_graph()
    data.batch = torch.zeros(data.num_nodes, dtype=torch.long)
    check_model(Pooled(), data, lambda m, d: m(d.x, d.batch), accelerated=False)


def links() -> None:
    """Link prediction: products at edges and at listed pairs, with labels of both."""
    data = small_graph()
    random = torch.Generator().manual_seed(3)
    negative = torch.randint(data.num_nodes, (2, 40), generator=random)
    labels = torch.cat([torch.ones(data.num_edges), torch.zeros(40)])

    def call(model: nn.Module, d: Any) -> Tensor:
        z = model(d.x, d.edge_index)
        scores = [(z[a] * z[b]).sum(-1) for a, b in (d.edge_index, negative)]
        loss = F.binary_cross_entropy_with_logits(torch.cat(scores), labels)
        rows: Tensor = z * loss
        return rows

    check_model(pyg.GCNConv(WIDTH, OUT), data, call)


def quantiles() -> None:
    """Of few nodes with edges, so that parts and chunks begin with nodes that have none."""
    data = small_graph()
    to = data.edge_index[1]
    data = data.edge_subgraph((to == 0) | (to == 7))
    aggregations: list[Any] = [pyg.QuantileAggregation(0.2, fill_value=-3.0), "mean"]
    for aggr in ("median", aggregations):
        check_model(pyg.SAGEConv(WIDTH, OUT, aggr=aggr), data, accelerated=False)


class _Padded(pyg.aggr.Aggregation):
    """A user's aggregation, whose result depends on how many rows are padded."""

    def forward(self, x: Tensor, index: Tensor, ptr: Any, dim_size: int, dim: int) -> Tensor:
        lists, _ = to_dense_batch(x, index, batch_size=dim_size)
        means: Tensor = lists.mean(1)
        return means


def padded_lists() -> None:
    """Aggregations that pad lists of edges to the longest one, and use the padding.

    Also where no part and no chunk but one has a destination with more than one edge.
    """
    data = small_graph().sort(sort_by_row=False)
    few = data.edge_subgraph((data.edge_index[1] == 7) | (data.edge_index[1] % 4 == 2))
    aggregations: list[Any] = [
        pyg.LSTMAggregation(WIDTH, OUT),
        pyg.GRUAggregation(WIDTH, OUT),
        pyg.LCMAggregation(WIDTH, OUT),
        pyg.aggr.PatchTransformerAggregation(WIDTH, OUT, 2, 4),
        pyg.SortAggregation(3),
        _Padded(),
    ]
    for graph in (data, few):
        for aggr in aggregations:
            check_model(pyg.SimpleConv(aggr=aggr), graph, accelerated=False)
    both = pyg.MultiAggregation([pyg.LSTMAggregation(WIDTH, OUT), "median"])
    check_model(pyg.SimpleConv(aggr=both), data, accelerated=False)


CASES: dict[str, Callable[[], None]] = {
    **{name: _case(*value, accelerated=True) for name, value in FUSED.items()},
    **{name: _case(*value, name in WITH_FUSED) for name, value in OTHERS.items()},
    "return_attention_weights": return_attention,
    "inner products": inner_products,
    "one graph": one_graph,
    "links": links,
    "padded lists": padded_lists,
    "quantiles": quantiles,
}
