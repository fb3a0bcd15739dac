"""The layers over two implementations of `Structure`, and against their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, Structure, layers
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

from .edge_list_structure import EdgeListStructure
from .graphs import assert_same, assert_same_with_gradients, features, random_graph

NODES, IN, OUT, HEADS, EDGES = 30, 6, 4, 2, 200

Layer = Callable[[Structure, Tensor, dict[str, Tensor]], Tensor]


def parameters(device: torch.device, dtype: torch.dtype, num_edges: int) -> dict[str, Tensor]:
    """Everything that a layer could multiply or add, as leaves."""

    def leaf(rows: int, *shape: int) -> Tensor:
        return features(rows, shape, device, dtype, seed=rows + sum(shape))

    return {
        "weight": leaf(OUT, IN),
        "self_weight": leaf(OUT, IN),
        "bias": leaf(OUT),
        "in_bias": leaf(IN),
        "wide_weight": leaf(IN + 3, IN),
        "wide_bias": leaf(IN + 3),
        "edge_weight": leaf(num_edges),
        "edge_features": leaf(num_edges, IN),
        "edge_scores": leaf(num_edges, HEADS),
        "att_source": leaf(HEADS, IN // HEADS),
        "att_destination": leaf(HEADS + 1, IN // HEADS)[:HEADS],
        "eps": leaf(1),
        "bases": leaf(2, IN, OUT),
        "coefficients": leaf(num_edges, 2),
    }


def heads(x: Tensor) -> Tensor:
    return x.view(-1, HEADS, IN // HEADS)


LAYERS: dict[str, Layer] = {
    "sage": lambda s, x, p: layers.sage(
        s, x, p["weight"], self_weight=p["self_weight"], bias=p["bias"]
    ),
    "sage of other destinations": lambda s, x, p: layers.sage(
        s, x, p["weight"], self_weight=p["self_weight"], self_x=2 * x[: s.num_destinations]
    ),
    "sage with edge weights": lambda s, x, p: layers.sage(
        s,
        x,
        p["weight"],
        self_weight=p["self_weight"],
        bias=p["bias"],
        edge_weight=p["edge_weight"],
    ),
    "sage projected first": lambda s, x, p: layers.sage(
        s, x, p["weight"], self_weight=p["self_weight"], bias=p["bias"], project_first=True
    ),
    "sage projected first without bias": lambda s, x, p: layers.sage(
        s, x, p["weight"], self_weight=p["self_weight"], project_first=True
    ),
    "sage with max": lambda s, x, p: layers.sage(
        s, x, p["weight"], reduce="max", self_weight=p["self_weight"]
    ),
    "sage with gcn": lambda s, x, p: layers.sage(s, x, p["weight"], reduce="gcn", bias=p["bias"]),
    "sage with gcn projected first": lambda s, x, p: layers.sage(
        s, x, p["weight"], reduce="gcn", bias=p["bias"], project_first=True
    ),
    "sage with gcn of other destinations": lambda s, x, p: layers.sage(
        s, x, p["weight"], reduce="gcn", self_x=3 * x[: s.num_destinations]
    ),
    "graph": lambda s, x, p: layers.graph(
        s, x, p["weight"], self_weight=p["self_weight"], bias=p["bias"]
    ),
    "graph with edge weights": lambda s, x, p: layers.graph(
        s, x, p["weight"], edge_weight=p["edge_weight"]
    ),
    "rgcn": lambda s, x, p: layers.rgcn(
        [s, s], x, [p["weight"], p["self_weight"]], self_weight=p["weight"], bias=p["bias"]
    ),
    "rgcn by basis": lambda s, x, p: layers.rgcn_by_basis(s, x, p["coefficients"], p["bases"]),
    "gcn": lambda s, x, p: layers.gcn(s, x, bias=p["in_bias"], out_degrees=True),
    "gcn to the left": lambda s, x, p: layers.gcn(
        s, x, norm="left", weight=p["weight"], bias=p["bias"], out_degrees=True
    ),
    "gcn to the right": lambda s, x, p: layers.gcn(
        s, x, norm="right", weight=p["wide_weight"], bias=p["wide_bias"]
    ),
    "gcn to the right with edge weights": lambda s, x, p: layers.gcn(
        s, x, norm="right", edge_weight=p["edge_weight"], out_degrees=True
    ),
    "gcn without norm": lambda s, x, p: layers.gcn(
        s, x, norm="none", weight=p["weight"], bias=p["bias"], edge_weight=p["edge_weight"]
    ),
    "gcn with edge weights": lambda s, x, p: layers.gcn(
        s, x, weight=p["weight"], edge_weight=p["edge_weight"], out_degrees=True
    ),
    "gin": lambda s, x, p: layers.gin(s, x, p["eps"]),
    "gin with a number": lambda s, x, p: layers.gin(s, x, 0.5, reduce="mean"),
    "gin with edge weights": lambda s, x, p: layers.gin(
        s, x, p["eps"], self_x=2 * x[: s.num_destinations], edge_weight=p["edge_weight"]
    ),
    "gine": lambda s, x, p: layers.gine(s, x, p["edge_features"], p["eps"]),
    "gine without self term": lambda s, x, p: layers.gine(s, x, p["edge_features"], reduce="mean"),
    "gat": lambda s, x, p: layers.gat(s, heads(x), p["att_source"], p["att_destination"]),
    "gat of sources": lambda s, x, p: layers.gat(s, heads(x), p["att_source"]),
    "gat with edge scores": lambda s, x, p: layers.gat(
        s,
        heads(x),
        p["att_source"],
        p["att_destination"],
        destination_x=heads(2 * x[: s.num_destinations]),
        edge_scores=p["edge_scores"],
    ),
    "gat with edge weights": lambda s, x, p: layers.gat(
        s, heads(x), p["att_source"], p["att_destination"], edge_weight=p["edge_scores"]
    ),
    "gatv2": lambda s, x, p: layers.gatv2(
        s, heads(x), heads(2 * x[: s.num_destinations]), p["att_source"]
    ),
    "gatv2 with edge weights": lambda s, x, p: layers.gatv2(
        s, heads(x), heads(x[: s.num_destinations]), p["att_source"], edge_weight=p["edge_scores"]
    ),
}
ON_ALL_NODES: dict[str, Layer] = {
    "gcn": lambda s, x, p: layers.gcn(s, x, weight=p["weight"], bias=p["bias"]),
    "gcn with self loops": lambda s, x, p: layers.gcn(
        s, x, weight=p["weight"], bias=p["bias"], add_self_loops=True
    ),
    "gcn with self loops, projected later": lambda s, x, p: layers.gcn(
        s, x, weight=p["wide_weight"], bias=p["wide_bias"], add_self_loops=True
    ),
}


def check(
    layer: Layer,
    device: torch.device,
    dtype: torch.dtype,
    num_destinations: int,
    num_edges: int,
) -> None:
    graph = random_graph(device, NODES, num_destinations, num_edges)
    other = EdgeListStructure(graph.edge_index, num_destinations, NODES)
    results, inputs = [], []
    for structure in (graph.csc(), other):
        x = features(NODES, (IN,), device, dtype)
        tensors = parameters(device, dtype, num_edges)
        out = layer(structure, x, tensors)
        leaves = [x, *tensors.values()]
        used = torch.autograd.grad(out.sum(), leaves, retain_graph=True, allow_unused=True)
        results.append(out)
        inputs.append([t for t, grad in zip(leaves, used, strict=True) if grad is not None])
    assert_same_with_gradients(*results, *inputs)


@named_cases(("num_destinations", "num_edges"), [(NODES, EDGES), (20, EDGES), (20, 500), (20, 0)])
def test_any_structure_serves(num_destinations: int, num_edges: int, device: torch.device) -> None:
    for name, layer in LAYERS.items():
        with named_case(name):
            check(layer, device, torch.float64, num_destinations, num_edges)


@pytest.mark.parametrize("num_edges", [EDGES, 500, 0])  # Edges are weighted, rows are scaled.
def test_any_structure_of_all_nodes_serves(num_edges: int, device: torch.device) -> None:
    for name, layer in ON_ALL_NODES.items():
        with named_case(name):
            check(layer, device, torch.float64, NODES, num_edges)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    graph = random_graph(device, NODES, NODES, EDGES)
    x = features(NODES, (IN,), device, dtype, grad=False) / 4
    inputs = {k: t.detach() / 4 for k, t in parameters(device, dtype, EDGES).items()}
    wide = {k: t.double() for k, t in inputs.items()}
    for name in ("sage", "sage with gcn", "gcn", "gin", "gine", "gat", "gatv2", "rgcn"):
        with named_case(name):
            expected = LAYERS[name](graph.csc(), x.double(), wide)
            actual = LAYERS[name](graph.csc(), x, inputs)
            assert actual.dtype == dtype
            assert_same(actual, expected)


@pytest.mark.parametrize("norm", ["both", "left", "right"])
def test_gcn_is_its_formula(norm: str, device: torch.device) -> None:
    for weighted in (True, False):
        with named_case("weighted", weighted):
            check_gcn_formula(norm, weighted, device)


def check_gcn_formula(norm: str, weighted: bool, device: torch.device) -> None:
    graph = random_graph(device, NODES, 20, EDGES)
    source, destination = graph.edge_index
    x = features(NODES, (IN,), device, torch.float64)
    e = features(EDGES, (), device, torch.float64) if weighted else None
    adjacency = torch.zeros(20, NODES, dtype=torch.float64, device=device)
    values = torch.ones_like(source, dtype=torch.float64) if e is None else e.detach()
    adjacency.index_put_((destination, source), values, accumulate=True)
    counts = torch.zeros_like(adjacency)
    counts.index_put_((destination, source), torch.ones_like(values), accumulate=True)
    into, out_of = counts.sum(1).clamp(min=1), counts.sum(0).clamp(min=1)
    left = {"both": out_of**-0.5, "left": 1 / out_of, "right": torch.ones_like(out_of)}[norm]
    right = {"both": into**-0.5, "left": torch.ones_like(into), "right": 1 / into}[norm]
    expected = right[:, None] * (adjacency @ (left[:, None] * x))
    actual = layers.gcn(graph.csc(), x, norm=norm, out_degrees=True, edge_weight=e)
    assert_same(actual, expected)


def test_gcn_counts_one_self_loop_per_node(device: torch.device) -> None:
    edge_index = torch.tensor([[0, 0, 1, 2, 2], [0, 0, 0, 1, 2]], device=device)
    x = features(3, (IN,), device, torch.float64)
    adjacency = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]], dtype=torch.float64, device=device)
    root = adjacency.sum(1) ** -0.5
    expected = root[:, None] * (adjacency @ (root[:, None] * x))
    actual = layers.gcn(Csc.from_edge_index(edge_index, 3, 3), x, add_self_loops=True)
    assert_same(actual, expected)


def test_gin_and_gine_are_their_formulas(device: torch.device) -> None:
    graph = random_graph(device, NODES, 20, EDGES)
    source, destination = graph.edge_index
    x = features(NODES, (IN,), device, torch.float64, grad=False)
    edges = features(EDGES, (IN,), device, torch.float64, grad=False)
    zeros = torch.zeros(20, IN, dtype=torch.float64, device=device)
    sums = zeros.index_add(0, destination, x[source])
    relu_sums = zeros.index_add(0, destination, (x[source] + edges).relu())
    counts = torch.bincount(destination, minlength=20).clamp(min=1)[:, None]
    for eps in (
        0.0,
        0.3,
        -2,
        torch.tensor([0.3], device=device),
        torch.tensor(-0.5, device=device),
    ):
        factor = eps.double() if isinstance(eps, Tensor) else eps
        with named_case(eps):
            own = x[:20] * (1 + factor)
            assert_same(layers.gin(graph.csc(), x, factor), sums + own)
            assert_same(layers.gin(graph.csc(), x, factor, reduce="mean"), sums / counts + own)
            assert_same(layers.gine(graph.csc(), x, edges, factor), relu_sums + own)


def test_rgcn_by_basis_is_its_formula(device: torch.device) -> None:
    graph = random_graph(device, NODES, 20, EDGES)
    source, destination = graph.edge_index
    x = features(NODES, (IN,), device, torch.float64, grad=False)
    inputs = parameters(device, torch.float64, EDGES)
    coefficients, bases = inputs["coefficients"].detach(), inputs["bases"].detach()
    messages = torch.einsum("eb,ei,bio->eo", coefficients, x[source], bases)
    expected = messages.new_zeros(20, OUT).index_add(0, destination, messages)
    assert_same(layers.rgcn_by_basis(graph.csc(), x, coefficients, bases), expected)


def test_attention_adds_self_loops_in_one_pass_only(device: torch.device) -> None:
    graph = random_graph(device, NODES, NODES, EDGES)
    # Of a depth that one pass can do on a GPU.
    x = features(NODES, (HEADS, 4), device, torch.float64)
    ids = torch.arange(NODES, device=device)
    others = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    looped = EdgeListStructure(torch.cat([others, torch.stack([ids, ids])], 1), NODES, NODES)
    vectors = [features(HEADS, (4,), device, torch.float64) for _ in range(2)]
    expected = layers.gat(looped, x, *vectors)
    assert_same(layers.gat(graph.csc(), x, *vectors, add_self_loops=True), expected)
    with pytest.raises(ValueError, match="add_self_loops needs one pass"):
        layers.gat(looped, x, *vectors, add_self_loops=True)


def test_dropout_of_attention(device: torch.device) -> None:
    graph = random_graph(device, NODES, NODES, EDGES)
    inputs = parameters(device, torch.float64, EDGES)
    left = features(NODES, (HEADS,), device, torch.float64)
    weights = layers.gat_weights(graph.csc(), left, left, dropout=0.5)
    assert 0 < int((weights == 0).sum()) < weights.numel()
    x = heads(features(NODES, (IN,), device, torch.float64))
    assert layers.gat(graph.csc(), x, inputs["att_source"], dropout=0.5).shape == x.shape


@named_cases(
    ("change", "message"),
    [
        ({"norm": "up"}, "norm must be one of both, left, right, none, got 'up'"),
        ({"add_self_loops": True, "norm": "left"}, "add_self_loops goes with norm 'both'"),
        ({}, "norm 'both' by in-degrees needs as many sources as destinations, got 30 and 20"),
    ],
)
def test_bad_arguments_of_gcn(change: dict[str, Any], message: str, device: torch.device) -> None:
    csc = random_graph(device, NODES, 20, EDGES).csc()
    with pytest.raises(ValueError, match=message):
        layers.gcn(csc, features(NODES, (IN,), device), **change)


def test_bad_arguments(device: torch.device) -> None:
    csc = random_graph(device, NODES, 20, EDGES).csc()
    x, weight = features(NODES, (IN,), device), features(OUT, (IN,), device)
    with pytest.raises(ValueError, match="project_first needs reduce 'mean', 'sum' or 'gcn'"):
        layers.sage(csc, x, weight, reduce="max", project_first=True)
    with pytest.raises(ValueError, match="reduce 'gcn' has no self_weight"):
        layers.sage(csc, x, weight, reduce="gcn", self_weight=weight)
    with pytest.raises(ValueError, match="each structure needs a weight, got 1 and 2"):
        layers.rgcn([csc], x, [weight, weight])
    with pytest.raises(ValueError, match=r"bases must be \[bases, in, out\], got \[4, 6\]"):
        layers.rgcn_by_basis(csc, x, features(EDGES, (2,), device), weight)


@named_cases(("message", "backward"), pairwise(["copy_u", "copy_e", "mul"],
                                                           ["transpose", "atomic"]))  # fmt: skip
def test_spmm_transposed(message: str, backward: Any, device: torch.device) -> None:
    if backward == "atomic" and device.type == "cpu" and message == "copy_e":
        pytest.skip("the CPU has no sum of edges by atomics")
    graph = random_graph(device)
    other = EdgeListStructure(graph.edge_index, graph.num_destinations, graph.num_sources)

    def inputs() -> list[Tensor]:
        x = features(graph.num_destinations, (2, 3), device, torch.float64)
        e = features(graph.num_edges, (2,), device, torch.float64, seed=6)
        return [x] if message == "copy_u" else [e] if message == "copy_e" else [x, e]

    def run(structure: Any, operands: list[Tensor], **more: Any) -> Tensor:
        x = None if message == "copy_e" else operands[0]
        e = None if message == "copy_u" else operands[-1]
        result: Tensor = structure.spmm_transposed(message, x, e, **more)
        return result

    ours, theirs = inputs(), inputs()
    actual = run(graph.csc(), ours, backward=backward)
    assert_same_with_gradients(actual, run(other, theirs), ours, theirs)


def test_bad_arguments_of_spmm_transposed(device: torch.device) -> None:
    csc = random_graph(device).csc()
    with pytest.raises(ValueError, match="message must be one of copy_u, copy_e, mul, got 'add'"):
        csc.spmm_transposed("add", features(30, (2,), device))
    with pytest.raises(ValueError, match="message 'copy_u' needs x"):
        csc.spmm_transposed("copy_u")
    with pytest.raises(ValueError, match=r"x must have 30 rows \(destinations\), got \[40, 2\]"):
        csc.spmm_transposed("copy_u", features(40, (2,), device))


def test_uses_of_a_structure_of_unknown_lifetime(device: torch.device) -> None:
    graph = random_graph(device)
    csc = Csc.from_edge_index(graph.edge_index, 30, 40, transient=None)
    assert csc.transient
    assert [csc.count_use() for _ in range(4)] == [0, 1, 2, 3]
    assert csc.transient
    csc.count_use(counted=False)
    assert not csc.transient
    assert csc.count_use() == 4
    assert Csc.from_edge_index(graph.edge_index, 30, 40).count_use() == 0


def test_out_degrees(device: torch.device) -> None:
    graph = random_graph(device)
    csc = graph.csc()
    expected = torch.bincount(graph.edge_index[0], minlength=40)
    assert torch.equal(csc.out_degrees(), expected)
    csc.transpose_tensors()
    assert torch.equal(csc.out_degrees(), expected)
