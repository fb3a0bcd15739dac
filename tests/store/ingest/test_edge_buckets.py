"""Edge lists sorted into CSC in buckets, with any amount of memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from peergraph.store.csc.sort.edge_buckets import EdgeBuckets
from peergraph.store.hotness.id_map import id_dtype
from peergraph.store.ingest.write_csc import write_csc
from tests.named_case import named_case
from tests.store.graphs import random_coo


def sorted_by_destination(coo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(coo[1], kind="stable")
    return coo[0][order], order


def run(
    folder: Path, coo: np.ndarray, nodes: tuple[int, int], memory: int, batch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    folder.mkdir()
    (folder / "buckets").mkdir()
    buckets = EdgeBuckets(folder / "buckets", *nodes, coo.shape[1], memory)
    for begin in range(0, coo.shape[1], batch):
        source, destination = (np.ascontiguousarray(row[begin : begin + batch]) for row in coo)
        assert buckets.add(source, destination)
    entries = write_csc(buckets, folder, "edge0", nodes[1])
    assert list((folder / "buckets").iterdir()) == []
    indptr, indices, ids = (None if e is None else np.load(folder / e.file) for e in entries)
    assert indptr is not None
    assert indices is not None
    return indptr, indices, ids


@pytest.mark.parametrize("memory", [9_000, 1 << 30])
def test_equals_a_stable_sort(tmp_path: Path, memory: int) -> None:
    for number, (nodes, edges, dtype) in enumerate(
        [
            ((60, 60), 1500, np.int64),
            ((60, 60), 1500, np.int32),
            ((7, 3000), 2000, np.int64),
            ((5, 1), 1200, np.int64),  # one destination
            ((3, 4), 0, np.int64),
            ((2**40, 50), 900, np.int64),  # sources need 64 bits
        ]
    ):
        with named_case(f"{nodes} {edges} {dtype}"):
            coo = random_coo(*nodes, edges).numpy().astype(dtype)
            folder = tmp_path / str(number)
            indptr, indices, ids = run(folder, coo, nodes, memory, 700)
            sources, order = sorted_by_destination(coo)
            counts = np.bincount(coo[1], minlength=nodes[1])
            assert np.array_equal(indptr, np.concatenate([[0], np.cumsum(counts)]))
            assert indices.dtype == torch.empty(0, dtype=id_dtype(nodes[0])).numpy().dtype
            assert np.array_equal(indices, sources)
            if ids is not None:
                assert np.array_equal(ids, order)
            else:
                assert np.array_equal(order, np.arange(edges))


@pytest.mark.parametrize("sources", [5000, 2**40])
@pytest.mark.parametrize("memory", [4 << 20, 1 << 30])
def test_batches_that_several_threads_split(tmp_path: Path, sources: int, memory: int) -> None:
    """Batches of several pieces, in files or in memory; records of 12 and 16 bytes."""
    coo = random_coo(sources, 5000, 300_000).numpy()
    coo[1, ::7] = 4321
    actual = run(tmp_path / "a", coo, (sources, 5000), memory, 200_000)
    expected, order = sorted_by_destination(coo)
    assert np.array_equal(actual[0][1:], np.cumsum(np.bincount(coo[1], minlength=5000)))
    assert np.array_equal(actual[1], expected)
    assert actual[2] is not None
    assert np.array_equal(actual[2], order)


def test_memory_does_not_grow_with_the_number_of_batches(tmp_path: Path) -> None:
    """Counts by batch and bucket are in a file. In memory they would take 0.3 MB here."""
    num_batches, batch, nodes = 80, 32, 1024
    coo = random_coo(nodes, nodes, num_batches * batch).numpy()
    buckets = EdgeBuckets(tmp_path, nodes, nodes, 40_000, 9_000)
    tracemalloc.start()
    try:
        for begin in range(0, coo.shape[1], batch):
            source, destination = (row[begin : begin + batch].copy() for row in coo)
            assert buckets.add(source, destination)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 200_000
    result = np.concatenate([piece.indices.numpy() for piece in buckets.sorted_edges(None)])
    assert np.array_equal(result, sorted_by_destination(coo)[0])
    assert list(tmp_path.iterdir()) == []


def test_edges_that_come_sorted_need_no_ids(tmp_path: Path) -> None:
    coo = np.stack([np.arange(1000) % 7, np.arange(1000) // 10])
    *_, ids = run(tmp_path / "a", coo, (7, 100), 1 << 30, 300)
    assert ids is None
    coo[1, 300] = 0  # unsorted only between two batches
    *_, ids = run(tmp_path / "b", coo, (7, 100), 1 << 30, 300)
    assert ids is not None


def test_a_batch_with_an_id_out_of_range_is_refused_whole(tmp_path: Path) -> None:
    buckets = EdgeBuckets(tmp_path, 3, 4, 10, 1 << 20)
    for source, destination in (([0, 3], [0, 0]), ([0, -1], [0, 0]), ([0, 0], [4, 0])):
        assert not buckets.add(np.array(source), np.array(destination))
    assert buckets.num_edges == 0
    assert buckets.add(np.array([2]), np.array([3]))
    (piece,) = buckets.sorted_edges(torch.int64)
    assert piece.degrees.tolist() == [0, 0, 0, 1]


def test_few_edges_to_very_many_destinations_take_little_memory(tmp_path: Path) -> None:
    buckets = EdgeBuckets(tmp_path, 3, 1 << 24, 2, 16 << 20)
    assert buckets.add(np.array([2, 1]), np.array([(1 << 24) - 1, 5]))
    edges = 0
    for piece in buckets.sorted_edges(torch.int64):
        assert piece.degrees.nbytes <= 4 << 20
        edges += piece.indices.numel()
    assert edges == 2
