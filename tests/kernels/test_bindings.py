"""Functions of the compiled module compare sizes and dtypes of tensors with what they access."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.torch_functions import (
    adopt_tensors,
    dtype_number,
    torch_functions,
)
from peergraph.memory.table.table_view import dense_view
from tests.named_case import named_case, named_cases

Tensors = dict[str, Tensor]
Call = Callable[[Tensors], Any]

LAUNCH = _C.Launch(device=-1, stream=0, num_threads=1)
OTHER = {torch.int64: torch.float32, torch.int32: torch.float32, torch.float32: torch.int64}
# They take addresses, views that are made of them, or no memory at all; crc32c and is_arange read
# any tensor, check_ids reads the ids of its list.
WITHOUT_SIZES = """
    activation_parts alignment_bits ask_for_huge_pages attention_fits await_round bytes_as_dlpack
    call_in_main_thread check_ids crc32c is_arange limit_vector_bytes make_huge_pages map_shared
    populate_pages post_round remote_rows_scratch signal_flag unmap_shared vector_bytes
    wait_for_flag
"""
# Rows of tables have any dtype.
ANY_DTYPE = {
    "gather": {"out"},
    "find_large_products": {"queries"},
    "round_queries": {"values"},
    "scatter": {"values"},
    "stage": {"buffer", "out"},
    "sort_bucket": {"records"},
    "partition_edges": {"records"},
    "count_content_pieces": {"tensor"},
}
CASES: dict[str, tuple[Tensors, Call, frozenset[str]]] = {}


def case(any_size: str = "", **tensors: Tensor) -> Callable[[Call], Call]:
    """Adds a call that is right with these tensors.

    Args:
        any_size: names of tensors whose size says how much there is to do; `indptr` is one.
    """

    def add(call: Call) -> Call:
        CASES[call.__name__] = tensors, call, frozenset(any_size.split())
        return call

    return add


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def narrow(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def reals(*shape: int) -> Tensor:
    return torch.ones(shape)


def halves(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def bits(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


buffers: list[Tensor] = []


def allocate(num_bytes: int) -> int:
    buffers.append(torch.empty(max(num_bytes, 1), dtype=torch.uint8))
    return buffers[-1].data_ptr()


# Two destinations, four sources, five edges.
EDGES: Tensors = {
    "indptr": ints(0, 3, 5),
    "indices": ints(0, 1, 3, 0, 2),
    "edge_ids": ints(4, 3, 2, 1, 0),
}


def matrix(t: Tensors) -> _C.CsrMatrix:
    return _C.CsrMatrix(
        indptr=t["indptr"], indices=t["indices"], edge_ids=t.get("edge_ids"), num_columns=4,
        max_chunks=0, schedule=_C.Schedule(),
    )  # fmt: skip


def operands(t: Tensors, message: str = "mul", columns: int = 6, e_columns: int = 2) -> _C.Operands:
    return _C.Operands(
        message=_C.Message.__members__[message], x=t.get("x"), e=t.get("e"), columns=columns,
        e_columns=e_columns,
    )  # fmt: skip


@case(**EDGES, x=reals(4, 6), e=reals(5, 2), out=reals(2, 6))
def spmm(t: Tensors) -> None:
    _C.spmm(matrix(t), operands(t), mean=False, accumulate=False, out=t["out"], launch=LAUNCH,
            allocate=allocate)  # fmt: skip


@case(indptr=ints(0, 3, 5), indices=ints(0, 1, 3, 0, 2), x=reals(4, 6), out=reals(2, 6))
def spmm_of_copies(t: Tensors) -> None:
    _C.spmm(matrix(t), operands(t, "copy_u", 6, 1), mean=True, accumulate=True, out=t["out"],
            launch=LAUNCH, allocate=allocate)  # fmt: skip


@case(**EDGES, addresses=ints(0, 0, 0, 0), e=reals(5, 2))
def spmm_by_address(t: Tensors) -> None:
    rows = reals(4, 6)
    addresses = t["addresses"] + rows.data_ptr() + 24 * torch.arange(len(t["addresses"]))
    by_address = _C.Operands(
        message=_C.Message.mul, addresses=addresses.to(t["addresses"].dtype),
        address_bits=rows.data_ptr() | 24, e=t["e"], columns=6, e_columns=2, leases=[],
    )  # fmt: skip
    _C.spmm(matrix(t), by_address, mean=False, accumulate=False, out=reals(2, 6), launch=LAUNCH,
            allocate=allocate)  # fmt: skip


@case(**EDGES, x=reals(4, 6), e=reals(5, 2), out=reals(2, 6))
def interleaved_spmm(t: Tensors) -> None:
    _C.interleaved_spmm(
        matrix(t), operands(t), matrix(t), operands(t), mean=False,
        interleaving=_C.Interleaving(), out=t["out"], launch=LAUNCH, allocate=allocate,
    )  # fmt: skip


@case(**EDGES, x=reals(2, 6), e=reals(5, 2), out=reals(4, 6), counts=narrow(2, 1, 1, 1))
def spmm_transposed(t: Tensors) -> None:
    _C.spmm_transposed(matrix(t), operands(t), dtype=_C.DType.float32, counts=t["counts"],
                       out=t["out"], launch=LAUNCH, allocate=allocate)  # fmt: skip


@case(**EDGES, x=reals(4, 6), e=reals(5, 2), out=reals(2, 6), arg=torch.zeros(2, 6).int())
def spmm_minmax(t: Tensors) -> None:
    _C.spmm_minmax(matrix(t), operands(t), minimum=True, out=t["out"], arg=t["arg"],
                   launch=LAUNCH, allocate=allocate)  # fmt: skip


@case(
    "indices edge_ids", **EDGES, x=reals(4, 6), e=reals(5, 2), grad=reals(2, 6),
    arg=torch.zeros(2, 6).int(), grad_x=reals(4, 6), grad_e=reals(5, 2),
)  # fmt: skip
def spmm_minmax_backward(t: Tensors) -> None:
    _C.spmm_minmax_backward(
        matrix(t), operands(t), arg=t["arg"], grad=t["grad"], grad_x=t["grad_x"],
        grad_e=t["grad_e"], transpose=None, launch=LAUNCH,
    )  # fmt: skip


@case(**EDGES, left=reals(4, 6), right=reals(2, 6), out=reals(5, 2))
def sddmm(t: Tensors) -> None:
    _C.sddmm(
        matrix(t), left=t["left"], left_target=_C.Target.u, right=t["right"],
        right_target=_C.Target.v, message=_C.Message.mul, depth=3, out=t["out"], launch=LAUNCH,
    )  # fmt: skip


@case(**EDGES, values=reals(5, 2), grad=reals(5, 2), out=reals(5, 2))
def edge_softmax(t: Tensors) -> None:
    _C.edge_softmax(matrix(t), values=t["values"], grad=t["grad"], out=t["out"], launch=LAUNCH,
                    allocate=allocate)  # fmt: skip


def attention_of(t: Tensors) -> _C.Attention:
    return _C.Attention(matrix=matrix(t), x=t["x"], left=t.get("left"), right=t.get("right"),
                        att=t.get("att"), row_cuts=t.get("row_cuts"),
                        column_cuts=t.get("column_cuts"), loops=2, slope=0.2)  # fmt: skip


ATTENTION = {"indptr": ints(0, 3, 5), "indices": ints(0, 1, 3, 0, 2), "x": reals(4, 2, 3)}


@case(**ATTENTION, left=reals(4, 2), right=reals(2, 2), out=reals(2, 2, 3), lse=reals(2, 2))
def attention(t: Tensors) -> None:
    _C.attention(attention_of(t), out=t["out"], lse=t["lse"], launch=LAUNCH, allocate=allocate)


@case(
    **ATTENTION, right=reals(2, 2, 3), att=reals(2, 3), grad=reals(2, 2, 3), lse=reals(2, 2),
    delta=reals(2, 2), grad_right=reals(2, 2, 3), grad_att=reals(2, 2, 3),
)  # fmt: skip
def attention_backward(t: Tensors) -> None:
    none = reals(0)
    _C.attention_backward(
        attention_of(t), grad=t["grad"], lse=t["lse"], delta=t["delta"], grad_x=none,
        grad_left=none, grad_right=t["grad_right"], grad_att=t["grad_att"], transpose=None,
        launch=LAUNCH, allocate=allocate,
    )  # fmt: skip


@case(
    "indices", **ATTENTION, left=reals(4, 2), right=reals(2, 2), grad=reals(2, 2, 3),
    lse=reals(2, 2), delta=reals(2, 2), grad_x=reals(4, 2, 3), grad_left=reals(4, 2),
)  # fmt: skip
def attention_backward_of_sources(t: Tensors) -> None:
    indptr, indices = ints(0, 2, 3, 4, 5), ints(0, 1, 0, 1, 0)
    by_source = _C.CsrMatrix(indptr=indptr, indices=indices, edge_ids=None, num_columns=2,
                             max_chunks=0, schedule=_C.Schedule())  # fmt: skip
    none = reals(0)
    _C.attention_backward(
        attention_of(t), grad=t["grad"], lse=t["lse"], delta=t["delta"], grad_x=t["grad_x"],
        grad_left=t["grad_left"], grad_right=none, grad_att=none, transpose=by_source,
        launch=LAUNCH, allocate=allocate,
    )  # fmt: skip


@case(
    indptr=ints(0, 3, 5), indices=narrow(0, 1, 3, 0, 2), by_column=ints(0, 0, 0, 0, 0),
    rows=narrow(0, 0, 0, 0, 0), positions=ints(0, 0, 0, 0, 0),
)  # fmt: skip
def transpose(t: Tensors) -> None:
    _C.transpose(matrix(t), indptr=t["by_column"], indices=t["rows"], positions=t["positions"])


@case("keys", keys=ints(0, 1, 2), offsets=ints(*[0] * 11))
def indptr_from_sorted(t: Tensors) -> None:
    _C.indptr_from_sorted(t["keys"], num_keys=10, indptr=t["offsets"])


@case(**EDGES, counts=narrow(0, 0, 0, 0), ranks=narrow(0, 0, 0, 0, 0))
def rank_edges(t: Tensors) -> None:
    _C.rank_edges(matrix(t), counts=t["counts"].zero_(), ranks=t["ranks"], launch=LAUNCH)


@case(
    indptr=ints(0, 3, 5), indices=ints(0, 1, 3, 0, 2), by_column=narrow(0, 2, 3, 4, 5),
    ranks=narrow(0, 0, 0, 1, 0), rows=narrow(*[0] * 5), places=narrow(*[0] * 5),
)  # fmt: skip
def place_edges(t: Tensors) -> None:
    _C.place_edges(matrix(t), indptr=t["by_column"], ranks=t["ranks"], rows=t["rows"],
                   edge_ids=t["places"], launch=LAUNCH)  # fmt: skip


@case(
    "edges", edges=torch.tensor([[0, 3, 1], [1, 0, 1]]), rows=narrow(0, 0, 0),
    segments=narrow(0, 0, 0), columns=narrow(0, 0, 0), indptr=narrow(0, 0, 0, 0),
    indices=narrow(0, 0, 0), edge_ids=narrow(0, 0, 0), by_column=narrow(0, 0, 0, 0),
    rows_of=narrow(0, 0, 0), positions=narrow(0, 0, 0),
)  # fmt: skip
def join_edges(t: Tensors) -> None:
    _C.join_edges(
        [(t["edges"], 4, 2, 0, 0, 2)], num_rows=4, row_starts=[0],
        num_columns=4, column_starts=[0, 2], row_keys=t["rows"], row_segments=t["segments"],
        column_keys=t["columns"], indptr=t["indptr"], indices=t["indices"], edge_ids=t["edge_ids"],
        by_column=t["by_column"], rows_of=t["rows_of"], positions=t["positions"],
        numbering=_C.KeyNumbering.used, schedule=_C.Schedule(), launch=LAUNCH,
        allocate=allocate,
    )  # fmt: skip


@case(
    keys=narrow(0, 2, 0), row_indptr=narrow(0, 1, 2, 3), owners=narrow(0, 0, 0),
    places=ints(0, 0, 0), indptr=narrow(0, 0, 0), rows=narrow(0, 0, 0),
    edge_indptr=narrow(0, 0, 0), edges=narrow(0, 0, 0),
)  # fmt: skip
def group_rows(t: Tensors) -> None:
    _C.group_rows(
        t["keys"], t["row_indptr"], row_cuts=[0, 2, 3], groups=[0, 0], strides=[2, 2],
        place_starts=[0, 4], sizes=[2], owners=t["owners"], places=t["places"],
        indptr=t["indptr"], rows=t["rows"], edge_indptr=t["edge_indptr"], edges=t["edges"],
        num_edges=3, launch=LAUNCH, allocate=allocate,
    )  # fmt: skip


@case(
    "left bias", left=halves(4, 9), right=halves(9, 5), bias=halves(5), out=halves(4, 5),
)  # fmt: skip
def multiply_rows(t: Tensors) -> None:
    _C.multiply_rows(t["left"], t["right"], bias=t["bias"], out=t["out"], is_transposed=False,
                     sums_rows=False, adds=False, launch=LAUNCH, allocate=allocate)  # fmt: skip


@case("left", left=halves(4, 9), right=halves(4, 5), out=halves(9, 5))
def multiply_columns(t: Tensors) -> None:
    _C.multiply_rows(t["left"], t["right"], bias=None, out=t["out"], is_transposed=False,
                     sums_rows=True, adds=True, launch=LAUNCH, allocate=allocate)  # fmt: skip


@case("out", x=reals(4, 9), out=torch.ones(4, 12, dtype=torch.bfloat16))
def copy_rows(t: Tensors) -> None:
    _C.copy_rows(operands(t, "copy_u", 9, 1), dtype=_C.DType.float32, first_column=3,
                 out=t["out"], launch=LAUNCH)  # fmt: skip


@case("x", x=reals(4, 9), bias=reals(9), seed=ints(1), bits=bits(4, 2), out=reals(4, 9))
def activate(t: Tensors) -> None:
    _C.activate(x=t["x"], bias=t["bias"], relu=True, p=0.5, seed=t["seed"], bits=t["bits"],
                out=t["out"], launch=LAUNCH)  # fmt: skip


@case("grad partial", grad=reals(4, 9), bits=bits(4, 2), out=reals(4, 9), partial=reals(4, 9))
def activate_backward(t: Tensors) -> None:
    _C.activate_backward(grad=t["grad"], bits=t["bits"], p=0.5, out=t["out"],
                         partial=t["partial"], launch=LAUNCH)  # fmt: skip


@case("out", device_seed=ints(1), row_ids=ints(3, 4, 5), out=reals(3, 5))
def fill_random(t: Tensors) -> None:
    _C.fill_random(seed=0, device_seed=t["device_seed"], row_ids=t["row_ids"],
                   distribution=_C.Distribution.normal, out=t["out"], launch=LAUNCH)  # fmt: skip


@case("out", device_seed=ints(1), row_ids=ints(3, 4, 5), x=reals(3, 5), out=reals(3, 5))
def dropout_rows(t: Tensors) -> None:
    _C.dropout_rows(seed=0, device_seed=t["device_seed"], row_ids=t["row_ids"], p=0.5, scale=2.0,
                    x=t["x"], out=t["out"], launch=LAUNCH)  # fmt: skip


@case(
    source=ints(0, 1, 2), destination=ints(1, 2, 0), offsets=ints(0, 0, 0, 0),
    indices=ints(0, 0, 0), perm=ints(0, 0, 0),
)  # fmt: skip
def coo_to_csc(t: Tensors) -> None:
    _C.coo_to_csc(t["source"], t["destination"], 3, 3, t["offsets"], t["indices"], t["perm"])


def rows_of_table(rows: int, columns: int) -> _C.TableView:
    buffers.append(torch.ones(rows, columns))
    return dense_view(buffers[-1], rows, 4 * columns)


@case("ids", ids=ints(0, 2, 4), out=reals(3, 6))
def gather(t: Tensors) -> None:
    _C.gather(rows_of_table(5, 6), _C.IdList(ids=t["ids"]), t["out"], LAUNCH)


@case(out_index=ints(2, 0, 1))
def gather_to_places(t: Tensors) -> None:
    ids = ints(0, 2, 4)
    listed = _C.IdList(ids=ids, out_index=t["out_index"])
    _C.gather(rows_of_table(5, 6), listed, reals(3, 6), LAUNCH)


@case("ids", ids=ints(0, 2, 4), values=reals(3, 6))
def scatter(t: Tensors) -> None:
    _C.scatter(rows_of_table(5, 6), _C.IdList(ids=t["ids"]), t["values"], LAUNCH)


@case("ids", ids=ints(0, 2, 4), buffer=reals(3, 6), out=reals(3, 6))
def stage(t: Tensors) -> None:
    _C.stage(rows_of_table(5, 6), _C.IdList(ids=t["ids"]), t["buffer"], t["out"], LAUNCH)


@case("ids", ids=ints(0, 2, 4), out=reals(3, 12))
def decode_gather(t: Tensors) -> None:
    codec = _C.RowCodec(stored=_C.StoredType.float16, dtype=_C.DType.float32, columns=12)
    _C.decode_gather(rows_of_table(5, 6), codec, _C.IdList(ids=t["ids"]), t["out"], LAUNCH)


def stored_table(columns: int, codec: _C.RowCodec | None = None) -> _C.StoredTable:
    dtype = dtype_number(torch.float32)
    assert dtype is not None
    return _C.StoredTable(
        table=rows_of_table(5, 6), codec=codec, scales=None, dtype=dtype, item_bytes=4,
        row_shape=[columns],
    )  # fmt: skip


@case("ids", ids=ints(0, 2, 4))
def gather_tables(t: Tensors) -> None:
    codec = _C.RowCodec(stored=_C.StoredType.float16, dtype=_C.DType.float32, columns=12)
    table, ids = stored_table(6), _C.IdList(ids=t["ids"])
    reads = [(table, None, ids), (stored_table(12, codec), None, ids)]
    functions, adopt = torch_functions("cpu"), adopt_tensors()
    assert functions is not None
    assert adopt is not None
    rows, decoded = _C.gather_tables(reads, functions, adopt, None, LAUNCH)
    assert (rows.shape[1:], decoded.shape[1:]) == ((6,), (12,))
    with pytest.raises(ValueError, match="the bounds of lists must be int64"):
        _C.gather_tables([(table, table, ids)], functions, adopt, None, LAUNCH)


@case("bounds", bounds=ints(0, 1, 3, 2, 2, 5).view(2, 3), ends=ints(0, 0, 0, 0, 0))
def list_places(t: Tensors) -> None:
    _C.list_places([(t["bounds"], t["ends"], 5)], None, LAUNCH, allocate)


@case("ids", ids=ints(0, 2, 4), out=ints(0, 0, 0))
def row_addresses(t: Tensors) -> None:
    _C.row_addresses(rows_of_table(5, 6), _C.IdList(ids=t["ids"]), t["out"], LAUNCH)


@case("ids", ids=ints(0, 5, 9), first_keys=ints(0, 1 << 40), found=ints(*[0] * 12))
def find_remote_rows(t: Tensors) -> None:
    split = _C.MachineSplit(rows=10, hot=2, machines=2, index=0)
    _C.find_remote_rows(_C.IdList(ids=t["ids"]), None, split, _C.RowRoutes(t["first_keys"], 2),
                        t["found"], LAUNCH)  # fmt: skip


@case(
    "offsets", values=reals(3, 2), positions=ints(0, 2, 1), offsets=ints(0, 2, 3), out=reals(2, 2)
)
def sum_runs(t: Tensors) -> None:
    _C.sum_runs(t["values"], t["positions"], t["offsets"], t["out"], LAUNCH)


@case(rows=ints(0, 4), grads=reals(2, 6))
def sparse_update(t: Tensors) -> None:
    rule = _C.UpdateRule(optimizer=_C.Optimizer.sgd, step_size=0.1)
    _C.sparse_update(rows_of_table(5, 6), _C.DType.float32, [], rule, t["rows"], t["grads"],
                     LAUNCH)  # fmt: skip


@case("nodes", ends=ints(1, 2, 3), nodes=ints(0, 0))
def draw_nodes(t: Tensors) -> None:
    _C.draw_nodes(3, t["ends"], t["nodes"], 7, 5, LAUNCH)


@case("nodes", nodes=ints(2, 0, 2), weights=ints(1, 0, 5), keys=reals(3).double())
def square_keys(t: Tensors) -> None:
    _C.square_keys(t["nodes"], t["weights"], 7, 5, t["keys"], LAUNCH)


@case("nodes", nodes=ints(2, 0, 2), distinct=ints(0, 0, 0))
def distinct_nodes(t: Tensors) -> None:
    _C.distinct_nodes(t["nodes"], 3, t["distinct"], allocate, LAUNCH)


def lists(t: Tensors) -> _C.CscView:
    """Three nodes in a ring, in host memory."""
    parts = [ints(0, 1, 2, 3), ints(1, 2, 0), ints(0, 1, 2)]
    buffers.extend(parts)
    return _C.CscView(
        replicated=0, sharded=0, rows=3, num_edges=3, index_bytes=8, rank=0, replicas=[],
        shards=[], host=[part.data_ptr() for part in parts],
    )  # fmt: skip


@case(indptr=ints(0, 1, 2, 3), indices=ints(0, 0, 0), edge_ids=ints(0, 0, 0))
def gather_lists(t: Tensors) -> None:
    chunk = _C.ListChunk(first=0, indptr=t["indptr"], indices=t["indices"], edge_ids=t["edge_ids"])
    _C.gather_lists(lists(t), chunk, _C.IdMapView(), _C.IdMapView(), LAUNCH)


@case(indptr=ints(0, 1, 2, 3), indices=ints(1, 2, 0))
def scatter_lists(t: Tensors) -> None:
    chunk = _C.ListChunk(first=0, indptr=t["indptr"], indices=t["indices"])
    _C.scatter_lists(lists(t), chunk, _C.IdMapView(), _C.IdMapView(), LAUNCH)


@case("out", out=ints(0, 0, 0))
def degrees(t: Tensors) -> None:
    _C.degrees(lists(t), 0, _C.IdMapView(), t["out"], LAUNCH)


@case("nodes", nodes=ints(*[0] * 8).view(2, 4), edge_ids=ints(*[0] * 6), positions=ints(0, 0))
def random_walk(t: Tensors) -> None:
    walks = _C.Walks(
        first_step=0, steps=3, nodes=t["nodes"], edge_ids=t["edge_ids"],
        positions=t["positions"], to_internal=_C.IdMapView(), to_user=_C.IdMapView(), seed=0,
        stream=0, restart_below=0, restart_every=1, jump=False, stay=True, accept=[1 << 53] * 3,
    )  # fmt: skip
    _C.random_walk(lists(t), walks, LAUNCH)


@case("seeds", seeds=ints(0, 2), nodes=ints(0, 0, 0, 0).view(2, 2), weights=reals(2, 2))
def forward_push(t: Tensors) -> None:
    _C.forward_push(
        lists(t), t["seeds"], t["nodes"], t["weights"], to_internal=_C.IdMapView(),
        to_user=_C.IdMapView(), alpha=1 << 62, epsilon=1 << 50, most_nodes=3, allocate=allocate,
        launch=LAUNCH,
    )  # fmt: skip


@case(
    "queries", queries=torch.ones(2, 3, dtype=torch.float64), ids=ints(0, 1, -1, 3).view(2, 2),
    products=torch.ones(2, 2, dtype=torch.float64),
)  # fmt: skip
def exact_products(t: Tensors) -> None:
    buffers.append(reals(4, 3))
    _C.exact_products(
        table=dense_view(buffers[-1], 4, 12), dtype=_C.DType.float32, codec=None, scales=None,
        launch=LAUNCH, **t,
    )  # fmt: skip


@case(
    "queries", queries=torch.ones(2, 3, dtype=torch.float64), places=ints(0, 1, 3, 2).view(2, 2),
    counts=narrow(2, 1), user_ids=ints(3, 2, 1, 0), products=reals(2, 4).double(),
    ids=ints(*[0] * 8).view(2, 4),
)  # fmt: skip
def rank_products(t: Tensors) -> None:
    buffers.append(reals(4, 3))
    _C.rank_products(
        table=dense_view(buffers[-1], 4, 12), dtype=_C.DType.float32, codec=None, scales=None,
        most=2, launch=LAUNCH, **t,
    )  # fmt: skip


@case(
    "queries", queries=reals(3, 4).double(), values=bits(3, 4), scales=reals(3),
    norms=reals(3).double(), errors=reals(3).double(), rounded_up=reals(3),
)  # fmt: skip
def round_queries(t: Tensors) -> None:
    _C.round_queries(kind=_C.ProductKind.int8, relative=1e-6, launch=LAUNCH, **t)


@case(
    "excluded products queries", queries=bits(2, 64), query_scales=reals(2), errors=reals(2),
    exact_errors=reals(2).double(), norms=reals(2).double(), excluded=ints(3), above=reals(2),
    bounds=reals(2), products=reals(2, 3), places=ints(*[0] * 6).view(2, 3), counts=narrow(0, 0),
    kept=narrow(0, 0), largest_norm=reals(1), failed=bits(2, 2), state=narrow(0, 0),
)  # fmt: skip
def find_large_products(t: Tensors) -> None:
    buffers.append(bits(5, 64))
    _C.find_large_products(
        kind=_C.ProductKind.int8, rows=buffers[-1].data_ptr(), num_rows=5, row_bytes=64,
        scales=buffers[-1].data_ptr(), scale_bytes=64, place=(0, 1), underflow=1e-30,
        stages=[(4, False, False, 1, False), (1, True, False, 1, True)], num_places=5,
        guesses=True, launch=LAUNCH, **t,
    )  # fmt: skip


@case(
    "sources", ends=ints(1, 2, 3), times=ints(0, 0, 0), sources=ints(0, 0), destinations=ints(0, 0),
    latest=ints(1, 1), is_edge=bits(2),
)  # fmt: skip
def sample_negatives(t: Tensors) -> None:
    draw = 3, t["ends"], t["times"], 0
    negatives = _C.Negatives(
        source=draw, destination=draw, draw_sources=True, sources=t["sources"],
        destinations=t["destinations"], latest=t["latest"], is_edge=t["is_edge"], tries=2,
        source_to_internal=_C.IdMapView(), destination_to_internal=_C.IdMapView(), seed=0, stream=0,
    )  # fmt: skip
    _C.sample_negatives(lists(t), negatives, LAUNCH)


def sampler(t: Tensors) -> _C.KHopSampler:
    return _C.KHopSampler(
        node_types=[("n", 3, _C.IdMapView(), _C.IdMapView())],
        relations=[(0, 0, lists(t), [2], _C.Choice())], expand_all=False, disjoint=False,
        induced=False, edge_ids=False, duplicate_counts=False, index_bytes=8,
    )  # fmt: skip


@case("seeds", seeds=ints(0, 1), words=narrow(-1, -1, -1))
def make_batch_ahead(t: Tensors) -> None:
    functions, adopt = torch_functions("cpu"), adopt_tensors()
    assert functions is not None
    assert adopt is not None
    thread = _C.BatchThread(torch=functions, launch=LAUNCH, most_scratch=100, adopt=adopt)
    maps = [_C.NodeMap(words=t["words"], least_bits=24)]
    thread.submit(
        number=0, sampler=sampler(t), seeds=[(0, t["seeds"])], seed=0, seed_times=None,
        seed_starts=None, maps=maps, mailbox=None, work_space=0, tables=_C.TablesOfBatch([]),
        list_sizes=None, max_blocks=0, num_threads=1, after=None, memory=(t, maps),
    )  # fmt: skip
    assert thread.wait(60)
    assert thread.take(0) is not None


@case("seeds", seeds=ints(0, 1), words=narrow(-1, -1, -1))
def sample(t: Tensors) -> None:
    def result(nodes: int, edges: int, offsets: int) -> tuple[int, ...]:
        return allocate(8 * nodes), 0, 0, allocate(16 * edges), 0, allocate(8 * offsets)

    maps = [_C.NodeMap(words=t["words"], least_bits=24)]
    sampler(t).sample([(0, t["seeds"])], 0, None, None, maps, None, None, allocate, result, LAUNCH)


@case(
    "records degrees", records=bits(48), degrees=ints(0, 0), indices=narrow(0, 0, 0, 0),
    edge_ids=narrow(0, 0, 0, 0),
)  # fmt: skip
def sort_bucket(t: Tensors) -> None:
    _C.sort_bucket(runs=[(t["records"], 0, 4, 0)], degrees=t["degrees"],
                   indices=t["indices"], edge_ids=t["edge_ids"])  # fmt: skip


@case(
    source=ints(0, 1, 2), destination=ints(1, 2, 0), records=bits(48),
    counts=ints(0),
)  # fmt: skip
def partition_edges(t: Tensors) -> None:
    _C.partition_edges(
        source=t["source"], destination=t["destination"], num_sources=3, first_destination=0,
        num_destinations=3, shift=2, source_bytes=8, records=t["records"], counts=t["counts"],
        num_threads=1,
    )  # fmt: skip


@case("ids", ids=narrow(0, 2, 1), counts=ints(0, 0, 0))
def count_ids(t: Tensors) -> None:
    _C.count_ids(t["ids"], limit=3, counts=t["counts"], is_shared=False, num_threads=1)


@case("tensor", tensor=ints(*[7] * 5000), digests=ints(*[0] * 6).view(3, 2))
def count_content_pieces(t: Tensors) -> None:
    if _C.count_content_pieces([t["tensor"]]) == [3]:
        content = _C.Content(
            tensors=[t["tensor"]], are_edge_indices=[True], digests=t["digests"]
        )  # fmt: skip
        content.write(LAUNCH)
        assert content.is_unchanged(LAUNCH)


def copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_no_function_is_left_out() -> None:
    source = Path(_C.__file__).parent / "_C.pyi"
    stub = Path(inspect.getfile(dense_view)).parents[2] / "_C.pyi"
    text = (stub if stub.exists() else source).read_text().split("\ncompiler:")[0]
    functions = set(re.findall(r"^def (\w+)\(", text, re.MULTILINE))
    assert functions - set(WITHOUT_SIZES.split()) - CASES.keys() == set()


@named_cases("name", CASES)
def test_right_sizes_are_taken(name: str) -> None:
    tensors, call, _ = CASES[name]
    call(copies(tensors))


@named_cases("name", CASES)
def test_small_tensors_are_refused(name: str) -> None:
    tensors, call, any_size = CASES[name]
    for tensor in tensors.keys() - any_size - {"indptr"}:
        # Gradients without elements are not computed, and a matrix may have no edges.
        least = 1 if "grad_" in tensor or tensor == "indices" else 0
        sizes = {least, len(tensors[tensor]) - 1}
        for size in sizes:
            arguments = copies(tensors)
            arguments[tensor] = arguments[tensor][:size].clone()
            with named_case(tensor, size), pytest.raises((ValueError, IndexError)):
                call(arguments)


@named_cases("name", CASES)
def test_other_dtypes_are_refused(name: str) -> None:
    tensors, call, _ = CASES[name]
    for tensor in tensors.keys() - ANY_DTYPE.get(name, frozenset()):
        arguments = copies(tensors)
        arguments[tensor] = arguments[tensor].to(OTHER.get(arguments[tensor].dtype, torch.int64))
        with named_case(tensor), pytest.raises((ValueError, TypeError)):
            call(arguments)


HUGE = 1 << 62


def calls_of_huge_sizes() -> dict[str, Callable[[], Any]]:
    one, two = ints(0), ints(0, 0)
    return {
        "coo_to_csc": lambda: _C.coo_to_csc(one, one, HUGE, HUGE, two, one, one),
        "most nodes": lambda: _C.coo_to_csc(one, one, 3, 2**63 - 1, two, one, one),
        "keys": lambda: _C.indptr_from_sorted(one, num_keys=2**63 - 1, indptr=one),
        "range": lambda: _C.gather(
            rows_of_table(5, 6), _C.IdList(first=0, count=HUGE), reals(3, 6), LAUNCH
        ),
        "end of a range": lambda: _C.IdList(first=2**63 - 2, count=5),
        "table": lambda: dense_view(reals(1), HUGE, 64),
        "rows of a result": lambda: stored_table(HUGE),
        "lists": lambda: _C.list_places(
            [(ints(0, HUGE, 0, HUGE).view(2, 2), ints(0, 0, 0), HUGE)], None, LAUNCH, allocate
        ),
        "visits": lambda: _C.KHopSampler.of_walks(
            node_type=("node", 3, _C.IdMapView(), _C.IdMapView()),
            metapath=[lists({})],
            num_walks=HUGE,
            walk_length=4,
            num_neighbors=1,
            num_layers=1,
            restart_below=0,
            stream=0,
        ),
    }


@named_cases("name", calls_of_huge_sizes())
def test_sizes_that_no_memory_has(name: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        calls_of_huge_sizes()[name]()


# The tensors of the structure that operations read, if not all.
READ = {
    "rank_edges": ["indices"],
    "spmm_minmax_backward": [],
    "edge_softmax": ["indptr", "edge_ids"],
}
CHANGES = [
    ("indptr", 1, 10**9),
    ("indptr", 0, -5),
    ("indices", 2, 10**9),
    ("indices", 4, -1),
    ("edge_ids", 3, 5),
    ("edge_ids", 0, -1),
]


@named_cases(
    "name", [name for name, case in CASES.items() if EDGES["indptr"] is case[0].get("indptr")]
)
@named_cases(("tensor", "at", "value"), CHANGES)
def test_values_out_of_range(name: str, tensor: str, at: int, value: int) -> None:
    """What users change after the structure was made is an error, and nothing else is accessed."""
    tensors, call, _ = CASES[name]
    arguments = copies(tensors)
    arguments[tensor][at] = value
    with pytest.raises(IndexError) if tensor in READ.get(name, EDGES) else suppress(IndexError):
        call(arguments)
