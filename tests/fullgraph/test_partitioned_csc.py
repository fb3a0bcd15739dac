"""The verbs of a partitioned structure equal those of a plain one, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import AttentionSum, Csc, SumAddSelf, SumLinear, message
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import TOLERANCE, Graph, features, hub_graph, random_graph
from tests.named_case import named_case
from tests.places import cpu_and_gpus

from .gpu_numbers import GPU_NUMBERS, each_place
from .partitioned import leaf, partition, shuffled_layout

MODES = ("halo", "blocks", "in_kernel")

Verb = Callable[[Any, dict[str, Tensor]], Tensor]


@dataclass
class Both:
    """A graph as a plain and as a partitioned structure."""

    graph: Graph
    plain: Csc
    partitioned: PartitionedCsc

    def layout(self, name: str) -> Any:
        """The rows of an operand, by the first letter of its name: source, destination, edge."""
        structure = self.partitioned
        return {
            "u": structure.source_layout,
            "v": structure.destination_layout,
            "e": structure.edge_layout,
        }.get(name[0])


def both(group: Group, graph: Graph, *, same_nodes: bool = False, **options: Any) -> Both:
    destinations = shuffled_layout(group, graph.num_destinations)
    sources = destinations if same_nodes else shuffled_layout(group, graph.num_sources, 1)
    mode = options.pop("mode", None)
    partitioned = partition(graph.edge_index.long(), sources, destinations, **options)
    if mode is not None:
        partitioned.mode = mode
    return Both(graph, graph.csc(), partitioned)


def operands(graph: Graph, dtype: torch.dtype) -> dict[str, Tensor]:
    """Features of sources (u...), destinations (v...) and edges (e...), and parameters (p...)."""

    def make(name: str, *shape: int) -> Tensor:
        rows = [graph.rows(name[0])] if name[0] in "uve" else []
        count, *sizes = [*rows, *shape]
        values = features(count, tuple(sizes), graph.edge_index.device, dtype)
        return (values / 2).detach().requires_grad_()

    shapes: dict[str, tuple[int, ...]] = {
        **{"u": (5,), "u1": (), "u3": (2, 4), "uh": (2,), "u0": (2, 0)},
        **{"v": (5,), "v3": (2, 4), "vh": (2,), "v1": (1,)},
        **{"e": (5,), "e1": (), "eh": (2,), "e3": (2, 4), "ec": (1,)},
        **{
            "p1": (1,),
            "pb": (5,),
            "pw": (3, 5),
            "pW": (8, 5),
            "pa": (2, 4),
            "po": (3,),
            "pO": (8,),
        },
    }
    return {name: make(name, *shape) for name, shape in shapes.items()}


def _verbs() -> Iterator[tuple[str, Verb]]:
    for reduce in ("sum", "mean", "max", "min"):
        for x, e in (("u", "e"), ("u3", "eh"), ("u3", "e1"), ("u3", "e3"), ("u1", "e1")):
            yield (
                f"mul {reduce} {x} {e}",
                lambda s, p, r=reduce, x=x, e=e: s.spmm("mul", r, p[x], p[e]),
            )
        for kind in ("add", "sub", "div"):
            yield f"{kind} {reduce}", lambda s, p, r=reduce, k=kind: s.spmm(k, r, p["u"], p["e"])
        yield f"dot {reduce}", lambda s, p, r=reduce: s.spmm("dot", r, p["u3"], p["e3"])
        for x in ("u", "u1", "u3", "u0"):
            yield f"copy_u {reduce} {x}", lambda s, p, r=reduce, x=x: s.spmm("copy_u", r, p[x])
        yield f"copy_e {reduce}", lambda s, p, r=reduce: s.spmm("copy_e", r, e=p["e3"])
        yield (
            f"linear {reduce} narrow",
            lambda s, p, r=reduce: s.spmm_linear(SumLinear(r, p["u"], [p["pw"]])),
        )
        yield (
            f"linear {reduce} wide",
            lambda s, p, r=reduce: s.spmm_linear(
                SumLinear(r, p["u"], [p["pW"]], p["pW"].flip(0), p["pO"], p["v"])
            ),
        )
        yield (
            f"linear {reduce} with self",
            lambda s, p, r=reduce: s.spmm_linear(
                SumLinear(r, p["u"], [p["pw"]], p["pw"].flip(0), p["po"], p["v"])
            ),
        )
        yield (
            f"linear {reduce} of relations",
            lambda s, p, r=reduce: s.spmm_linear(
                SumLinear(r, p["u"], [p["pw"], p["pw"].flip(0)], None, p["po"], others=[s])
            ),
        )
    for reduce in ("sum", "mean"):
        yield (
            f"{reduce} by constant weights",
            lambda s, p, r=reduce: s.spmm("mul", r, p["u3"], p["eh"].detach()),
        )
        yield (
            f"{reduce} by constant narrow weights",
            lambda s, p, r=reduce: s.spmm("mul", r, p["u"], p["ec"].detach()),
        )
    for target in "uve":
        yield f"sddmm copy {target}", lambda s, p, t=target: s.sddmm("copy", p[t], None, t)
        for other in "uve":
            yield (
                f"sddmm div {target}{other}",
                lambda s, p, t=target, o=other: s.sddmm("div", p[t], p[o], t, o),
            )
    yield "sddmm dot", lambda s, p: s.sddmm("dot", p["u3"], p["v3"])
    yield "sddmm of other widths", lambda s, p: s.sddmm("mul", p["v1"], p["u"], "v", "u")
    yield "transposed copy_u", lambda s, p: s.spmm_transposed("copy_u", p["v3"])
    yield "transposed copy_e", lambda s, p: s.spmm_transposed("copy_e", e=p["e3"])
    yield "transposed mul", lambda s, p: s.spmm_transposed("mul", p["v3"], p["eh"])
    yield "softmax", lambda s, p: s.edge_softmax(p["e3"])
    yield "attention", lambda s, p: s.attention(AttentionSum(p["u3"], p["uh"], p["vh"]))
    yield "attention of sources", lambda s, p: s.attention(AttentionSum(p["u3"], p["uh"]))
    yield (
        "attention v2",
        lambda s, p: s.attention(AttentionSum(p["u3"], None, p["v3"], p["pa"])),
    )
    yield (
        "message",
        lambda s, p: s.reduce_message(
            message("relu(u * w + v) - e", "mean"),
            {"u": p["u"], "v": p["v"], "e": p["e"], "w": p["ec"]},
        ),
    )
    yield "message of edges", lambda s, p: s.reduce_message(message("exp(e)", "max"), {"e": p["e"]})


def _verbs_of_same_nodes() -> Iterator[tuple[str, Verb]]:
    yield "add self", lambda s, p: s.spmm_add_self(SumAddSelf(p["u"], p["p1"]))
    yield (
        "add self with weights",
        lambda s, p: s.spmm_add_self(SumAddSelf(p["u"], p["v1"], p["e1"], p["pb"])),
    )
    yield (
        "add self with constants",
        lambda s, p: s.spmm_add_self(SumAddSelf(p["u"], p["v1"], p["e1"].detach(), p["pb"])),
    )
    yield (
        "linear of own rows",
        lambda s, p: s.spmm_linear(SumLinear("mean", p["u"], [p["pW"]], p["pW"].flip(0), p["pO"])),
    )
    yield (
        "linear of own rows and relations",
        lambda s, p: s.spmm_linear(
            SumLinear("sum", p["u"], [p["pW"], p["pW"] * 2], p["pW"].flip(0), p["pO"], others=[s])
        ),
    )
    yield (
        "attention with loops",
        lambda s, p: s.attention(AttentionSum(p["u3"], p["uh"], p["vh"], self_loops=s.num_sources)),
    )


VERBS = dict(_verbs())
VERBS_OF_SAME_NODES = dict(_verbs_of_same_nodes())
OF_HALF_TYPES = ("copy_u sum u", "copy_u mean u3", "mul sum u3 eh", "linear mean wide", "sddmm dot",
                 "softmax", "attention", "add self", "transposed mul")  # fmt: skip


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, PartitionedTensor) else tensor


def run(verb: Verb, structure: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the result and all gradients, as plain tensors of all rows."""
    out = verb(structure, inputs)
    shape = tuple(out.shape)
    weight = features(shape[0], shape[1:], out.device, out.dtype, 9, grad=False)
    if isinstance(out, PartitionedTensor):
        weight = leaf(weight, out.row_layout)
    (out * weight).sum().backward()
    grads = {name: full(t.grad) for name, t in inputs.items() if t.grad is not None}
    return {"out": full(out.detach()), **grads}


