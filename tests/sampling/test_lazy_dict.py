"""Dicts whose items are made at their first use behave as dicts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.sampling import LazyDict, NeighborSampler
from tests.named_case import named_cases
from tests.sampling.many_relations import NUM_NODES, NUM_RELATIONS, SEEDS, random_relations
from tests.sampling.plain_store import PlainStore

# What says nothing about the items, or is called before there are any.
OTHERS = {
    *("__class__", "__class_getitem__", "__delattr__", "__dir__", "__doc__", "__format__"),
    *("__getattribute__", "__getstate__", "__init__", "__init_subclass__", "__new__", "__reduce__"),
    *("__setattr__", "__sizeof__", "__str__", "__subclasshook__", "__hash__", "fromkeys"),
}

USES = {
    "key": lambda d: d["a"],
    "get": lambda d: d.get("b"),
    "items": lambda d: list(d.items()),
    "length": len,
    "equal": lambda d: d == {"a": 1, "b": 2},
    "equal on the right": lambda d: [{"a": 1, "b": 2}].index(d),
    "contains": lambda d: "a" in d,
    "true": bool,
    "dict": dict,
    "unpacked": lambda d: {**d},
    "keywords": lambda d: dict(**d),
    "update": lambda d: (lambda other: other.update(d) or other)({}),
    "union": lambda d: d | {"c": 3},
    "union on the right": lambda d: {"c": 3} | d,
    "copied": copy.copy,
    "deep": copy.deepcopy,
    "pickled": lambda d: pickle.loads(pickle.dumps(d)),
    "text": repr,
    "set": lambda d: (d.setdefault("a", 5), d.pop("b"), sorted(d)),
}


@named_cases("use", USES)
def test_every_use_finds_the_items(use: str) -> None:
    def lazy() -> Any:
        return LazyDict(lambda: {"a": 1, "b": 2})

    assert not lazy().is_made
    assert USES[use](lazy()) == USES[use]({"a": 1, "b": 2})


def test_all_methods_of_dicts_make_the_items() -> None:
    own = {name for name in dir(dict) if name not in OTHERS}
    assert own <= set(vars(LazyDict))
    with pytest.raises(TypeError):
        hash(LazyDict(dict))


def test_items_are_made_once() -> None:
    calls = []
    lazy = LazyDict(lambda: calls.append(1) or {"a": 1})  # type: ignore[func-returns-value]
    assert (lazy["a"], len(lazy), lazy.is_made, calls) == (1, 1, True, [1])


def test_tensors_of_a_sample(device: torch.device) -> None:
    relations = random_relations(np.random.default_rng(65), NUM_RELATIONS)
    store = PlainStore(NUM_NODES, relations, device=device)
    sampler = NeighborSampler(store, [3, 2])
    unused, used = sampler.sample(SEEDS, 3), sampler.sample(SEEDS, 3)
    arrays = unused.arrays
    assert arrays is not None
    ends = [end for t in used.row for end in (used.row[t], used.col[t])]
    assert torch.equal(arrays.edge_index, torch.cat(ends))
    assert used.arrays is None
    assert copy.copy(unused).arrays is None
    first, second = ends[:2]
    first.add_(1)
    assert (first._version, second._version) == (1, 0)
