"""Private parts of PyG and torch that the adapter touches; no other module of it does.

Written for PyG 2.6 to 2.8 and torch 2.4 to 2.13; ``tests/adapters/pyg/test_compat.py`` tries each
of them and names the version that changed one.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as nn_module
from torch_geometric import utils
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import MessagePassing, gcn_conv, hetero_conv
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.nn.models.rev_gnn import InvertibleModule
from torch_geometric.utils import num_nodes
from torch_geometric.utils._trim_to_layer import TrimToLayer, trim_adj, trim_feat

from peergraph.integration import Patches
from peergraph.live_bytes import has_dispatch_mode

__all__ = ["Aggregation", "InvertibleModule", "TrimToLayer", "trim_adj", "trim_feat"]

PYG = "2.8"
"""The newest version of PyG that the adapter was written for."""

patches = Patches("torch_geometric", PYG)
"""The functions of PyG that :mod:`.loader.patches` replaces."""

full_graph_patches = Patches("torch_geometric", PYG)
"""The functions of PyG that :mod:`.fullgraph.utilities` replaces."""

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

_STEP_HOOKS = tuple(
    f"_{step}_forward{kind}_hooks"
    for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("_pre", "")
)
_step_hooks_of = attrgetter(*_STEP_HOOKS)


# Functions of torch_geometric.utils that take edges and are not exact on rows of one rank.
UNSERVED_FUNCTIONS = (
    *("add_random_edge", "assortativity", "batched_negative_sampling", "bipartite_subgraph"),
    *("coalesce", "contains_isolated_nodes", "dropout_adj"),
    *("dropout_path", "get_ppr", "get_self_loop_attr", "homophily", "index_sort", "is_undirected"),
    *("k_hop_subgraph", "lexsort", "normalized_cut"),
    *("remove_isolated_nodes", "segregate_self_loops", "sort_edge_index"),
    *("structured_negative_sampling", "subgraph", "to_dense_adj", "to_networkx"),
    *("to_scipy_sparse_matrix", "to_torch_coo_tensor", "to_torch_csc_tensor"),
    *("to_torch_csr_tensor", "to_torch_sparse_tensor", "to_undirected", "unbatch"),
)


# torch_geometric.data


def data_storage(data: Data) -> Any:
    """The one storage of a ``Data``."""
    return data._store


def graph_storage(data: Data | HeteroData) -> Any:
    """The storage of attributes of the whole graph."""
    return data._store if isinstance(data, Data) else data._global_store


storage_values: Callable[[Any], dict[str, Any]] = attrgetter("_mapping")
"""Returns the attributes of a storage by name, without those that PyG infers."""


def node_storages(data: HeteroData) -> dict[Any, Any]:
    """The storages of a ``HeteroData``'s nodes by their type."""
    storages: dict[Any, Any] = data._node_store_dict
    return storages


def edge_storages(data: HeteroData) -> dict[Any, Any]:
    """The storages of a ``HeteroData``'s edges by their type."""
    storages: dict[Any, Any] = data._edge_store_dict
    return storages


def copy_data(data: HeteroData) -> HeteroData:
    """Does the same as ``copy.copy``, in a fourth of the time where there are many edge types."""
    kind: Any = type(data)
    storages: set[Any] = {type(storage) for storage in data._edge_store_dict.values()}
    plain = all(each.__copy__ is BaseStorage.__copy__ for each in storages)
    if kind.__copy__ is not HeteroData.__copy__ or not plain:
        return copy.copy(data)
    new: Any = object.__new__
    without_edges = new(kind)
    without_edges.__dict__.update(data.__dict__, _edge_store_dict={})
    out: HeteroData = copy.copy(without_edges)
    parent = weakref.ref(out)
    copies = out._edge_store_dict
    for edge_type, storage in data._edge_store_dict.items():
        copied = copies[edge_type] = new(type(storage))
        values = copied.__dict__
        values.update(storage.__dict__)
        values["_mapping"], values["_parent"] = {**storage._mapping}, parent
        if "_cached_attr" in values:
            del values["_cached_attr"]
    return out