def check_verb(pair: Both, verb: Verb, dtype: torch.dtype = torch.float64) -> None:
    inputs = operands(pair.graph, dtype)
    mine = {
        name: leaf(value, layout)
        if (layout := pair.layout(name))
        else value.detach().requires_grad_()
        for name, value in inputs.items()
    }
    wide = {name: t.detach().double().requires_grad_() for name, t in inputs.items()}
    expected = run(verb, pair.plain, wide)
    actual = run(verb, pair.partitioned, mine)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        with named_case(key):
            assert actual[key].dtype == dtype
            torch.testing.assert_close(actual[key].double(), value, **TOLERANCE[dtype])


def check_all(pair: Both, verbs: dict[str, Verb], failed: list[str], case: object) -> None:
    for name, verb in verbs.items():
        try:
            check_verb(pair, verb)
        except Exception as error:
            failed.append(f"{case}, {name}: {type(error).__name__}: {error}")


def chosen(verbs: dict[str, Verb], mode: int, group: Group) -> dict[str, Verb]:
    """Of one and two CPU ranks each verb takes one of the modes, of three the other two."""
    if group.device.type == "cuda":
        return verbs
    return {
        name: verb
        for number, (name, verb) in enumerate(verbs.items())
        if (number % len(MODES) == mode) == (group.world_size < 3)
    }


