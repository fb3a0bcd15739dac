"""What takes the memory of a tensor that has none raises an error, and ends no process."""

from __future__ import annotations

import copy
import io
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peergraph_pyg
from tests.adapters.pyg.graphs import random_data
from tests.scripts import run_python

to_dlpack: Any = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]

ONES = torch.ones(5, 2).requires_grad_()
GRAPHS: dict[str, Callable[[Any], Any]] = {
    "shared": lambda data: peergraph_pyg.share(data, device="cpu"),
    "partitioned": lambda data: peergraph_pyg.full_graph(data, device="cpu"),
    "offloaded": lambda data: peergraph_pyg.full_graph(
        data, device="cpu", offload=True, num_chunks=2
    ),
}


def plain_with_data(x: Tensor) -> Tensor:
    plain = torch.zeros(x.shape, dtype=x.dtype)
    plain.data = x
    return plain


def layer(x: Tensor) -> nn.Linear:
    linear = nn.Linear(x.shape[1], x.shape[0])
    linear.weight.data = x
    linear.weight.grad = torch.ones(x.shape)
    return linear


USES: dict[str, Callable[[Any], object]] = {
    "add": lambda g: plain_with_data(g.x) + 1,
    "ids": lambda g: plain_with_data(g.edge_index) + 1,
    "sum": lambda g: plain_with_data(g.x).sum(),
    "matmul": lambda g: torch.ones(2, len(g.x)) @ plain_with_data(g.x),
    "select": lambda g: plain_with_data(g.x)[torch.tensor([1])],
    "mask": lambda g: plain_with_data(g.x)[plain_with_data(g.x) > 0],
    "write": lambda g: plain_with_data(g.x).fill_(1),
    "write a row": lambda g: plain_with_data(g.x).__setitem__(0, 1),
    "foreach": lambda g: torch._foreach_add_([plain_with_data(g.x)], 1),
    "copy from": lambda g: torch.zeros(g.x.shape).copy_(plain_with_data(g.x)),
    "copy to": lambda g: plain_with_data(g.x).copy_(torch.ones(g.x.shape)),
    "clone": lambda g: plain_with_data(g.x).clone(),
    "double": lambda g: plain_with_data(g.x).double(),
    "item": lambda g: plain_with_data(g.x)[0, 0].item(),
    "tolist": lambda g: plain_with_data(g.x).tolist(),
    "repr": lambda g: repr(plain_with_data(g.x)),
    "numpy": lambda g: plain_with_data(g.x).numpy(),
    "asarray": lambda g: np.asarray(plain_with_data(g.x)),
    "save": lambda g: torch.save(plain_with_data(g.x), io.BytesIO()),
    "taken again": lambda g: plain_with_data(plain_with_data(g.x)) + 1,
    "gradient": lambda g: torch.autograd.grad((plain_with_data(g.x) @ ONES).sum(), ONES),
    "layer": lambda g: layer(g.x)(torch.ones(1, g.x.shape[1])),
    "SGD": lambda g: torch.optim.SGD(layer(g.x).parameters(), lr=1.0).step(),
    "fused Adam": lambda g: torch.optim.Adam(layer(g.x).parameters(), fused=True).step(),
    "functional": lambda g: F.normalize(plain_with_data(g.x)),
    "to_dlpack": lambda g: to_dlpack(g.x),
    "to_dlpack of ids": lambda g: to_dlpack(g.edge_index),
    "to_dlpack of the data": lambda g: to_dlpack(plain_with_data(g.x)),
    "pickle": lambda g: ForkingPickler.dumps(plain_with_data(g.x)),
    "share_memory_": lambda g: plain_with_data(g.x).share_memory_(),
    "share a module": lambda g: layer(g.x).share_memory(),
    "storage of the data": lambda g: (
        torch.zeros(3).set_(plain_with_data(g.x).untyped_storage()) + 1
    ),
    "new of a storage": lambda g: torch.zeros(3).new(plain_with_data(g.x).untyped_storage()) + 1,
    "deepcopy": lambda g: copy.deepcopy(plain_with_data(g.x)),
    "storage": lambda g: torch.zeros(3).set_(g.x.untyped_storage()),
    "address": lambda g: g.x.data_ptr(),
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_uses_raise(graph: str) -> None:
    process = run_python("-m", __name__, graph, timeout_s=250)
    assert (process.returncode, process.stdout) == (0, ""), process.stdout + process.stderr


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.skipif(not hasattr(torch.library.Library, "fallback"), reason="torch 2.4")
def test_data_is_not_taken_over(graph: str) -> None:
    shared = GRAPHS[graph](random_data(40))
    for x in (shared.x, shared.x.detach(), shared.y, shared.edge_index):
        plain = torch.zeros(x.shape, dtype=x.dtype)
        for target in (plain, nn.Parameter(plain, requires_grad=False)):
            with pytest.raises(NotImplementedError, match="has no memory to share"):
                target.data = x
            assert torch.equal(target, torch.zeros(x.shape, dtype=x.dtype))
    assert nn.Linear(2, 2).double().weight.dtype == torch.float64


@pytest.mark.parametrize("graph", GRAPHS)
def test_new_tensors(graph: str) -> None:
    data = random_data(40)
    shared = GRAPHS[graph](data)
    for x, plain in ((shared.x, data.x), (shared.y, data.y)):
        for new in (x.new_tensor([[1, 2]]), x.new(3, 2), x.new(plain.untyped_storage()), x.new()):
            assert (type(new), new.dtype, new.device) == (Tensor, plain.dtype, plain.device)
        assert x.new_tensor([[1, 2]], dtype=torch.int8).tolist() == [[1, 2]]
        assert torch.equal(x.new(plain.untyped_storage()), plain.flatten())


def _outcome(use: Callable[[Any], object], graph: Any) -> int:
    """Returns 0 if the use raises an error; else, 1, or the number of a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        try:
            use(graph)
        except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(1)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    shared = GRAPHS[sys.argv[1]](random_data(40))
    for name in USES:
        if outcome := _outcome(USES[name], shared):
            print(f"{name}: {outcome}", flush=True)
