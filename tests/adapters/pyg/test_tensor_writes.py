"""Every way to write to a shared tensor writes for all ranks, to values of one's own, or raises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import Tensor

import peergraph_pyg
from peergraph_pyg import TableTensor
from tests.adapters.pyg.graphs import random_data
from tests.named_case import named_cases
from tests.scripts import run_python

ROWS, WIDTH = 60, 5
IN_PLACE = "writes in place to a tensor that is shared by all ranks; use x"


def tensors(device: torch.device) -> tuple[TableTensor, Tensor]:
    """``x`` of a shared graph, and the same values as a plain tensor on the device."""
    data = random_data(ROWS)
    return peergraph_pyg.share(data, device=device).x, data.x.to(device)


def increment(x: Any) -> None:
    x += 1


FOR_ALL: dict[str, Callable[[Any], object]] = {
    "x[0] = v": lambda x: x.__setitem__(0, 1.5),
    "x[1:3] += 1": lambda x: x.__setitem__(slice(1, 3), x[1:3] + 1),
    "x[:] = v": lambda x: x.__setitem__(slice(None), 2.5),
    "x[...] = v": lambda x: x.__setitem__(..., torch.arange(float(WIDTH))),
    "x.detach()[...] = v": lambda x: x.detach().__setitem__(..., 3.5),
    "x.data[ids] = v": lambda x: x.data.__setitem__([1, 2], 3.5),
    "copy.copy": lambda x: copy.copy(x).__setitem__(3, 9.0),
    "torch.as_tensor": lambda x: torch.as_tensor(x).__setitem__(3, 9.0),
    "index_put_": lambda x: x.index_put_((torch.tensor([3]),), torch.tensor(2.0, device=x.device)),
    "copy_": lambda x: x.copy_(torch.arange(float(WIDTH))),
}
"""Change the values of all ranks."""

OF_ONES_OWN: dict[str, Callable[[Any], Tensor]] = {
    "x[:]": lambda x: x[:],
    "x[...]": lambda x: x[...],
    "x[:, :]": lambda x: x[:, :],
    "x[1:3]": lambda x: x[1:3],
    "x[0]": lambda x: x[0],
    "x[:, 0]": lambda x: x[:, 0],
    "x[[1, 2]]": lambda x: x[[1, 2]],
    "x.T": lambda x: x.T,
    "x.t()": lambda x: x.t(),
    "x.view": lambda x: x.view(-1),
    "x.narrow": lambda x: x.narrow(0, 0, 60),
    "x.select": lambda x: x.select(0, 3),
    "x.unbind": lambda x: x.unbind()[2],
    "x.split": lambda x: x.split(60)[0],
    "x.chunk": lambda x: x.chunk(2)[1],
    "x.flatten": lambda x: x.flatten(),
    "x.unsqueeze": lambda x: x.unsqueeze(0),
    "x.clone": lambda x: x.clone(),
    "torch.tensor": lambda x: torch.tensor(x),
    "np.array": lambda x: torch.from_numpy(np.array(x.cpu())),
}
"""Give values of one's own: to write to them changes nothing else."""

REFUSED: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "x.data = v": (lambda x: setattr(x, "data", x.clone()), NotImplementedError, r"x\.data = "),
    "set_": (lambda x: x.set_(x.clone()), NotImplementedError, IN_PLACE),
    "set_()": (lambda x: x.set_(), NotImplementedError, IN_PLACE),
    "x += 1": (increment, NotImplementedError, IN_PLACE),
    "out=": (lambda x: torch.add(x.clone(), 1, out=x), NotImplementedError, IN_PLACE),
    "fill_": (lambda x: x.fill_(1), NotImplementedError, IN_PLACE),
    "normal_": (lambda x: torch.nn.init.normal_(x), NotImplementedError, IN_PLACE),
    "index_add_": (
        lambda x: x.index_add_(0, torch.tensor([1], device=x.device), x[:1]),
        NotImplementedError,
        IN_PLACE,
    ),
    "masked_fill_": (lambda x: x.masked_fill_(x > 0, 1), NotImplementedError, IN_PLACE),
    "foreach": (lambda x: torch._foreach_add_([x], 1), NotImplementedError, IN_PLACE),
    "t_": (lambda x: x.t_(), NotImplementedError, IN_PLACE),
    "resize_": (lambda x: x.resize_(3), NotImplementedError, IN_PLACE),
    "x[:, 0] = v": (lambda x: x.__setitem__((slice(None), 0), 1), NotImplementedError, "by rows"),
    "x[x > 0] = v": (lambda x: x.__setitem__(x > 0, 1), NotImplementedError, "row ids or a mask"),
    "apply_": (lambda x: x.apply_(abs), NotImplementedError, "apply_ is not supported by TableT"),
    "storage": (lambda x: x.storage(), RuntimeError, "has no storage"),
    "untyped_storage": (lambda x: x.untyped_storage().fill_(0), RuntimeError, "no storage to take"),
    "data_ptr": (lambda x: x.data_ptr(), RuntimeError, "has no data_ptr"),
    "DLPack": (lambda x: torch.from_dlpack(x), BufferError, r"export x\.clone\(\)"),
    "memoryview": (lambda x: memoryview(x), TypeError, "TableTensor"),
    "values with gradients": (
        lambda x: x.__setitem__(0, torch.ones(WIDTH, requires_grad=True)),
        RuntimeError,
        r"values\.detach\(\)",
    ),
    "all values with gradients": (
        lambda x: x.__setitem__(..., torch.ones(WIDTH, requires_grad=True)),
        RuntimeError,
        r"values\.detach\(\)",
    ),
    "x that requires gradients": (
        lambda x: x.detach().requires_grad_().__setitem__(0, 1.0),
        RuntimeError,
        "no_grad",
    ),
}


