"""Gradients where only some results of an operation on several relations are used: as DGL's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.function as fn
import torch
from torch import Tensor

from tests.adapters.dgl.served import assert_close, grads, leaf, served, typed_graph
from tests.named_case import named_case, named_cases

MESSAGES = {
    "copy_u": fn.copy_u("h", "m"),
    "copy_e": fn.copy_e("w", "m"),
    "u_mul_e": fn.u_mul_e("h", "w", "m"),
    "u_add_v": fn.u_add_v("h", "h", "m"),
    "e_sub_v": fn.e_sub_v("w", "h", "m"),
}


def with_data(g: Any, device: torch.device) -> tuple[Any, list[Tensor]]:
    """The graph on the device with leaves as data, and the leaves."""
    torch.manual_seed(0)
    g = served(g, device)
    leaves = []
    for ntype in g.ntypes:
        leaves.append(leaf(torch.randn(g.num_nodes(ntype), 3), device))
        g.nodes[ntype].data["h"] = leaves[-1]
    for etype in g.canonical_etypes:
        leaves.append(leaf(torch.randn(g.num_edges(etype), 3), device))
        g.edges[etype].data["w"] = leaves[-1]
    return g, leaves


def compare(run: Callable[[Any], Tensor], device: torch.device) -> None:
    """Results and gradients of a function of a graph, ours and DGL's."""
    plain = typed_graph()
    torch.manual_seed(0)
    wanted_leaves = []
    for frames, name in ((plain._node_frames, "h"), (plain._edge_frames, "w")):
        for frame in frames:
            wanted_leaves.append(torch.randn(frame.num_rows, 3, requires_grad=True))
            frame[name] = wanted_leaves[-1]
    expected = run(plain)
    g, leaves = with_data(typed_graph(), device)
    got = run(g)
    assert_close(got, expected)
    for ours, theirs in zip(grads(got, leaves), grads(expected, wanted_leaves), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(norm_by: str, device: torch.device) -> None:
    def run(g: Any, used: int) -> Tensor:
        scores = {etype: g.edges[etype].data["w"] for etype in g.canonical_etypes}
        weights = dgl.ops.edge_softmax(g, scores, norm_by=norm_by)
        result: Tensor = weights[g.canonical_etypes[used]]
        return result

    for used in (0, 1, 3):
        with named_case("relation", used):
            compare(partial(run, used=used), device)


@named_cases("message", ["copy_u", "copy_e", "u_mul_e", "u_add_v"])
def test_update_all(message: str, device: torch.device) -> None:
    def run(g: Any, used: str) -> Tensor:
        g.update_all(MESSAGES[message], fn.sum("m", "out"))
        result: Tensor = g.nodes[used].data["out"]
        return result

    for used in ("user", "game"):
        with named_case(used):
            compare(partial(run, used=used), device)


@named_cases("message", list(MESSAGES))
def test_apply_edges(message: str, device: torch.device) -> None:
    def run(g: Any, used: int) -> Tensor:
        g.apply_edges(MESSAGES[message])
        result: Tensor = g.edges[g.canonical_etypes[used]].data["m"]
        return result

    for used in (0, 1, 3):
        with named_case("relation", used):
            compare(partial(run, used=used), device)
