"""Checks of what users pass to samplers, walks and negatives, and what every call needs."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.memory.device.launching import with_index
from peergraph.memory.table.id_list import integers
from peergraph.sampling.sample import EdgeType, NodeType

if TYPE_CHECKING:
    from peergraph.store import Store

# Random numbers of k-hop samples come from the streams below; each kind has a range of its own, so
# that one seed may serve several samplers.
WALK_STREAM = 1 << 31
NEGATIVE_STREAM = 3 << 30
MAX_STEPS = 1 << 30

_CERTAIN = 1 << 53


def as_integer(name: str, value: object) -> int:
    """A Python int from any kind of integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    return operator.index(value)


def check_integers(name: str, value: object) -> Tensor:
    """The value, if it is a tensor of int32 or int64, or an empty one."""
    if isinstance(value, Tensor):
        value = integers(value)
    if not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
        got = value.dtype if isinstance(value, Tensor) else type(value)
        raise TypeError(f"{name}: expected an int32 or int64 tensor, got {got}")
    return value


def check_vector(name: str, value: object) -> Tensor:
    """The value, if it is a tensor of int32 or int64, or an empty one, with one dimension."""
    vector = check_integers(name, value)
    if vector.dim() != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {tuple(vector.shape)}")
    return vector


def chance(name: str, probability: float) -> int:
    """A probability out of 2**53, as the compiled module takes it."""
    if isinstance(probability, bool) or not isinstance(probability, (int, float)):
        raise TypeError(f"{name}: expected a number, got {probability!r}")
    if not 0 <= probability <= 1:
        raise ValueError(f"{name}: expected 0 .. 1, got {probability}")
    return int(probability * _CERTAIN)


def whole(name: str, value: object, least: int, most: int) -> int:
    """An integer within bounds."""
    number = as_integer(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} .. {most}, got {number}")
    return number


def random_seed(seed: object) -> int:
    """The seed of the random numbers."""
    number = as_integer("seed", seed)
    if not 0 <= number < 2**64:
        raise ValueError(f"seed: expected 0 .. 2**64 - 1, got {number}")
    return number


def known_relation(name: str, store: Store, edge_type: EdgeType) -> EdgeType:
    """The edge type, if the store has it."""
    if edge_type not in store.edge_types:
        raise ValueError(f"{name}: {edge_type!r} is not one of {list(store.edge_types)}")
    return edge_type


def node_ids(name: str, ids: object, store: Store, node_type: NodeType) -> Tensor:
    """Users' node ids as a contiguous int64 tensor on the store's device.

    Ids on a GPU cost one wait of the host to be checked, those in ordinary memory none.
    """
    ids = check_vector(name, ids)
    limit = store.num_nodes(node_type)
    bad = (ids < 0) | (ids >= limit)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise IndexError(
            f"{name}[{first}] = {int(ids[first])} is out of range for {limit} nodes of type "
            f"{node_type!r}"
        )
    device = device_of(store)
    # From pinned memory the copy may come late, and the caller may change the ids meanwhile.
    ahead = device.type == "cuda" and not ids.is_pinned()
    return ids.to(device, torch.int64, non_blocking=ahead).contiguous()


def device_of(store: Store) -> torch.device:
    """The store's device, with an index where it is a GPU."""
    return with_index(torch.device(store.device))
