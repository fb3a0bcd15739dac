"""Features, labels, seeds and ids of the benchmarks, made on the device from hashed counters."""

from __future__ import annotations

import torch

from inputs.counter_hash import CHUNK, hash_ids, hash_range, shift_right, stream_key
from inputs.graphs import GraphSpec, coprime

_FEATURES = stream_key(77, 5)
_LABELS = stream_key(77, 6)


def _unit_floats(hashed: torch.Tensor) -> torch.Tensor:
    """24 of the bits as float32 in [-1, 1), exactly."""
    return shift_right(hashed, 40).to(torch.float32).mul_(2.0**-23).sub_(1.0)


def fill_features(begin: int, out: torch.Tensor) -> torch.Tensor:
    """Writes rows [begin, begin + len(out)) of the feature matrix to `out`, float32 [rows, dim]."""
    dim = out.shape[1]
    step = max(1, CHUNK // dim)
    for chunk in range(0, out.shape[0], step):
        rows = min(step, out.shape[0] - chunk)
        first = begin + chunk
        hashed = hash_range(_FEATURES, first * dim, (first + rows) * dim, out.device)
        out[chunk : chunk + rows].copy_(_unit_floats(hashed).view(rows, dim))
    return out


def feature_rows(ids: torch.Tensor, dim: int) -> torch.Tensor:
    """The feature rows of some ids, computed anew: what a gather has to return."""
    columns = torch.arange(dim, device=ids.device)
    positions = ids.to(torch.int64).view(-1, 1) * dim + columns
    return _unit_floats(hash_ids(_FEATURES, positions))


def check_rows(name: str, rows: torch.Tensor, ids: torch.Tensor, samples: int = 256) -> None:
    """Raises if the gathered rows differ from the features; looks at some spread over the batch."""
    if not ids.numel():
        return
    at = torch.linspace(0, ids.numel() - 1, samples, device=ids.device).long()
    if not torch.equal(rows[at], feature_rows(ids[at], rows.shape[1])):
        raise AssertionError(f"{name}: gathered rows differ from the table's")


def label_rows(ids: torch.Tensor, num_classes: int) -> torch.Tensor:
    """The labels of some nodes, int64 in [0, num_classes)."""
    return shift_right(hash_ids(_LABELS, ids), 33) % num_classes


def random_ids(
    tag: int, count: int, bound: int, device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Uniform ids in [0, bound), repeats possible; each tag has its own."""
    return (shift_right(hash_range(stream_key(991, tag), 0, count, device), 1) % bound).to(dtype)


def batch_nodes(
    spec: GraphSpec, step: int, batch: int, rank: int, world: int, device: torch.device
) -> torch.Tensor:
    """Seed nodes of a mini-batch, int64 [batch]: distinct over a pass, scattered over the ids."""
    n = spec.num_nodes
    first = (step * world + rank) * batch
    nodes = torch.arange(first, first + batch, device=device)
    nodes %= n
    nodes *= coprime(n, 0.7548776662466927)
    nodes += n // 7
    nodes %= n
    return nodes