def storage_type(storage: Any) -> Any:
    """The node type or edge type of a storage; None in a ``Data``."""
    return storage._key


def storage_data(storage: Any) -> Data | HeteroData:
    """The data that a storage is part of."""
    return storage._parent()


def canonical_edge_type(data: HeteroData, names: Any) -> Any:
    """The edge type of source, relation and destination for PyG's shorter ways to name it."""
    return data._to_canonical(*names)


# torch

_COMPILES_LAYERS = TORCH >= (2, 6)


def compiles_layers() -> bool:
    """False only where a torch below 2.6 compiles: it cannot leave a call by an exception."""
    return _COMPILES_LAYERS or not torch.compiler.is_compiling()


def is_traced() -> bool:
    """Whether TorchScript traces the call, or a mode of torch sees its operations."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return True
    return has_dispatch_mode()


def has_function_transform() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    return bool(torch._C._are_functorch_transforms_active())


def has_forward_mode() -> bool:
    """Whether forward-mode autograd is active."""
    return torch.autograd.forward_ad._current_level >= 0


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks see the calls of a module, its own hooks or those of all modules."""
    try:  # by name: layers of many relations ask for each of them
        return bool(
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or nn_module._global_forward_hooks
            or nn_module._global_forward_pre_hooks
            or nn_module._global_backward_hooks
            or nn_module._global_backward_pre_hooks
        )
    except AttributeError:
        # A release of torch that keeps hooks elsewhere may have some that we do not see.
        return True


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks of the module itself see what its ``forward`` gets or returns."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def version_of(tensor: Tensor) -> int:
    """The number of writes to a tensor's memory that torch has counted."""
    return tensor._version


def memory_of(tensor: Tensor) -> int:
    """A number that tensors have in common if they share memory, unique among living tensors."""
    return int(tensor.untyped_storage()._cdata)


def coo_tensors(tensor: Tensor) -> list[Tensor]:
    """Indices and values of a COO tensor, coalesced or not."""
    return [tensor._indices(), tensor._values()]


def can_alias(operator: Any) -> bool:
    """Whether an operator of torch may return or write to the memory of an argument."""
    return any(argument.alias_info is not None for argument in operator._schema.arguments)


def is_in_place(operator: Any) -> bool:
    """Whether an operator of torch writes to its first argument and returns it."""
    return bool(operator._schema.name.endswith("_"))


def keep_version(tensor: Tensor) -> AbstractContextManager[None]:
    """A context in which changes of a tensor do not count for autograd."""
    context: AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return context


# torch_geometric.utils


def edge_function(name: str) -> Any:
    """A function of PyG that takes edges, by its name, as it is at the moment."""
    if name == "gcn_norm":
        return gcn_conv.gcn_norm
    return getattr(num_nodes if name == "maybe_num_nodes" else utils, name)


def numbering_of_pairs(negative_sampling: Any) -> tuple[Any, Any]:
    """The functions by which PyG's ``negative_sampling`` numbers pairs of nodes, and back.

    Args:
        negative_sampling: PyG's own.
    """
    names = inspect.unwrap(negative_sampling).__globals__
    return names["edge_index_to_vector"], names["vector_to_edge_index"]


# torch_geometric.nn

CHECK_INPUT = "_check_input"
"""The method of ``MessagePassing`` that every ``propagate`` calls with its edges."""


def step_hook(layer: MessagePassing) -> str | None:
    """The name of the hooks that see a step of a layer's message passing; None without any."""
    # By one call: layers of many relations ask for each of them.
    if not torch.compiler.is_compiling() and not any(_step_hooks_of(layer)):
        return None
    for name in _STEP_HOOKS:
        if getattr(layer, name):
            return name.strip("_")
    return None


