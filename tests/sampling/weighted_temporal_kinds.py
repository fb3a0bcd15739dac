"""The ways to choose neighbours, and stores with the weights and times that they need."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.reference.weighted_temporal import Choice
from peergraph.sampling import NeighborSampler
from tests.named_case import named_cases
from tests.sampling.plain_store import PlainStore

KINDS = {
    "replace": ("replace",),
    "weights": ("weights",),
    "weights, replace": ("weights", "replace"),
    "node time": ("node_time",),
    "edge time": ("edge_time",),
    "node time, last": ("node_time", "last"),
    "edge time, last": ("edge_time", "last"),
    "node time, last, replace": ("node_time", "last", "replace"),
    "edge time, last, replace": ("edge_time", "last", "replace"),
    "edge time, replace": ("edge_time", "replace"),
    "node time, weights": ("node_time", "weights"),
    "node time, window": ("node_time", "window"),
    "edge time, window, last": ("edge_time", "last", "window"),
    "edge time, window, replace": ("edge_time", "replace", "window"),
    "edge time, window, weights": ("edge_time", "weights", "window"),
    "labor, edge time, window": ("labor", "edge_time", "window"),
    "edge time, weights, replace": ("edge_time", "weights", "replace"),
    "labor": ("labor",),
    "labor, layer dependency": ("labor", "layer_dependency"),
    "labor, weights": ("labor", "weights"),
    "labor, node time": ("labor", "node_time"),
    "mask": ("weights", "bool", "skip_zero_weights"),
    "mask, replace": ("weights", "bool", "skip_zero_weights", "replace"),
    "weights above zero": ("weights", "skip_zero_weights"),
    "weights above zero, replace": ("weights", "skip_zero_weights", "replace"),
    "labor, weights above zero": ("labor", "weights", "skip_zero_weights"),
    "node time, weights above zero": ("node_time", "weights", "skip_zero_weights"),
    "edge time, mask, replace": ("edge_time", "weights", "bool", "skip_zero_weights", "replace"),
}


KIND_PARAMS = [pytest.param(kind, id=name) for name, kind in KINDS.items()]
each_kind = named_cases("kind", KIND_PARAMS)


def random_weights(rng: np.random.Generator, count: int, dtype: type) -> np.ndarray:
    """Over many magnitudes, some equal, some 0, some the least and the greatest there are; or a
    mask.
    """
    if dtype is np.bool_:
        return rng.random(count) < 0.5
    weights = np.exp(rng.normal(0, 4, count))
    weights[rng.random(count) < 0.2] = 0
    weights[rng.random(count) < 0.2] = 1
    info = np.finfo(dtype)
    weights[rng.random(count) < 0.02] = info.smallest_subnormal
    weights[rng.random(count) < 0.02] = info.max
    return weights.astype(dtype)


def prepare(
    store: PlainStore, rng: np.random.Generator, kind: tuple[str, ...], wide: bool = True
) -> tuple[dict[str, object], dict[tuple[str, str, str], Choice]]:
    """Adds the tables a kind needs; returns the sampler's options, and what they mean."""
    choices = {
        t: Choice(
            replace="replace" in kind,
            per_source="labor" in kind,
            layer_dependency="layer_dependency" in kind,
            skip_zero_weights="skip_zero_weights" in kind,
        )
        for t in store.edge_types
    }
    options: dict[str, object] = {
        o: True for o in ("replace", "labor", "layer_dependency", "skip_zero_weights") if o in kind
    }
    if "window" in kind:
        options["time_window"] = 6
        for choice in choices.values():
            choice.window = 6
    times = np.int64 if wide else np.int32
    if "last" in kind:
        options["temporal_strategy"] = "last"
    if "weights" in kind:
        options["weights"] = "w"
        for t, csc in store.relations.items():
            dtype = np.bool_ if "bool" in kind else np.float64 if wide else np.float32
            values = random_weights(rng, csc.indices.size, dtype)
            choices[t].weights = values
            store.add_table(t, "w", values if wide else values[:, None])
    if "edge_time" in kind:
        options["edge_time"] = "t"
        for t, csc in store.relations.items():
            values = rng.integers(-5, 20, csc.indices.size).astype(times)
            choices[t].times, choices[t].edge_time, choices[t].last = values, True, "last" in kind
            store.add_table(t, "t", values)
    if "node_time" in kind:
        options["node_time"] = "t"
        for t in store.node_types:
            values = rng.integers(-5, 20, store.num_nodes(t)).astype(times)
            store.add_table(t, "t", values, own_order=wide)
            for edge_type in store.edge_types:
                if edge_type[0] == t:
                    choices[edge_type].times = values
                    choices[edge_type].last = "last" in kind
    return options, choices


def times_of(
    rng: np.random.Generator, sampler: NeighborSampler, seeds: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    if not sampler.options.timed:
        return None
    return {t: torch.from_numpy(rng.integers(-7, 22, ids.numel())) for t, ids in seeds.items()}
