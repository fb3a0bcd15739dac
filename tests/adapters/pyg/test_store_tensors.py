"""Store tensors against the plain tensors they stand for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import peergraph_pyg
from peergraph_pyg import EdgeIndexTensor, TableTensor
from tests.adapters.pyg.graphs import random_data
from tests.named_case import named_cases

ROWS = 60


def tensors(device: torch.device) -> tuple[TableTensor, Tensor]:
    """``x`` of a shared graph, and the same values as a plain tensor on the device."""
    data = random_data(ROWS)
    shared = peergraph_pyg.share(data, device=device)
    return shared.x, data.x.to(device)


OPERATIONS: dict[str, Callable[[Tensor], object]] = {
    "int": lambda x: x[3],
    "negative int": lambda x: x[-1],
    "slice": lambda x: x[5:20],
    "step": lambda x: x[50:3:1][::7],
    "empty slice": lambda x: x[7:7],
    "full slice": lambda x: x[:] + 0,
    "column": lambda x: x[:, 2],
    "block": lambda x: x[3:5, 1:],
    "ellipsis": lambda x: x[..., 0],
    "new axis": lambda x: x[None, 2:4],
    "list": lambda x: x[[3, 3, 0]],
    "ids": lambda x: x[torch.tensor([9, 0, 59, 9])],
    "int32 ids": lambda x: x[torch.tensor([9, 0, 59], dtype=torch.int32)],
    "ids on the device": lambda x: x[torch.tensor([9, 0], device=x.device)],
    "negative ids": lambda x: x[torch.tensor([-1, -60, 2])],
    "ids of two dimensions": lambda x: x[torch.tensor([[1, 2, 3], [4, 5, 6]])],
    "no ids": lambda x: x[torch.empty(0, dtype=torch.int64)],
    "mask": lambda x: x[torch.arange(ROWS, device=x.device) % 3 == 0],
    "mask of elements": lambda x: x[x > 0.5],
    "pairs": lambda x: x[torch.tensor([1, 2]), torch.tensor([0, 4])],
    "array": lambda x: x[np.array([4, 5])],
    "index_select": lambda x: x.index_select(0, torch.tensor([7, 7, 1], device=x.device)),
    "index_select negative dim": lambda x: x.index_select(-2, torch.tensor([7], device=x.device)),
    "index_select columns": lambda x: x.index_select(1, torch.tensor([4, 0], device=x.device)),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(0), 0),
    "iteration": lambda x: torch.stack(list(x)),
    "transpose": lambda x: x.t(),
    "view": lambda x: x.view(-1, 10),
    "sum": lambda x: x.sum(0),
    "item": lambda x: x[2, 1].item(),
    "max": lambda x: x.max(),
    "norm": lambda x: torch.nn.functional.normalize(x),
    "double": lambda x: x.double(),
    "type": lambda x: x.to(torch.bfloat16),
    "cpu": lambda x: x.cpu(),
    "clone": lambda x: x.clone(),
    "channels": lambda x: x.clone(memory_format=torch.contiguous_format),
    "cat": lambda x: torch.cat([x, x[:2]]),
    "matmul": lambda x: x @ x.t(),
    "compare": lambda x: (x == x).all(),
    "detach": lambda x: x.detach() * 2,
    "alias": lambda x: x[...] * 2,
    "split": lambda x: torch.cat(x.split(7)[2:4]),
    "like": lambda x: torch.zeros_like(x),
    "length": lambda x: len(x),
    "list of values": lambda x: x.tolist(),
    "properties": lambda x: (x.shape, x.dtype, x.device, x.ndim, x.numel(), x.is_contiguous()),
}


@named_cases("name", OPERATIONS)
def test_operation(name: str, device: torch.device) -> None:
    shared, plain = tensors(device)
    result, expected = OPERATIONS[name](shared), OPERATIONS[name](plain)
    if isinstance(expected, Tensor):
        assert isinstance(result, Tensor)
        assert result.device == expected.device
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)
    else:
        assert result == expected


def test_results_are_plain(device: torch.device) -> None:
    shared, _ = tensors(device)
    for result in (shared[2], shared[:4], shared[[1]], shared.clone(), shared + 1):
        assert type(result) is Tensor


def test_out(device: torch.device) -> None:
    shared, plain = tensors(device)
    ids = torch.tensor([5, 1, 5], device=device)
    for out in (
        torch.empty(3, 5, device=device),
        torch.empty(5, 3, device=device).t(),
        torch.empty(0, device=device),
    ):
        assert torch.index_select(shared, 0, ids, out=out) is out
        assert torch.equal(out, plain[ids])


def test_numpy(device: torch.device) -> None:
    shared, plain = tensors(torch.device("cpu"))
    assert np.array_equal(shared.numpy(), plain.numpy())
    assert np.array_equal(np.asarray(shared), plain.numpy())
    assert np.asarray(shared, dtype=np.float64).dtype == np.float64
    assert torch.equal(torch.from_dlpack(shared.clone()), plain)
    with pytest.raises(RuntimeError, match="no data_ptr"):
        shared.data_ptr()


def test_gradients_flow_past(device: torch.device) -> None:
    shared, plain = tensors(device)
    grads = []
    for x in (shared, plain):
        weight = torch.ones(2, 5, device=device, requires_grad=True)
        torch.nn.functional.linear(x, weight).square().sum().backward()
        grads.append(weight.grad)
    assert torch.equal(grads[0], grads[1])


def test_index_errors() -> None:
    shared, _ = tensors(torch.device("cpu"))
    with pytest.raises(IndexError):
        shared[60]
    with pytest.raises(IndexError, match="60"):
        shared[torch.tensor([1, 60])]
    with pytest.raises(IndexError):
        shared.index_select(0, torch.tensor([-1]))
    with pytest.raises(IndexError, match="a mask over 60 rows"):
        shared[torch.ones(59, dtype=torch.bool)]


WRITES: dict[str, Callable[[Tensor], object]] = {
    "int": lambda x: x.__setitem__(3, 1.5),
    "negative int": lambda x: x.__setitem__(-1, torch.arange(5.0)),
    "slice": lambda x: x.__setitem__(slice(3, 9, 2), torch.full((3, 5), 2.0)),
    "everything": lambda x: x.__setitem__(slice(None), 4.0),
    "ellipsis": lambda x: x.__setitem__(..., torch.arange(5)),
    "ids": lambda x: x.__setitem__([4, 0, 59], torch.arange(15.0, device=x.device).view(3, 5)),
    "ids of two dimensions": lambda x: x.__setitem__(torch.tensor([[4, 0], [1, 2]]), 7),
    "list": lambda x: x.__setitem__([1, 2], torch.ones(1, 5, device=x.device)),
    "mask": lambda x: x.__setitem__(torch.arange(ROWS) < 7, torch.zeros(5, device=x.device)),
    "no ids": lambda x: x.__setitem__(torch.empty(0, dtype=torch.int64), 1.0),
    "other dtype": lambda x: x.__setitem__(0, torch.arange(5)),
    "index_put_": lambda x: x.index_put_(
        (torch.tensor([3, 4]),), torch.tensor(2.0, device=x.device)
    ),
    "copy_": lambda x: x.copy_(torch.arange(5.0)),
    "copy_ on the device": lambda x: x.copy_(torch.arange(60.0, device=x.device).view(-1, 1)),
}


@named_cases("name", WRITES)
def test_write(name: str, device: torch.device) -> None:
    shared, plain = tensors(device)
    handle = shared.detach()
    WRITES[name](shared)
    WRITES[name](plain)
    assert torch.equal(shared.clone(), plain)
    assert torch.equal(handle.clone(), plain)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_more_rows_than_int32_counts(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 5_000_000_000
    x, _ = tensors(torch.device("cpu"))
    monkeypatch.setattr(TableTensor, "size", lambda self, dim: rows)
    ids = x.row_ids(torch.tensor([-1, 3, -rows // 4], dtype=dtype))
    assert ids.tolist() == [rows - 1, 3, rows - rows // 4]


def test_write_of_one_dimension(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    for y in (shared.y, data.y):
        y[3] = 9
        y[[5, 4]] = torch.tensor([7, 8], device=y.device)
        y[-2:] = 6
    assert torch.equal(shared.y.cpu(), data.y)


def test_increment_of_rows(device: torch.device) -> None:
    shared, plain = tensors(device)
    for x in (shared, plain):
        x[3:5] += 1
    assert torch.equal(shared.clone(), plain)


def test_other_writes_are_refused() -> None:
    shared, plain = tensors(torch.device("cpu"))
    with pytest.raises(NotImplementedError, match=r"aten\.zero_\.default writes in place"):
        shared.zero_()
    with pytest.raises(NotImplementedError, match=r"aten\.add_\.Tensor writes in place"):
        shared += 1
    with pytest.raises(NotImplementedError, match=r"aten\.index_put_\.default"):
        shared.index_put_((torch.tensor([0]),), torch.ones(5), accumulate=True)
    with pytest.raises(NotImplementedError, match=r"aten\.add\.out"):
        torch.add(plain, plain, out=shared)
    with pytest.raises(NotImplementedError, match="written by rows"):
        shared[3, 1] = 0.0
    with pytest.raises(NotImplementedError, match="row ids or a mask over rows"):
        shared[plain > 0] = 0.0
    assert torch.equal(shared.clone(), plain)


def test_edge_index(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    assert isinstance(shared.edge_index, EdgeIndexTensor)
    expected = data.edge_index.to(device)
    row, col = shared.edge_index
    assert torch.equal(torch.stack([row, col]), expected)
    ids = torch.tensor([3, 3, 0], device=device)
    assert torch.equal(shared.edge_index.index_select(1, ids), expected[:, ids])
    assert torch.equal(shared.edge_index[:, ids], expected[:, ids])
    mask = shared.edge_index[0] < 5
    assert torch.equal(shared.edge_index[:, mask], expected[:, mask])
    with pytest.raises(NotImplementedError, match="writes in place"):
        shared.edge_index.add_(1)


def test_shared_and_pinned_are_answered() -> None:
    shared, _ = tensors(torch.device("cpu"))
    assert shared.is_shared()
    assert shared.share_memory_() is shared
    assert not shared.is_pinned()
    assert shared.pin_memory() is shared


def test_repr_reads_nothing(device: torch.device) -> None:
    data = peergraph_pyg.share(random_data(), device=device)
    assert repr(data.x).startswith("TableTensor('x' of '_N', [60, 5], float32, device='")
    assert str(data.edge_index).startswith("EdgeIndexTensor(('_N', '_E', '_N'), [2, 400], int64")