def check_verbs() -> list[str]:
    group, failed = Group.current(), []
    for number, mode in enumerate(MODES):
        pair = both(group, random_graph(group.device, 40, 30, 300), mode=mode)
        check_all(pair, chosen(VERBS, number, group), failed, mode)
        square = both(group, random_graph(group.device, 30, 30, 200), same_nodes=True, mode=mode)
        check_all(square, chosen(VERBS_OF_SAME_NODES, number, group), failed, mode)
    return failed


def run_cases(cases: Callable[[], list[str]], ranks: int, device: str) -> None:
    for rank, failed in enumerate(run_ranks(cases, ranks, device=device, timeout_s=280)):
        assert not failed, f"rank {rank}, {len(failed)} cases:\n" + "\n".join(failed)


@each_place(1, 2, 3)
def test_verbs(world_size: int, device_type: str) -> None:
    run_cases(check_verbs, world_size, device_type)


GRAPHS = {
    "a hub": lambda: hub_graph(torch.device("cpu"), 1500),
    "all edges from and to one node": lambda: Graph(torch.zeros(2, 50).long(), 20, 20),
    "no edges": lambda: Graph(torch.zeros(2, 0).long(), 20, 10),
    "fewer nodes than ranks": lambda: Graph(torch.tensor([[0, 1, 1], [0, 0, 0]]), 2, 1),
    "one edge": lambda: Graph(torch.tensor([[7], [3]]), 20, 10),
    "no nodes": lambda: Graph(torch.zeros(2, 0).long(), 0, 0),
}
FEW = ("copy_u sum u", "copy_u mean u3", "copy_u max u", "mul sum u3 eh", "linear mean wide",
       "linear sum narrow", "sddmm div uv", "transposed mul", "softmax", "attention",
       "attention v2", "message")  # fmt: skip


