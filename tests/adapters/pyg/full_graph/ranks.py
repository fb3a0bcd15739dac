"""Runs named cases on several ranks with one launch, and compares with PyG in one process."""

from __future__ import annotations

import copy
import importlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

import peergraph_pyg
from peergraph.memory import Group
from peergraph.testing import run_ranks

# Of float64: sums in another order.
TOLERANCE = 1e-9

OPTIONS: dict[str, Any] = {}
"""Of `full_graph`, for all cases of a launch."""

# Whether layers are swapped for Peergraph's, in the case that runs.
_swaps = [False, True]


def check_cases(
    module: str, names: Iterable[str], world_size: int, *, both: bool = True, **options: Any
) -> None:
    """Runs cases of a module on `world_size` ranks; the failure names each case that failed.

    Args:
        module: imported on every rank; its ``CASES`` are functions without arguments, by name.
        names: of the cases.
        world_size: number of ranks.
        both: whether each case runs with PyG's layers and with Peergraph's; else cases take turns.
        options: of `full_graph`.
    """
    names = list(names)
    results = run_ranks(_run, world_size, module, names, options, both, timeout_s=360)
    failures = [
        f"{name} on rank {rank} of {world_size}:\n{error}"
        for rank, errors in enumerate(results)
        for name, error in errors.items()
    ]
    assert not failures, "\n".join(failures)


def _run(module: str, names: list[str], options: dict[str, Any], both: bool) -> dict[str, str]:
    OPTIONS.update(options)
    cases: dict[str, Callable[[], Any]] = importlib.import_module(module).CASES
    default = torch.get_default_dtype()
    errors: dict[str, str] = {}
    group = Group.current("cpu")
    try:
        torch.set_default_dtype(torch.float64)
        for number, name in enumerate(names):
            _swaps[:] = (False, True) if both else (number % 2 == 0,)
            torch.manual_seed(0)
            try:
                cases[name]()
            except (Exception, pytest.fail.Exception):
                errors[name] = traceback.format_exc()
            # After a failure of some ranks alone, collectives of the others would meet no partner.
            if len(set(group.all_gather(name in errors))) == 2:
                break
    finally:
        torch.set_default_dtype(default)
    return errors


def full(value: Any) -> Any:
    """Values of all ranks, in the order of the user's ids; a plain tensor is one already."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def check_model(
    model: torch.nn.Module,
    data: Any,
    call: Callable[[torch.nn.Module, Any], Tensor] = lambda m, d: m(d.x, d.edge_index),
    *,
    inputs: Iterable[str] = ("x",),
    accelerated: bool = True,
    tolerance: float = TOLERANCE,
) -> None:
    """Checks result, gradients of parameters and of inputs, and the result without gradients.

    Args:
        model: a model or layer of PyG.
        data: a graph with the node attribute ``scale``; stays as it is.
        call: returns the result for the data, [nodes, columns] or with further dimensions.
        inputs: attributes whose gradients are compared too; of a heterogeneous graph
            ``"type/name"``, and the result is for nodes of the first type.
        accelerated: whether Peergraph's layers are tried as well as PyG's own, or in turns with
            them (:func:`check_cases`).
        tolerance: relative and absolute.
    """
    reference = copy_of(model)
    expected, expected_grads = _gradients(reference, copy.copy(data), call, inputs)
    ours = partition_of_case(data)
    for swap in _swaps if accelerated else (False,):
        candidate = copy_of(model)
        if swap:
            peergraph_pyg.accelerate(candidate)
        actual, found_grads = _gradients(candidate, copy.copy(ours), call, inputs)
        assert type(actual) is not Tensor, "the result is not partitioned"
        assert_close(actual, expected, tolerance, f"result, accelerated={swap}")
        assert found_grads.keys() == expected_grads.keys()
        for name, grad in expected_grads.items():
            assert_close(found_grads[name], grad, tolerance, f"gradient of {name}, {swap}")
        with torch.no_grad():
            assert_close(
                call(candidate.eval(), ours), call(reference.eval(), data), tolerance, "eval"
            )
        reference.train()


def copy_of(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares what PyG knows of the classes of its layers."""
    inspectors = [m.inspector for m in model.modules() if isinstance(m, MessagePassing)]
    return copy.deepcopy(model, {id(inspector): inspector for inspector in inspectors})


def partition_of_case(data: Any) -> Any:
    """Returns partitioned data; data that cases share (:func:`shared`) is partitioned once."""
    if id(data) not in _partitions:
        return peergraph_pyg.full_graph(data, **OPTIONS)
    if _partitions[id(data)] is None:
        _partitions[id(data)] = peergraph_pyg.full_graph(data, **OPTIONS)
    return copy.copy(_partitions[id(data)])


def shared(make: Callable[[], Any]) -> Any:
    """Returns the data that `make` returns, always the same; its cases must not change it."""
    if make not in _data:
        _data[make] = make()
        _partitions[id(_data[make])] = None
    return _data[make]


_data: dict[Callable[[], Any], Any] = {}
# By the identity of data that is kept in `_data`; None: not partitioned yet.
_partitions: dict[int, Any] = {}


def assert_close(actual: Any, expected: Any, tolerance: float = TOLERANCE, name: str = "") -> None:
    """Checks that values are equal on all ranks together."""
    torch.testing.assert_close(
        full(actual), expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}"
    )


def _gradients(
    model: torch.nn.Module,
    data: Any,
    call: Callable[[torch.nn.Module, Any], Tensor],
    inputs: Iterable[str],
) -> tuple[Tensor, dict[str, Any]]:
    leaves = {}
    for path in inputs:
        storage, name = _storage(data, path)
        leaves[path] = storage[name].detach().clone().requires_grad_()
        storage[name] = leaves[path]
    out = call(model, data)
    rows = out if out.dim() == 2 else out.flatten(1)
    scale = _storage(data, next(iter(inputs)))[0]["scale"]
    loss = (rows * scale[:, : rows.shape[1]]).sum()
    assert type(loss) is Tensor, "the loss is not plain"
    loss.backward()
    leaves.update(dict(model.named_parameters()))
    return out.detach(), {name: full(leaf.grad) for name, leaf in leaves.items()}


def _storage(data: Any, path: str) -> tuple[Any, str]:
    """The part of the data that has an attribute, and the attribute's name."""
    node_type, _, name = path.rpartition("/")
    return (data[node_type] if node_type else data), name
