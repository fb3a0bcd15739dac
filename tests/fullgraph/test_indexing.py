"""Indexing equals torch's: values, shapes, dtypes and gradients, read, written and through views.

Each expression runs on plain tensors and on partitioned and offloaded ones, with and without
gradients; a partitioned tensor may refuse it with an error, but never differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.fullgraph import distribute
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.partitioned import shuffled_layout
from tests.fullgraph.partitioned_cases import assert_none_failed, plain

ROWS = 12
assert OffloadedCsc  # its module registers the rules

READS = """
x[0,:]
x[5]
x[-1,2]
x[np.int64(4)]
x[torch.tensor(3)]
x[:]
x[...]
x[2:9]
x[::3,1:]
x[3:9][1:4]
x[None]
x[:,None]
x[2:5,None,0]
x[ids]
x[ids,col]
x[ids,[2]]
x[[7,3],[2,0]]
x[ids.tolist()]
x[np.array([3,1])]
x[neg]
x[neg.view(-1)].reshape(5,3,-1)
x[neg.view(-1)].view(5,3,-1)
x[neg,1]
x[neg,neg%4]
x[neg[:,:1],[0,1]]
x[mk]
x[mk,1]
x[mk,lab[mk]]
x[m]
x[m,y[m]]
x[m,lab[mm]]
x[torch.arange(n),lab]
x[torch.arange(n),y]
x[m][:,1:]
x[:,[0,2]]
x[:,col]
x[1:8][[0,2,2]]
x[1:8,[0,2,2]]
x[ids][torch.arange(4),col]
x[mk.numpy()]
x[torch.zeros(0,dtype=torch.long)]
x[[]]
x[5:5]
y[3]
y[2:7]
y[neg]
x[-3]
x.index_select(0,ids)
x.select(0,3)
x.narrow(0,2,4)
torch.stack(list(x.split(4)))
x.chunk(3)[1]
x.unbind(0)[2]
x.t()[:,2:5]
x.t()[1]
x.t()[:,3]
x.masked_select(x>0)
x[x>0]
x[:2]@x.t()
x[ids]@x.t()
x[m]@x.t()
x@x[ids].t()
x[ids]@x[ids].t()
torch.cdist(x,torch.eye(3,4,dtype=torch.float64))
(x[ids]*W[col]).sum(1)
x[ids]*x[ids.flip(0)]
(x[ids][:,None]*x[neg[:4]]).sum(-1)
x[0].softmax(0)
float(x[3][1])
W[y%4]
W[y%4,y]
x[3:9].sum(0)
x[3:9]*x[3:9]
torch.zeros(4,4,dtype=torch.float64).index_put_((y,x[:,:4].argmax(1)),torch.ones(n,dtype=torch.float64),accumulate=True)
x[m & (y>1)]
x[y>5]
x[1:,0]-x[:-1,0]
x[1:5]-x[ids]
""".strip().splitlines()

WRITES = """
x[3][2]=5.
x[:10].zero_()
x[4]=1.
x[4]=torch.arange(4.)
x[-1,2]=7
x[2:5]=torch.ones(3,4)
x[2:5,1]=3.
x[ids,col]=9.
x[ids,col]=torch.arange(4.).double()
x[[0,0],[1,2]]=torch.tensor([5.,6.]).double()
x[mk,lab[mk]]=1.
x[m,y[m]]=2.
x[m]=0.
x[m]=x[m]*2
x[m,0]=5
x[neg]=1.
x[neg[:2],col[:3]]=3.
x[3:9].zero_()
x[3:9][1].fill_(2)
x[3:9][:,1].add_(1)
p=x[2:5];p+=5
p=x[2:5];x.zero_();x+=p.sum()
p=x[4];p+=1
p=x[4];p[1]=3
p=x[4];x.mul_(2);x+=p.sum()
x[4][1:].mul_(3)
x[:10]*=2
x[2:5]+=x[5:8]
x[torch.arange(n),lab]=0.
x[torch.arange(n),y]+=1
x.index_fill_(0,ids,2.)
x.index_add_(0,ids,torch.ones(4,4,dtype=torch.float64))
x.index_copy_(0,ids[:2],torch.ones(2,4,dtype=torch.float64))
x.index_put_((ids,col),torch.ones(4,dtype=torch.float64),accumulate=True)
x.index_put_((ids,),torch.tensor(1.).double())
x[x>0]=0.
x.select(0,2).zero_()
x.narrow(0,1,3).zero_()
x.data[2:4]=9.
x[...,2]=1
x[2:9:3]=4.
x.split(4)[1].zero_()
x.unbind(0)[3].zero_()
x[5,[0,2]]=8.
x[2:6,[0,2]]=8.
x.t()[:,2:4].zero_()
x.t()[1,3]=2.
x[0:6][2:4]=3.
x[m][0]=5.
x[ids][:2].zero_()
x[ids]=torch.arange(16).view(4,4).double()
""".strip().splitlines()

REFUSED = """
p=x[4];x.mul_(2);x+=p.sum()
x[torch.arange(n),y]+=1
""".strip().splitlines()
"""What resident rows refuse: with gradients, torch reads the row before its tensor has changed."""

OFFLOADED_REFUSED = """
x.t()[:,2:5]
x.t()[:,3]
x.masked_select(x>0)
x[x>0]
x[3:9][1].fill_(2)
x[3:9][:,1].add_(1)
p=x[2:5];x.zero_();x+=p.sum()
x[torch.arange(n),lab]=0.
x.index_add_(0,ids,torch.ones(4,4,dtype=torch.float64))
x[x>0]=0.
x.data[2:4]=9.
x.t()[:,2:4].zero_()
x.t()[1,3]=2.
x[0:6][2:4]=3.
x[2:5]+=x[5:8]
""".strip().splitlines()
"""What offloaded rows refuse, with gradients or without."""


def make_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(ROWS, generator=generator) < 0.5
    return {
        "x": torch.randn(ROWS, 4, generator=generator, dtype=torch.float64),
        "y": torch.randint(4, (ROWS,), generator=generator),
        "m": mask,
        "W": torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_(),
        # Plain, with partitioned ones as with plain ones.
        "mm": mask.clone(),
        "mk": torch.arange(ROWS) % 3 == 0,
        "lab": torch.arange(ROWS) % 4,
        "ids": torch.tensor([7, 3, 11, 3]),
        "col": torch.tensor([2, 0, 1, 1]),
        "neg": torch.randint(ROWS, (5, 3), generator=generator),
        "n": ROWS,
        "np": np,
        "torch": torch,
    }


def partition(inputs: dict[str, Any], group: Group, offload: bool) -> dict[str, Any]:
    layout = shuffled_layout(group, ROWS)
    parts = {name: distribute(inputs[name], layout) for name in ("x", "y", "m")}
    if offload:
        spaces = RowSpaces(RowAllocator(group, 0, 1 << 24))
        space = spaces.add(layout, Chunks.even(layout, 2))
        parts["x"] = store_resident(space, parts["x"])
        parts["space"] = space
    return inputs | parts


def run(expression: str, inputs: dict[str, Any], grad: bool) -> list[Any]:
    """The result of an expression, and the gradients of `x` and `W`."""
    x = inputs["x"].clone()
    weight = inputs["W"].detach().clone().requires_grad_()
    leaf = inputs["x"].clone().detach().requires_grad_() if grad else x
    x = leaf * 1 if grad else x
    names = inputs | {"x": x, "W": weight}
    if expression in WRITES:
        exec(expression, names)
        result = names["x"]
    else:
        result = eval(expression, names)
    gradients: list[Any] = []
    if grad and isinstance(result, Tensor) and result.requires_grad:
        result.sin().sum().backward()
        gradients = [leaf.grad, weight.grad]
    return [plain(value) for value in (result, *gradients)]


def failures_on_rank(offload: bool) -> dict[str, str]:
    group = Group.current("cpu")
    failed = {}
    for expression in (*READS, *WRITES):
        for grad in (False, True):
            name = f"{expression} {'with' if grad else 'without'} gradients"
            try:
                expected = run(expression, make_inputs(), grad)
            except RuntimeError:
                continue  # as views of several results that are written
            try:
                actual = run(expression, partition(make_inputs(), group, offload), grad)
                torch.testing.assert_close(actual, expected)
            except (NotImplementedError, RuntimeError) as error:
                may_refuse = expression in REFUSED or (offload and expression in OFFLOADED_REFUSED)
                if not may_refuse:
                    failed[name] = str(error)
            except Exception as error:
                failed[name] = f"{type(error).__name__} {error}"
    return failed


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_indexing_equals_that_of_plain_tensors(ranks: int, offload: bool) -> None:
    assert_none_failed(run_ranks(failures_on_rank, ranks, offload))


BAD_INDICES = """
x[12]
x[-13, 1]
x[0, 4]
x[0, 0, 0]
x[torch.tensor([12])]
x[torch.ones(4).bool()]
x[1.5]
x[torch.tensor([0.5])]
x[::-1]
x[ids, col[:3]]
x["a"]
""".strip().splitlines()


@pytest.mark.parametrize("offload", [False, True])
def test_what_torch_refuses_is_refused(offload: bool) -> None:
    inputs = partition(make_inputs(), Group.current("cpu"), offload)
    for expression in BAD_INDICES:
        with pytest.raises((IndexError, TypeError, ValueError)):
            eval(expression, make_inputs())
        with pytest.raises((IndexError, TypeError, ValueError)):
            eval(expression, inputs)
