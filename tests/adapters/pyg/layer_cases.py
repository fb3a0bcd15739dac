"""Layers of PyG and of Peergraph with the same weights, and graphs to run them on."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import conv as pyg
from torch_geometric.nn.conv import MessagePassing

from peergraph_pyg import explain
from peergraph_pyg import nn as fast
from peergraph_pyg.fullgraph import utilities

WIDTH, CHANNELS, EDGE_WIDTH, RELATIONS = 6, 5, 3, 4
# Of layers on one type of nodes.
NAMES = [name for name in fast.__all__ if name not in ("HANConv", "HGTConv")]

# PyG's code for a class depends on the first layer of it that is made.
pyg.SAGEConv(1, 1)


def mlp(fan_in: int = WIDTH) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(fan_in, CHANNELS), torch.nn.ReLU())


def arguments(name: str, bipartite: bool = False) -> tuple[Any, ...]:
    """What the constructor of layer `name` takes before its options."""
    width = (WIDTH, WIDTH + 1) if bipartite and name != "GCNConv" else WIDTH
    if name in ("GINConv", "GINEConv"):
        return (mlp(),)
    if name == "GatedGraphConv":
        return (WIDTH + 1, 2)
    return (width, CHANNELS, RELATIONS) if name.endswith("RGCNConv") else (width, CHANNELS)


def pair(name: str, *args: Any, **options: Any) -> tuple[MessagePassing, MessagePassing]:
    """PyG's layer and ours, the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(pyg, name)(*args, **options)
    ours = getattr(fast, name)(*copy.deepcopy(args), **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def edges(
    sources: int = 9,
    destinations: int = 9,
    count: int = 40,
    *,
    grouped: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """A multigraph with self loops; the last source and destination have no edges."""
    random = torch.Generator().manual_seed(1)
    source = torch.randint(max(1, sources - 1), (count,), generator=random)
    destination = torch.randint(max(1, destinations - 1), (count,), generator=random)
    edge_index = torch.stack([source, destination])
    if grouped:
        edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    return edge_index.to(device, dtype)


def x_and_edges(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(4)
    return torch.randn(9, WIDTH, generator=random).to(device), edges(device=device)


def edge_inputs(
    name: str, count: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """What layer `name` takes for edges besides the edge index, with gradients."""
    random = torch.Generator().manual_seed(2)
    if name in ("GCNConv", "GraphConv", "GatedGraphConv"):
        weight = torch.rand(count, generator=random).to(device, dtype)
        return (weight.requires_grad_(),)
    if name == "GINEConv":
        features = torch.randn(count, WIDTH, generator=random).to(device, dtype)
        return (features.requires_grad_(),)
    if name.endswith("RGCNConv"):
        return (torch.randint(RELATIONS - 1, (count,), generator=random).to(device),)
    return ()


def is_fast(layer: torch.nn.Module, *args: Any, **options: Any) -> bool:
    """Whether Peergraph does every step that explain() names; PyG's `forward` may call them, as
    where heads do not fit a GPU's single pass of attention.
    """
    lines = explain(layer, *args, **options).splitlines()
    steps = [line for line in lines if not line.startswith("forward: PyG")]
    return bool(steps) and "PyG" not in "".join(steps)


def script(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a model that TorchScript has compiled, in a process that has called `full_graph`.

    A process in which only some tests have called it would not do: TorchScript compiles overloaded
    functions once, PyG's or those in their places.
    """
    utilities.install()
    scripted: torch.nn.Module = torch.jit.script(model)
    return scripted


def gradients(layer: torch.nn.Module, *args: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    """What a call returns, and the gradients of all parameters and inputs."""
    args = tuple(_leaf(arg) for arg in args)
    torch.manual_seed(3)
    out = layer(*args, **options)
    value = out[0] if isinstance(out, tuple) else out
    # Each column has its own weight, so that swapped columns would be seen.
    scale = torch.linspace(0.5, 1.5, value.shape[-1], device=value.device).to(value.dtype)
    flat = [item for arg in args for item in (arg if isinstance(arg, tuple) else (arg,))]
    leaves = [item for item in flat if isinstance(item, Tensor) and item.requires_grad]
    leaves += [parameter for parameter in layer.parameters() if parameter.requires_grad]
    actual = torch.autograd.grad((value * scale).sum(), leaves, allow_unused=True)
    pairs = zip(actual, leaves, strict=True)
    return out, [torch.zeros_like(of) if grad is None else grad for grad, of in pairs]


def _leaf(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return tuple(_leaf(item) for item in arg)
    if isinstance(arg, Tensor) and arg.is_floating_point():
        return arg.detach().clone().requires_grad_()
    return arg


def assert_same(
    theirs: MessagePassing,
    ours: MessagePassing,
    *args: Any,
    tolerance: float = 1e-5,
    **options: Any,
) -> None:
    """Both layers return the same, and have the same gradients."""
    expected, actual = gradients(theirs, *args, **options), gradients(ours, *args, **options)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
