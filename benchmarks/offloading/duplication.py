"""Rows that parts of a graph need, beside HongTu's Tables 3 and 8."""

from __future__ import annotations

import time

import torch
from harness.ranks import Session, synchronize
from inputs.local_graphs import get_local_spec, make_local_csc

from offloading.published import CHUNKS, DUPLICATION, SAVED
from peergraph.fullgraph.layout.duplication import count_duplication, cut_chunks

_PARTS = (32, 128, 512)
_RANKS = 4


def measure_duplication(session: Session, name: str) -> None:
    """Counts on one rank's device."""
    spec, device = get_local_spec(name), session.device
    base = name.partition("/")[0]
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    indptr, indices = make_local_csc(spec, device)
    synchronize(device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if cuda else None
    session.note(f"{name}: {spec.num_edges} edges made in {seconds:.2f} s")
    common = {"part": "duplication", "graph": name, "system": "peergraph", "edges": spec.num_edges}
    session.recorder.note(**common, kind="made", seconds=seconds, peak_gib=peak and peak / 2**30)
    degrees = indptr.diff()
    for parts in _PARTS:
        start = time.perf_counter()
        result = count_duplication(indptr, indices, cut_chunks(degrees, [spec.num_nodes], parts))
        session.recorder.note(
            **common,
            kind="parts",
            parts=parts,
            alpha=result.alpha,
            published=DUPLICATION.get(base, {}).get(parts),
            seconds=time.perf_counter() - start,
        )
        session.note(f"{parts} parts: alpha {result.alpha:.3f}")
    counts = [b - a for a, b in (spec.node_range(rank, _RANKS) for rank in range(_RANKS))]
    chunks = CHUNKS.get(base, {}).get("GCN", 8)
    result = count_duplication(indptr, indices, cut_chunks(degrees, counts, chunks))
    published = SAVED.get(base, (None,) * 4)
    session.recorder.note(
        **common,
        kind="batches",
        parts=_RANKS * chunks,
        alpha=result.alpha,
        between_ranks=result.saved_between_ranks,
        between_batches=result.saved_between_batches,
        published=published[1],
        published_between_ranks=published[2],
        published_between_batches=published[3],
    )