def check_graphs() -> list[str]:
    group, failed = Group.current(), []
    for name, make in GRAPHS.items():
        for ids, grouped, mode in ((torch.int32, True, "halo"), (torch.int64, False, "blocks")):
            graph = make()
            graph.edge_index = graph.edge_index.to(group.device)
            pair = both(group, graph, ids=ids, grouped=grouped, mode=mode)
            check_all(pair, {few: VERBS[few] for few in FEW}, failed, (name, mode))
    return failed


@each_place(1, 3)
def test_graphs_at_the_edge(world_size: int, device_type: str) -> None:
    run_cases(check_graphs, world_size, device_type)


def check_dtypes() -> None:
    group = Group.current()
    for mode in MODES:
        pair = both(group, random_graph(group.device, 30, 30, 200), same_nodes=True, mode=mode)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for name in OF_HALF_TYPES:
                with named_case(mode, dtype, name):
                    check_verb(pair, {**VERBS, **VERBS_OF_SAME_NODES}[name], dtype)


@cpu_and_gpus(2)
def test_dtypes(device_type: str) -> None:
    run_ranks(check_dtypes, 2, device=device_type)


def check_bytes_of_edges(pair: Both) -> None:
    """Sums in stages hold ids of edges only from the first sum of values of edges on."""
    structure = pair.partitioned
    structure.mode = "blocks"
    inputs = operands(pair.graph, torch.float64)
    for name, most in (("", 8), ("e", 16), ("", 16)):
        values = leaf(inputs[name].detach(), structure.edge_layout) if name else None
        x = leaf(inputs["u"], structure.source_layout)
        structure.spmm("mul" if name else "copy_u", "sum", x, values).sum().backward()
        (edges,) = structure._sums._blocks.values()
        unique_tensors: set[Tensor] = set()
        for block in edges.blocks.values():
            transpose = block.transpose()
            tensors = (block.indices, block.edge_ids, transpose.indices, transpose.edge_ids)
            unique_tensors |= {
                tensor for tensor in (*tensors, block._positions) if tensor is not None
            }
        assert sum(tensor.nbytes for tensor in unique_tensors) == most * structure.local.num_edges


def check_counts() -> None:
    group = Group.current()
    graph = random_graph(group.device, 30, 30, 400)
    pair = both(group, graph, same_nodes=True)
    plain, mine = pair.plain, pair.partitioned
    assert torch.equal(full(mine.in_degrees()), plain.in_degrees())
    for _ in range(2):
        degrees = mine.out_degrees()
        assert torch.equal(full(degrees), plain.out_degrees())
        degrees.to_local().zero_()  # The caller's own.
    loops = full(mine.count_self_loops(torch.float32))
    assert torch.equal(loops, plain.count_self_loops(torch.float32))
    assert (mine.num_sources, mine.num_destinations, mine.num_edges) == (30, 30, 400)
    assert mine.supports_attention(leaf(torch.zeros(30, 2, 4), mine.source_layout))
    assert not mine.supports_attention(leaf(torch.zeros(30, 2), mine.source_layout))
    assert repr(mine).startswith("PartitionedCsc(30 sources, 30 destinations, 400 edges, ")
    source, destination = mine.edge_ends()
    assert torch.equal(full(source), graph.edge_index[0])
    assert torch.equal(full(destination), graph.edge_index[1])
    if group.world_size > 1:
        check_bytes_of_edges(pair)


@pytest.mark.parametrize("ranks", [1, 3])
def test_degrees_and_ends(ranks: int) -> None:
    run_ranks(check_counts, ranks)


def check_bits() -> list[bytes]:
    """Results and gradients of rows of random size, as bytes."""
    group, actual = Group.current(), []
    for mode in MODES:
        pair = both(group, random_graph(group.device, 30, 30, 400), same_nodes=True, mode=mode)
        for name in ("copy_u mean u", "copy_u max u", "attention", "mul sum u3 eh"):
            inputs = {
                key: leaf(value, layout) if (layout := pair.layout(key)) else value
                for key, value in operands(pair.graph, torch.float32).items()
            }
            result = run(VERBS[name], pair.partitioned, inputs)
            actual += [value.cpu().numpy().tobytes() for value in result.values()]
    return actual