def interpreted(name: str) -> Any:
    """The method of ``MessagePassing`` that reads the arguments of a layer when it is called.

    An instance of plain ``MessagePassing`` makes PyG compile the methods into that class, for the
    arguments of that instance alone. PyG keeps the interpreted ones then.

    Args:
        name: ``propagate`` or ``edge_updater``.
    """
    return getattr(MessagePassing, f"_orig_{name}", getattr(MessagePassing, name))


def set_class_methods(cls: type[MessagePassing], keeps_propagate: bool) -> None:
    """Stores the methods of a layer's class where PyG looks for them.

    PyG compiles ``propagate`` and ``edge_updater`` from templates, and stores in each class the
    plain and the compiled ones, which it restores after explaining or decomposing a layer. It tells
    them apart by the names of their modules.

    Args:
        cls: subclass of a layer of PyG.
        keeps_propagate: whether `cls` has the ``propagate`` that all fused layers inherit, instead
            of one that a user wrote.
    """
    cls._orig_edge_updater = cls._jinja_edge_updater = cls.edge_updater
    cls._orig_propagate = cls._jinja_propagate = cls.propagate
    if keeps_propagate:
        compiled = f"{cls.__module__}_{cls.__name__}_propagate"
        cls._orig_propagate = _in_module(cls.propagate, MessagePassing.__module__)
        cls._jinja_propagate = _in_module(cls.propagate, compiled)


def set_layer_class(layer: MessagePassing, cls: type[MessagePassing]) -> None:
    """Makes a layer an instance of `cls`: its class in PyG, or the fused subclass of that class.

    Neither adds state to the other, so assigning ``__class__`` keeps all parameters, buffers and
    hooks. What PyG derives from the class is derived again.
    """
    layer.__class__ = cls
    layer.inspector = type(layer.inspector)(cls)
    layer.inspector.inspect_signature(layer.message)
    layer.inspector.inspect_signature(layer.aggregate, exclude=[0, "aggr"])
    layer.inspector.inspect_signature(layer.message_and_aggregate, [0])
    layer.inspector.inspect_signature(layer.update, exclude=[0])
    layer.inspector.inspect_signature(layer.edge_update)
    if layer.explain:
        layer.inspector.inspect_signature(layer.explain_message, exclude=[0])
    # PyG compiles `propagate` of a class unless that of the layer is compiled already, so what
    # explaining or decomposing has put into the layer goes first.
    layer.__dict__.pop("propagate", None)
    layer._set_jittable_templates()
    if layer.explain or layer.decomposed_layers != 1:
        layer.propagate = cls._orig_propagate.__get__(layer)


def lift_pair(
    layer: MessagePassing, edge_index: Any, size: list[int | None], pair: Any, of_sources: bool
) -> Any:
    """The features of one end of each edge, of a pair of features of sources and destinations.

    Args:
        layer: whose messages the features are for.
        edge_index: of the call.
        size: of the call; gets the numbers of rows that the pair has.
        pair: features of sources, of destinations.
        of_sources: which of them.
    """
    for end, values in enumerate(pair):
        if isinstance(values, Tensor):
            layer._set_size(size, end, values)
    values, end = (pair[0], 1) if of_sources else (pair[1], 0)
    return layer._lift(values, edge_index, end) if isinstance(values, Tensor) else values


def group_relations(results: list[Tensor], aggr: str | None) -> Tensor:
    """The result of a HeteroConv for a node type, given the results of the relations into it."""
    result: Tensor = hetero_conv.group(results, aggr)
    return result


def model_trim(model: BasicGNN) -> TrimToLayer:
    """The module of a ready-made model that trims its layers' inputs."""
    return model._trim


def _in_module(function: Any, module: str) -> Any:
    """A copy of a function that says that it is of another module."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    copy.__module__, copy.__qualname__ = module, function.__qualname__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    return copy
