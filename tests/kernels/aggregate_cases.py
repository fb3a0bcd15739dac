"""Sums, extrema, products and attention over edges, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate import attention, edge_softmax, g_sddmm, g_spmm
from tests.aggregate.graphs import Graph, features, hub_graph, random_graph
from tests.aggregate.interleaved import SplitSources
from tests.kernels.cases import case

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def graphs(device: torch.device) -> list[Graph]:
    """Rows that a warp reduces, a row that is cut in chunks, and no edge at all."""
    return [random_graph(device), hub_graph(device, 1100), random_graph(device, num_edges=0)]


def with_gradients(found: Tensor, *inputs: Tensor) -> Iterator[Tensor]:
    yield found
    weight = features(found.shape[0], tuple(found.shape[1:]), found.device, seed=9, grad=False)
    yield from torch.autograd.grad(found, inputs, weight.to(found.dtype))


@case("spmm_rows", "combine_spmm", "scatter_add_rows", "edge_values", exact=False)
def sums(device: torch.device) -> Iterator[Tensor]:
    for graph in graphs(device):
        for shape, edge_shape in (((1,), ()), ((33,), ()), ((3, 5), (3,)), ((4, 8), (4, 8))):
            x = features(graph.num_sources, shape, device)
            e = features(graph.num_edges, edge_shape, device, seed=6)
            for backward in ("atomic", "transpose"):
                options: dict[str, Any] = {"backward": backward}
                yield from with_gradients(g_spmm(graph.csc(), "copy_u", "mean", x, **options), x)
                yield from with_gradients(g_spmm(graph.csc(), "mul", "sum", x, e, **options), x, e)
                yield from with_gradients(g_spmm(graph.csc(), "add", "sum", x, e, **options), x, e)


@case("copy_to_padded_rows", "spmm_rows", exact=False)
def sums_of_odd_rows(device: torch.device) -> Iterator[Tensor]:
    """Rows that vectors do not divide, each read by many edges."""
    graph = random_graph(device, 30, 40, 2000)
    for dtype in DTYPES:
        for columns in (33, 47, 602):
            x = features(graph.num_sources, (columns,), device, dtype)
            yield from with_gradients(g_spmm(graph.csc(), "copy_u", "sum", x), x)


@case("interleaved_rows", "combine_interleaved", exact=False)
def sums_of_remote_rows(device: torch.device) -> Iterator[Tensor]:
    """Copies, and products with a value and with all values of each edge, of all partitions."""
    for graph in graphs(device):
        split = SplitSources(graph, graph.num_sources // 2)
        for width, partition in ((4, 32), (16, 8), (64, 4), (64, 16), (128, 1), (128, 8), (132, 2)):
            setting = _C.Interleaving(partition=partition, distance=3, warps_per_block=5)
            x = features(graph.num_sources, (width,), device, grad=False)
            yield split.sums(x, None, True, setting)
            yield split.sums(x.double(), None, False, setting)
            for e_columns in (1, width):
                e = features(graph.num_edges, (e_columns,), device, seed=6, grad=False)
                yield split.sums(x, e, True, setting)


@case("spmm_rows", "scatter_add_rows", exact=False)
def sums_of_each_dtype(device: torch.device) -> Iterator[Tensor]:
    for dtype in DTYPES:
        graph = random_graph(device, dtype=torch.int32)
        x = features(graph.num_sources, (7,), device, dtype)
        yield from with_gradients(g_spmm(graph.csc(), "copy_u", "sum", x, backward="atomic"), x)


@case(
    *("minmax_rows", "combine_minmax", "add_to_columns", "gather_by_column", "add_to_edges"),
    exact=False,
)
def extrema(device: torch.device) -> Iterator[Tensor]:
    for graph in graphs(device):
        for shape in ((1,), (33,), (4, 8)):
            x = features(graph.num_sources, shape, device)
            e = features(graph.num_edges, shape, device, seed=6)
            for backward in ("atomic", "transpose"):
                options: dict[str, Any] = {"backward": backward}
                yield from with_gradients(g_spmm(graph.csc(), "copy_u", "max", x, **options), x)
                yield from with_gradients(g_spmm(graph.csc(), "add", "min", x, e, **options), x, e)


@case("edge_values", exact=False)
def values_of_edges(device: torch.device) -> Iterator[Tensor]:
    for graph in graphs(device):
        left = features(graph.num_sources, (3, 5), device)
        right = features(graph.num_destinations, (3, 5), device, seed=6)
        for message in ("dot", "add", "div"):
            yield from with_gradients(g_sddmm(graph.csc(), message, left, right), left, right)


@case("softmax_rows", "softmax_long_rows", exact=False)
def softmax(device: torch.device) -> Iterator[Tensor]:
    for graph in graphs(device):
        for heads in ((), (3,), (40,)):
            scores = features(graph.num_edges, heads, device)
            yield from with_gradients(edge_softmax(graph.csc(), scores), scores)


@case(
    "attention_forward",
    "combine_attention",
    "attention_backward",
    "combine_attention_backward",
    exact=False,
)
def attentions(device: torch.device) -> Iterator[Tensor]:
    """GAT's scores and GATv2's; gradients of sources with atomics and over the transpose."""
    for graph in graphs(device):
        for heads, depth in ((4, 8), (1, 64), (2, 4)):
            x = features(graph.num_sources, (heads, depth), device)
            left = features(graph.num_sources, (heads,), device, seed=6)
            right = features(graph.num_destinations, (heads,), device, seed=7)
            wide = features(graph.num_destinations, (heads, depth), device, seed=7)
            att = features(heads, (depth,), device, seed=8)
            for deterministic in (False, True):
                options: dict[str, Any] = {"deterministic": deterministic}
                gat = attention(graph.csc(), x, left, right, **options)
                yield from with_gradients(gat, x, left, right)
                gatv2 = attention(graph.csc(), x, right=wide, att=att, **options)
                yield from with_gradients(gatv2, x, wide, att)