def compare_bits(ranks: int, device: str) -> None:
    first, second = (run_ranks(check_bits, ranks, device=device) for _ in range(2))
    assert first == second
    assert all(other == first[0] for other in first)


def test_two_runs_are_equal_bit_for_bit() -> None:
    compare_bits(3, "cpu")


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_two_runs_on_gpus_are_equal_bit_for_bit(ranks: int) -> None:
    compare_bits(ranks, "cuda")


def check_errors() -> None:
    group = Group.current()
    pair = both(group, random_graph(group.device, 40, 30, 300))
    csc = pair.partitioned
    inputs = {
        name: leaf(t, layout) if (layout := pair.layout(name)) else t
        for name, t in operands(pair.graph, torch.float32).items()
    }
    x, v, e = inputs["u"], inputs["v"], inputs["e"]
    plain = torch.zeros(40, 5, device=group.device)
    for call, error, text in (
        (lambda: csc.spmm("copy_u", "sum", plain), TypeError, r"x must be a PartitionedTensor"),
        (lambda: csc.spmm("copy_u", "sum", v), ValueError, "x must have the rows of the sources"),
        (lambda: csc.spmm("copy_u", "sum", x.t()), ValueError, "x must have .* in dimension 1"),
        (lambda: csc.spmm("mul", "sum", x, v), ValueError, "e must have the rows of the edges"),
        (lambda: csc.spmm("mul", "sum", x, plain), TypeError, "e must be a PartitionedTensor"),
        (lambda: csc.spmm("copy_v", "sum", x), ValueError, "message must be one of copy_u"),
        (lambda: csc.spmm("copy_u", "most", x), ValueError, "reduce must be one of sum"),
        (lambda: csc.sddmm("add", x, v, "u", "u"), ValueError, "rhs must have the rows of the so"),
        (lambda: csc.sddmm("add", x, v, "u", "w"), ValueError, "rhs_target must be 'u', 'v' or"),
        (
            lambda: csc.spmm_add_self(SumAddSelf(x, inputs["p1"])),
            ValueError,
            "spmm_add_self needs destinations",
        ),
        (
            lambda: csc.spmm_linear(SumLinear("sum", x, [e])),
            TypeError,
            "weights.0. must be a plain tensor",
        ),
        (
            lambda: csc.spmm_linear(SumLinear("sum", x, [inputs["pO"]])),
            ValueError,
            "weights.0. must be",
        ),
        (
            lambda: csc.spmm_linear(SumLinear("sum", x, [inputs["pw"]], backward="atomic")),
            ValueError,
            "adds in no fixed order",
        ),
        (
            lambda: csc.spmm_linear(SumLinear("sum", x, [inputs["pw"]], inputs["pw"], self_x=x)),
            ValueError,
            "self_x must have the rows of the destinations",
        ),
        (
            lambda: csc.attention(AttentionSum(inputs["u3"], inputs["uh"], self_loops=30)),
            ValueError,
            "self_loops needs destinations that are the sources",
        ),
        (
            lambda: csc.spmm("copy_u", "sum", x, backward="atomic"),
            ValueError,
            "adds in no fixed order",
        ),
        (lambda: csc.edge_softmax(x), ValueError, "scores must have the rows of the edges"),
    ):
        with pytest.raises(error, match=text):
            call()
    with pytest.raises(ValueError, match="mode must be one of halo, blocks, in_kernel, got 'ring'"):
        csc.mode = "ring"
    layout = csc.edge_layout
    with pytest.raises(ValueError, match="source_internal_rows must be"):
        PartitionedCsc.from_local_edges(
            csc.source_layout, csc.destination_layout, layout, torch.arange(301), torch.arange(300)
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_bad_arguments(ranks: int) -> None:
    run_ranks(check_errors, ranks)
