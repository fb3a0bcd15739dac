"""Random programs on a graph: what they read, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any, NamedTuple

import dgl
import dgl.function as fn
import torch
from dgl.nn.functional import edge_softmax
from torch import Tensor

from .graphs import Draw, features_of, ids, numbers, one_of

Values = dict[str, Tensor]
Run = Callable[[Any, Values], list[Tensor]]


class Program(NamedTuple):
    """A program.

    Args:
        name: says what it does.
        values: what it reads. The first letter of a name says of what: sources (u), destinations
            (v) or edges (e) of `etype`; nodes of the source type of relation N in ``wN``.
        etype: the type of edges.
        run: takes a graph and the values, and returns results.
        has_extrema: whether it takes maxima or minima.
    """

    name: str
    values: Values
    etype: Any
    run: Run
    has_extrema: bool = False


_REDUCTIONS = ("sum", "mean", "max", "min")
_EXTREMA = ("max", "min")
_SHAPES = [(), (1,), (4,), (2, 3), (2, 1), (2, 3, 2)]
_PAIRS = [((4,), (4,)), ((2, 3), (2, 3)), ((2, 3), (2, 1)), ((2, 1), (2, 3)), ((4,), (1,)),
          ((1,), (4,)), ((2, 3), (1, 3)), ((), ()), ((2, 3), (3,)), ((1, 3), (2, 1))]  # fmt: skip
_BINARY = [
    f"{left}_{op}_{right}"
    for (left, right), op in product(permutations("uve", 2), ("add", "sub", "mul", "div", "dot"))
]


def _with_data(g: Any, etype: Any, values: Values) -> Any:
    g = g.local_var()
    frames = {"u": g.srcnodes[etype[0]], "v": g.dstnodes[etype[2]], "e": g.edges[etype]}
    for name, value in values.items():
        frames[name[0]].data[name] = value
    return g


def _message(draw: Draw, g: Any, etype: Any) -> tuple[str, Any, Values]:
    """Returns a built-in message, and the features that it reads."""
    name = one_of(draw, "copy_u", "copy_e", *_BINARY)
    if name.startswith("copy"):
        end = name[-1]
        x = features_of(draw, g, end, etype, one_of(draw, *_SHAPES))
        return name, getattr(fn, name)(f"{end}1", "m"), {f"{end}1": x}
    left, op, right = name.split("_")
    shapes = one_of(draw, *_PAIRS)
    if op == "dot":
        shapes = (shapes[0] or (4,),) * 2
    values = {
        f"{end}{i}": features_of(draw, g, end, etype, shape)
        for i, (end, shape) in enumerate(zip((left, right), shapes, strict=True))
    }
    return name, getattr(fn, name)(*values, "m"), values


def _sums(draw: Draw, g: Any, etype: Any) -> Program:
    name, message, values = _message(draw, g, etype)
    reduction = one_of(draw, *_REDUCTIONS)

    def run(g: Any, values: Values) -> list[Tensor]:
        g = _with_data(g, etype, values)
        g.update_all(message, getattr(fn, reduction)("m", "out"), etype=etype)
        return [g.dstnodes[etype[2]].data["out"]]

    return Program(f"{reduction} of {name}", values, etype, run, reduction in _EXTREMA)


def _edge_values(draw: Draw, g: Any, etype: Any) -> Program:
    name, message, values = _message(draw, g, etype)

    def run(g: Any, values: Values) -> list[Tensor]:
        g = _with_data(g, etype, values)
        g.apply_edges(message, etype=etype)
        return [g.edges[etype].data["m"]]

    return Program(f"edges' {name}", values, etype, run)


def _own_functions(draw: Draw, g: Any, etype: Any) -> Program:
    values = {f"{end}1": features_of(draw, g, end, etype, (3,)) for end in "uve"}
    message, reduction = int(draw.integers(3)), int(draw.integers(3))

    def send(edges: Any) -> dict[str, Tensor]:
        u, v, e = edges.src["u1"], edges.dst["v1"], edges.data["e1"]
        return {"m": (u * v + e, torch.cat([u, v], 1).tanh(), u.sum(1, keepdim=True) * e)[message]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {
            "out": (m.sum(1), m.square().mean(1), (m * m.mean(1, keepdim=True)).sum(1))[reduction]
        }

    def run(g: Any, values: Values) -> list[Tensor]:
        g = _with_data(g, etype, values)
        g.update_all(send, reduce, etype=etype)
        g.apply_edges(send, etype=etype)
        return [g.dstnodes[etype[2]].data["out"], g.edges[etype].data["m"]]

    return Program(f"own functions {message} {reduction}", values, etype, run)


def _softmax(draw: Draw, g: Any, etype: Any) -> Program:
    values = {"e1": features_of(draw, g, "e", etype, one_of(draw, (1,), (2, 1), (3,), ()))}
    side = one_of(draw, "dst", "src")

    def run(g: Any, values: Values) -> list[Tensor]:
        return [edge_softmax(_relation(g, etype), values["e1"], norm_by=side)]

    return Program(f"softmax by {side}", values, etype, run)


def _relation(g: Any, etype: Any) -> Any:
    return g[etype] if len(g.canonical_etypes) > 1 else g


def _multi_update(draw: Draw, g: Any, etype: Any) -> Program:
    values = {
        f"w{i}": numbers(draw, g.num_src_nodes(each[0]), 3)
        for i, each in enumerate(g.canonical_etypes)
    }
    across = one_of(draw, "sum", "min", "max", "mean", "stack")
    reduction = one_of(draw, *_REDUCTIONS)

    def run(g: Any, values: Values) -> list[Tensor]:
        g, functions = g.local_var(), {}
        for i, each in enumerate(g.canonical_etypes):
            g.srcnodes[each[0]].data[f"w{i}"] = values[f"w{i}"]
            functions[each] = fn.copy_u(f"w{i}", "m"), getattr(fn, reduction)("m", "out")
        g.multi_update_all(functions, across)
        frames = [g.dstnodes[node_type].data for node_type in g.dsttypes]
        return [frame["out"] for frame in frames if "out" in frame]

    name = f"{across} over relations of {reduction}"
    return Program(name, values, etype, run, {across, reduction} & {*_EXTREMA} != set())


def _pull_push_send(draw: Draw, g: Any, etype: Any) -> Program:
    name, message, values = _message(draw, g, etype)
    method = one_of(draw, "pull", "push", "send_and_recv")
    counts = g.num_dst_nodes(etype[2]), g.num_src_nodes(etype[0]), g.num_edges(etype)
    bound = dict(zip(("pull", "push", "send_and_recv"), counts, strict=True))[method]
    chosen = ids(draw, bound, int(one_of(draw, 0, 1, 3))).unique().to(g.idtype)

    def run(g: Any, values: Values) -> list[Tensor]:
        g = _with_data(g, etype, values)
        getattr(g, method)(chosen.to(g.device), message, fn.sum("m", "out"), etype=etype)
        frame = g.dstnodes[etype[2]].data
        return [frame["out"]] if "out" in frame else []

    return Program(f"{method} {name}", values, etype, run)


def _queries(draw: Draw, g: Any, etype: Any) -> Program:
    edges = ids(draw, g.num_edges(etype), 4).to(g.idtype)
    nodes = ids(draw, g.num_dst_nodes(etype[2]), 3).to(g.idtype)

    def run(g: Any, values: Values) -> list[Tensor]:
        v, e = nodes.to(g.device), edges.to(g.device)
        return [
            *(g.in_degrees(etype=etype), g.out_degrees(etype=etype), g.in_degrees(v, etype=etype)),
            *g.edges(form="all", order="eid", etype=etype),
            *g.find_edges(e, etype=etype),
            *g.in_edges(v, form="all", etype=etype),
            g.adj_external(etype=etype).to_dense(),
        ]

    return Program("queries", {}, etype, run)


def _readouts(draw: Draw, g: Any, etype: Any) -> Program:
    node_type = g.ntypes[0] if g.is_block else etype[0]
    end = "v" if g.is_block else "u"
    etype = etype if not g.is_block else g.canonical_etypes[0]
    values = {"e1": features_of(draw, g, "e", etype, one_of(draw, (3,), (), (2, 2)))}
    values[f"{end}1"] = features_of(draw, g, end, etype, (3,))
    op = one_of(draw, *_REDUCTIONS)

    def run(g: Any, values: Values) -> list[Tensor]:
        g = g.local_var()
        g.nodes[node_type].data["x"], g.edges[etype].data["x"] = values[f"{end}1"], values["e1"]
        total = dgl.readout_nodes(g, "x", op=op, ntype=node_type)
        return [
            *(total, dgl.readout_edges(g, "x", op=op, etype=etype)),
            dgl.broadcast_nodes(g, total, ntype=node_type),
            dgl.softmax_nodes(g, "x", ntype=node_type),
        ]

    return Program(f"readout by {op}", values, etype, run, op in _EXTREMA)


def _attention(draw: Draw, g: Any, etype: Any) -> Program:
    values = {"u1": features_of(draw, g, "u", etype, (3,))}
    values["e1"] = features_of(draw, g, "e", etype, (1,))
    reduction = one_of(draw, *_REDUCTIONS)

    def run(g: Any, values: Values) -> list[Tensor]:
        g = _with_data(g, etype, values)
        g.update_all(fn.u_mul_e("u1", "e1", "m"), fn.sum("m", "h"), etype=etype)
        g.apply_edges(fn.u_dot_v("u1", "h", "score"), etype=etype)
        g.edges[etype].data["a"] = edge_softmax(_relation(g, etype), g.edges[etype].data["score"])
        g.update_all(fn.u_mul_e("u1", "a", "m"), getattr(fn, reduction)("m", "out"), etype=etype)
        return [g.dstnodes[etype[2]].data["out"]]

    return Program(f"attention by {reduction}", values, etype, run, reduction in _EXTREMA)


def _reversed(draw: Draw, g: Any, etype: Any) -> Program:
    values = {"e1": features_of(draw, g, "e", etype, (2,))}

    def run(g: Any, values: Values) -> list[Tensor]:
        g = g.local_var()
        g.edges[etype].data["e1"] = values["e1"]
        back = dgl.reverse(g, copy_edata=True)
        etype_back = (etype[2], etype[1], etype[0])
        back.update_all(fn.copy_e("e1", "m"), fn.mean("m", "out"), etype=etype_back)
        return [back.nodes[etype[0]].data["out"]]

    return Program("reversed", values, etype, run)


_KINDS = [_sums, _sums, _sums, _edge_values, _own_functions, _softmax, _multi_update,
          _pull_push_send, _queries, _readouts, _attention, _reversed]  # fmt: skip


def random_program(draw: Draw, g: Any) -> Program:
    """Returns a program that runs on a graph, if DGL can run it."""
    etype = one_of(draw, *g.canonical_etypes)
    program: Program = one_of(draw, *_KINDS)(draw, g, etype)
    if draw.random() < 0.3:
        values = {name: value.float() for name, value in program.values.items()}
        program = program._replace(values=values)
    return program


def owners(g: Any, program: Program) -> Iterator[tuple[str, Any]]:
    """Yields the names of a program's values, and the data of the graph that they belong to."""
    for name in program.values:
        if name[0] == "w":
            yield name, g.nodes[g.canonical_etypes[int(name[1:])][0]].data
        elif name[0] == "e":
            yield name, g.edges[program.etype].data
        else:
            yield name, g.nodes[program.etype[0 if name[0] == "u" else 2]].data
