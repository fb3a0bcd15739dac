"""Checks of the arguments of samplers, walks and negatives, and the streams of random numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.memory.device.launching import with_index
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.table.id_list import integers
from peergraph.sampling.sample import EdgeType, NodeType

if TYPE_CHECKING:
    from peergraph.store import Store

# Each kind of sample draws its random numbers from a separate range of streams, so that one seed
# may serve several samplers. K-hop samples take the streams below WALK_STREAM.
WALK_STREAM = 1 << 31
NEGATIVE_STREAM = 3 << 30
SAINT_STREAM = NEGATIVE_STREAM + 1  # and the next two
HGT_STREAM = NEGATIVE_STREAM + 4  # and one for each hop and node type
MAX_STEPS = 1 << 30

PROBABILITY_ONE = 1 << 53  # the fixed-point number of the probability 1


def as_integer(name: str, value: object) -> int:
    """Converts any kind of integer, except a bool, to a Python int."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    return operator.index(value)


def check_integer_tensor(name: str, value: object) -> Tensor:
    """Returns the value if it is a tensor of int32 or int64, or an empty tensor."""
    if isinstance(value, Tensor):
        value = integers(value)
    if not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
        got = value.dtype if isinstance(value, Tensor) else type(value)
        raise TypeError(f"{name}: expected an int32 or int64 tensor, got {got}")
    return value


def check_integer_vector(name: str, value: object) -> Tensor:
    """Returns the value if it is a tensor of :func:`check_integer_tensor` with one dimension."""
    vector = plain(name, check_integer_tensor(name, value))
    if vector.dim() != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {tuple(vector.shape)}")
    return vector


def to_fixed_point(name: str, probability: float) -> int:
    """Converts a probability to a multiple of 2**-53, as the compiled module takes it."""
    if isinstance(probability, bool) or not isinstance(probability, (int, float)):
        raise TypeError(f"{name}: expected a number, got {probability!r}")
    if not 0 <= probability <= 1:
        raise ValueError(f"{name}: expected 0 .. 1, got {probability}")
    return int(probability * PROBABILITY_ONE)


def check_int_range(name: str, value: object, least: int, most: int) -> int:
    """Returns the value as an int if it is an integer in ``least .. most``."""
    number = as_integer(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} .. {most}, got {number}")
    return number


def check_seed(seed: object) -> int:
    """Returns the seed of the random numbers as an int if it fits 64 bits."""
    number = as_integer("seed", seed)
    if not 0 <= number < 2**64:
        raise ValueError(f"seed: expected 0 .. 2**64 - 1, got {number}")
    return number


def check_edge_type(name: str, store: Store, edge_type: EdgeType) -> EdgeType:
    """Returns the edge type if the store has it."""
    if edge_type not in store.edge_types:
        raise ValueError(f"{name}: {edge_type!r} is not one of {list(store.edge_types)}")
    return edge_type


def check_node_ids(name: str, ids: object, store: Store, node_type: NodeType) -> Tensor:
    """Returns users' node ids as a contiguous int64 tensor on the store's device.

    Synchronises once to check ids on a GPU, and not for ids in pageable memory.
    """
    ids = check_integer_vector(name, ids)
    limit = store.num_nodes(node_type)
    bad = (ids < 0) | (ids >= limit)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise IndexError(
            f"{name}[{first}] = {int(ids[first])} is out of range for {limit} nodes of type "
            f"{node_type!r}"
        )
    device = store_device(store)
    # A copy from pinned memory may run later, after the caller has changed the ids.
    non_blocking = device.type == "cuda" and not ids.is_pinned()
    return ids.to(device, torch.int64, non_blocking=non_blocking).contiguous()


def store_device(store: Store) -> torch.device:
    """Returns the store's device; a GPU with its index."""
    return with_index(torch.device(store.device))