@named_cases("name", FOR_ALL)
def test_written_for_all(name: str, device: torch.device) -> None:
    shared, plain = tensors(device)
    handle = shared.detach()
    for x in (shared, plain):
        FOR_ALL[name](x)
    assert torch.equal(handle.clone(), plain)


@named_cases("name", OF_ONES_OWN)
def test_written_to_values_of_ones_own(name: str, device: torch.device) -> None:
    shared, plain = tensors(device)
    mine, expected = OF_ONES_OWN[name](shared), OF_ONES_OWN[name](plain.clone())
    assert type(mine) is Tensor
    assert torch.equal(mine, expected)
    weight = torch.tensor(2.0, device=mine.device, requires_grad=True)
    for tensor in (mine, expected):
        tensor[...] = 7.0
    assert torch.equal(mine, expected)
    assert torch.equal(shared.clone(), plain)
    if name.startswith("x["):
        # Nor do they make the shared tensor a part of what gradients flow through.
        mine.mul_(weight)
        assert not shared.requires_grad


@named_cases("name", REFUSED)
def test_refused(name: str, device: torch.device) -> None:
    shared, plain = tensors(device)
    write, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        write(shared)
    assert torch.equal(shared.clone(), plain)


def test_arrays_are_read_only() -> None:
    shared, plain = tensors(torch.device("cpu"))
    for array in (
        shared.numpy(),
        np.asarray(shared),
        np.asarray(shared, dtype=np.float64),
        shared.numpy(force=True),
    ):
        assert np.array_equal(array, plain.numpy())
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    own = np.array(shared)
    own[0] = 1.0
    assert torch.equal(shared.clone(), plain)
    assert shared.tolist() == plain.tolist()


TO_DLPACK = """
import torch, peergraph_pyg
from tests.adapters.pyg.graphs import random_data
x = peergraph_pyg.share(random_data(), device="cpu").x
try:
    print(torch.utils.dlpack.to_dlpack(x))
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.5"), reason="this torch's DLPack does not ask the guard"
)
def test_addresses_are_refused_in_cpp() -> None:
    """What does not ask Python for the address gets an error, and no null pointer to read from."""
    done = run_python("-c", TO_DLPACK)
    assert done.returncode == 0, done.stderr
    assert "refused: Cannot access data pointer" in done.stdout


def test_gradients_of_a_shared_tensor(device: torch.device) -> None:
    grads = []
    for x in tensors(device):
        x = x.detach().requires_grad_()
        rows = torch.tensor([3, 3, 7], device=device)
        (x[rows].square().sum() + x[:4].sum() + x.t()[1].sum()).backward()
        grads.append(x.grad)
    assert torch.equal(grads[0], grads[1])


def test_ids_and_values_do_not_depend_on_the_default_device() -> None:
    shared, plain = tensors(torch.device("cpu"))
    with torch.device("meta"):
        shared[0] = 2.0
        shared[[1, 2]] = [1.0, 2.0, 3.0, 4.0, 5.0]
        rows = shared[[0, 2]]
        shared[...] = shared[2].tolist()
    assert torch.equal(rows[1], torch.arange(1.0, 6.0))
    assert torch.equal(shared.clone(), torch.arange(1.0, 6.0).expand(plain.shape))


def test_what_a_write_leaves_to_backward(device: torch.device) -> None:
    """A slice is no view: writing to it does not spoil what was computed of the tensor."""
    shared, plain = tensors(device)
    grads = []
    for x, part in ((shared, shared[:10]), (plain, plain[:10].clone())):
        weight = torch.ones(2, WIDTH, device=device, requires_grad=True)
        out = torch.nn.functional.linear(x, weight).square().sum()
        part.add_(1)
        out.backward()
        grads.append(weight.grad)
    assert torch.equal(grads[0], grads[1])
