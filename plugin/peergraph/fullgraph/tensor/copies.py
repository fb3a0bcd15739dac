"""Copies to other types, places and formats; what leaves the ranks' rows gathers them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, run_as_is
from peergraph.fullgraph.tensor.registry import function_rule, method, rule

GATHER_WARNING_BYTES = 1 << 30
"""From this size on, operations that gather all rows on every rank warn."""

aten = torch.ops.aten
_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


def gather(x: PartitionedTensor, name: str) -> Tensor:
    """Returns all rows in the user's order; warns where they are many. Collective."""
    size = x.numel() * x.element_size()
    if size >= GATHER_WARNING_BYTES:
        warnings.warn(
            f"{name} gathers {size / 2**30:.1f} GiB of rows on every rank; select rows or reduce "
            "first, or use x.to_local()",
            stacklevel=4,
        )
    return x.full_tensor()


@function_rule(Tensor.cpu, anywhere=True)
def cpu(x: PartitionedTensor, *args: Any, **kwargs: Any) -> Tensor:
    """All rows, on the CPU."""
    return gather(x, "cpu()").cpu()


@function_rule(Tensor.numpy, anywhere=True)
def numpy(x: PartitionedTensor, *, force: bool = False) -> Any:
    """All rows as an array."""
    return gather(x, "numpy()").numpy(force=force)


@function_rule(Tensor.__array__, anywhere=True)
def array(x: PartitionedTensor, dtype: Any = None) -> Any:
    """All rows as an array."""
    values = gather(x, "numpy()").numpy()
    return values if dtype is None else values.astype(dtype, copy=False)


@function_rule(Tensor.tolist, anywhere=True)
def tolist(x: PartitionedTensor) -> Any:
    """All rows as lists."""
    return gather(x, "tolist()").tolist()


@method("reduce_ex")
def reduce_ex(x: PartitionedTensor, protocol: Any) -> Any:
    """All rows, as `torch.save` and pickle write a plain tensor."""
    full = gather(x, "saving").detach().requires_grad_(x.requires_grad)
    return full.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


@function_rule(Tensor.__deepcopy__)
def deepcopy(x: PartitionedTensor, memo: dict[int, Any]) -> Any:
    """A copy of the local rows."""
    if not x.is_leaf:
        raise RuntimeError("only leaf tensors can be copied deeply: x.detach() first")
    if id(x) not in memo:
        memo[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
    return memo[id(x)]


def moves_to_cpu(x: PartitionedTensor, device: Any) -> bool:
    """Returns whether the first argument of ``x.to(device)`` is the CPU and `x` is on GPUs."""
    if not isinstance(device, (str, torch.device, int)):
        return False
    return bool(torch.device(device).type == "cpu" != x.device.type)


@function_rule(Tensor.to, anywhere=True)
def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Another type, or the CPU, which gathers; rows stay on their ranks' devices."""
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        args = (other.device, other.dtype, *args[1:])
        kwargs.pop("other", None)
    if isinstance(x, PartitionedTensor):
        device = kwargs.get("device", args[0] if args else None)
        if moves_to_cpu(x, device):
            with _DisableTorchFunction():
                return gather(x, 'to("cpu")').to(*args, **kwargs)
        if isinstance(device, (str, torch.device, int)):
            # Hooks on saved tensors may have moved this rank's rows to the CPU.
            x_device, target = x.row_layout.group.device, torch.device(device)
            if target.type != x_device.type or target.index not in (None, x_device.index):
                raise ValueError(
                    f"this rank's rows are on {x_device} and cannot move to {target}: "
                    "every rank computes on its own device"
                )
            if args:
                args = (x_device, *args[1:])
            else:
                kwargs["device"] = x_device
    result: Tensor = run_as_is(Tensor.to, x, *args, **kwargs)
    return result


@function_rule(Tensor.cuda)
def cuda(x: PartitionedTensor, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """The tensor itself where its rows are on GPUs."""
    return to(x, torch.device("cuda") if device is None else torch.device("cuda", device))


@function_rule(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(x: PartitionedTensor, value: Tensor) -> None:
    """``x.data = value``: the rows of another partitioned tensor, of the same shape."""
    if (
        not isinstance(value, PartitionedTensor)
        or value.partitioned_dim != x.partitioned_dim
        or value._local.shape != x._local.shape
        or value.dtype != x.dtype
        or not x.row_layout.same_rows(value.row_layout)
    ):
        not_implemented("data", "the new values have other rows, columns or another dtype")
    x._local = value._local
    if not x.requires_grad:
        # What was made from the rows before is not kept for the new ones.
        torch.autograd.graph.increment_version(x)


def _refusing(name: str) -> Any:
    def refuse(x: Any, *args: Any, **kwargs: Any) -> None:
        not_implemented(name, "it takes the memory of all rows, of which each rank holds some")

    return refuse


for _name in ("apply_", "data_ptr", "map_", "map2_", "share_memory_", "storage", "untyped_storage"):
    function_rule(getattr(Tensor, _name))(_refusing(_name))


@rule(aten._local_scalar_dense.default)
def item(x: PartitionedTensor) -> Any:
    """The only element."""
    return x.full_tensor().item()


@rule(aten.equal.default)
def equal(x: Any, other: Any) -> bool:
    """Whether shape and all elements are equal."""
    if type(x) is not PartitionedTensor or type(other) is not PartitionedTensor:
        not_implemented("equal", "one of the tensors is plain")
    if x._local.dim() != other._local.dim() or x.partitioned_dim != other.partitioned_dim:
        return False
    if x.row_layout.size != other.row_layout.size or not x.row_layout.same_rows(other.row_layout):
        return False
    return all(x.row_layout.group.all_gather(torch.equal(x._local, other._local)))


@function_rule(torch.allclose, Tensor.allclose)
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """As `torch.allclose`."""
    return bool(torch.isclose(input, other, rtol, atol, equal_nan).all())
