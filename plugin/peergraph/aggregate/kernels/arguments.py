"""How tensors and places go to the compiled module."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES as DTYPES
from peergraph.memory.device.launching import launch_on

MESSAGES = {"copy_u": 0, "copy_e": 1, "add": 2, "sub": 3, "mul": 4, "div": 5}
TARGETS = {"u": 0, "v": 1, "e": 2}

# The fields of peergraph.aggregate.sparse.csr.CsrMatrix in the schema of an operator.
ROWS = "Tensor indptr, Tensor indices, Tensor? edge_ids, int num_columns, int max_chunks"


def place(device: torch.device) -> dict[str, int]:
    """Where a kernel runs, as keyword arguments of the compiled module."""
    return launch_on(device)._asdict()


def supports(device: torch.device) -> bool:
    """Whether the operations run on `device`: the CPU, or a GPU if they were compiled for one."""
    return device.type == "cpu" or (device.type == "cuda" and bool(_C.has_cuda))


def adjacency(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, num_columns: int
) -> _C.CsrMatrix:
    """Contiguous tensors as the compiled module sees them; they must outlive the call."""
    return _C.CsrMatrix(
        indptr=indptr.data_ptr(),
        indptr_bytes=indptr.element_size(),
        indices=indices.data_ptr(),
        index_bytes=indices.element_size(),
        edge_ids=address(edge_ids),
        edge_id_bytes=0 if edge_ids is None else edge_ids.element_size(),
        num_rows=indptr.numel() - 1,
        num_columns=num_columns,
        num_edges=indices.numel(),
    )


def dense(tensor: Tensor | None) -> Tensor | None:
    """The tensor with its values side by side."""
    return None if tensor is None else tensor.contiguous()


def address(tensor: Tensor | None) -> int:
    """0 stands for none."""
    return 0 if tensor is None else tensor.data_ptr()


def operand_of(first: Tensor | None, second: Tensor | None) -> Tensor:
    """The first operand, or the second where there is no first."""
    operand = second if first is None else first
    assert operand is not None
    return operand


def operands(
    message: str, x: Tensor | None, e: Tensor | None, columns: int, e_columns: int
) -> _C.Operands:
    """What messages of `columns` columns are made of."""
    return _C.Operands(
        message=MESSAGES[message],
        x=address(x),
        e=address(e),
        columns=columns,
        e_columns=max(1, e_columns),
    )


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of `dtype` are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
