"""Sums, extrema, products and attention over edges, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate import attention, edge_softmax, g_sddmm, g_spmm
from peergraph.aggregate.ops.activate import activation_of, gradient_of_activation
from peergraph.aggregate.ops.side_by_side import sums_and_self_rows
from peergraph.aggregate.sparse.joined_edges import KeyedEdges, join_edges, matrix_of_all
from peergraph.aggregate.sparse.joined_rows import group_rows, sizes_with_rows
from tests.aggregate.graphs import Graph, features, hub_graph, random_graph, short_lists
from tests.aggregate.interleaved import SplitSources
from tests.kernels.cases import case

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def graphs(device: torch.device) -> list[Graph]:
    """Rows that a warp reduces, a row that is cut in chunks, and no edge at all."""
    return [random_graph(device), hub_graph(device, 1100), random_graph(device, num_edges=0)]


def with_gradients(out: Tensor, *inputs: Tensor) -> Iterator[Tensor]:
    yield out
    weight = features(out.shape[0], tuple(out.shape[1:]), out.device, seed=9, grad=False)
    yield from torch.autograd.grad(out, inputs, weight.to(out.dtype))


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


@case("spmm_rows", "combine_spmm", "copy_vectors", exact=False)
def narrowed_sums(device: torch.device) -> Iterator[Tensor]:
    """Sums beside the rows' own features, rounded to half precision or not."""
    for graph in graphs(device):
        matrix = graph.csc()
        for columns in (1, 7, 64):
            x = features(graph.num_sources, (columns,), device, grad=False)
            own = features(graph.num_destinations, (8,), device, seed=6, grad=False)
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                yield sums_and_self_rows(matrix, x, True, None, dtype)
                yield sums_and_self_rows(matrix, x, False, own.to(dtype), dtype)


@case("rank_edges", "place_edges")
def grouped_edges(device: torch.device) -> Iterator[Tensor]:
    """Offsets of the columns; rows and ids of their edges, sorted."""
    for graph in graphs(device):
        grouped = graph.csc().grouped_by_column()
        assert grouped.edge_ids is not None
        yield grouped.indptr
        yield grouped.edge_ids.sort().values
        yield grouped.indices[grouped.edge_ids.argsort()]


@case(
    "count_joined_edges", "cut_joined_keys", "number_joined_edges", "select_joined_columns",
    "select_joined_rows", "place_joined_keys", "fill_joined_keys", "place_all_keys",
    "write_table_piece",
)  # fmt: skip
def joined_edges(device: torch.device) -> Iterator[Tensor]:
    """Relations with and without edges, and a row that is cut in chunks."""
    starts = [0, 0, 2600, 2600]
    relations = []
    for i, (count, size) in enumerate([(700, 1300), (0, 1), (2000, 2)]):
        generator = torch.Generator().manual_seed(i)
        ends = [torch.randint(n, (count,), generator=generator) for n in (90, size)]
        edges = torch.stack(ends).to(device)
        relations.append(KeyedEdges(edges, 90, 1300, 90 * i, i % 2, 2))
    relations.append(KeyedEdges(None, 90, 70, 180, 100, 3))
    for fixed in (False, True):
        joined = join_edges(relations, starts, [0, 90, 180, 270], gradients=True, fixed=fixed)
        yield from (joined.rows, joined.row_segments, joined.columns)
        for matrix in (joined.matrix, joined.matrix.transpose()):
            yield from (matrix.indptr, matrix.indices)
        yield torch.tensor([*joined.row_cuts, *joined.row_lasts, *joined.column_cuts])
    matrix = matrix_of_all(device, relations, 2600, 270, edge_ids=True, gradients=True)
    for each in (matrix, matrix.transpose()):
        assert each.edge_ids is not None
        yield from (each.indptr, each.indices, each.edge_ids)


@case("cut_grouped_rows", "place_grouped_rows", "place_grouped_edges", "write_table_piece")
def joined_rows(device: torch.device) -> Iterator[Tensor]:
    """Segments of one group, with and without edges, and one of a group of its own."""
    starts, relations = [0, 900, 1800, 1800, 1804], []
    for i, (count, size) in enumerate([(700, 900), (3000, 900), (0, 0), (600, 4)]):
        generator = torch.Generator().manual_seed(i)
        ends = [torch.randint(n, (count,), generator=generator) for n in (90, max(1, size))]
        relations.append(KeyedEdges(torch.stack(ends).to(device), 90, size, 0, starts[i]))
    groups, strides = [1, 1, 0, 2], [1, 1, 1, 2]
    for fixed in (False, True):
        joined = join_edges(relations, starts, [0, 90], fixed=fixed)
        sizes = sizes_with_rows(joined, groups, 3, strides)
        rows = group_rows(joined, groups, strides, sizes, place_starts=starts[:-1], edges=True)
        assert rows.places is not None
        assert rows.by_destination is not None
        yield from (rows.owners, rows.places)
        for matrix in (rows.sums, rows.by_destination):
            yield from (matrix.indptr, matrix.indices)


@case("activate", "activate_backward", exact=False)
def activations(device: torch.device) -> Iterator[Tensor]:
    """Widths of whole vectors and others, more columns than a block has; aligned and not."""
    seed = torch.tensor([7], device=device)
    for dtype in DTYPES:
        for columns in (1, 8, 13, 64, 2100):
            values = features(30 * columns + 1, (), device, dtype, grad=False)
            bias = features(columns, (), device, dtype, seed=7, grad=False)
            for flat in (values[:-1], values[1:]):
                x = flat.view(30, columns)
                out, bits = activation_of(x, bias, True, 0.3, seed)
                assert bits is not None
                yield from (out, bits.float())
                of_x, of_bias = gradient_of_activation(x, bits, 0.3, True)
                assert of_bias is not None
                yield from (of_x, of_bias)


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


@case("attention_backward_short_lists", "attention_backward", exact=False)
def attention_of_short_lists(device: torch.device) -> Iterator[Tensor]:
    """Rows of one and of two vectors a lane."""
    graph = short_lists(device)
    for heads, depth in ((1, 128), (4, 64)):
        x = features(graph.num_sources, (heads, depth), device)
        left = features(graph.num_sources, (heads,), device, seed=6)
        right = features(graph.num_destinations, (heads,), device, seed=7)
        yield from with_gradients(attention(graph.csc(), x, left, right), x, left, right)
