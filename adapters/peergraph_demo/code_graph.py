"""The graph of a Python installation's code: a real data set that needs no download."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from peergraph_demo.bars import progress_bar
from peergraph_demo.graph import NodeGraph, random_split
from peergraph_demo.npz_file import load_npz, save_npz
from peergraph_demo.parse import FileFacts, SourceFile, parse_file, parse_files
from peergraph_demo.resolve import resolve_edges
from peergraph_demo.sources import find_sources, installation_key, installation_roots

FORMAT_VERSION = 2
EDGE_TYPE_NAMES = ["contains", "imports", "calls", "inherits"]
_MAX_CLASSES = 40
MIN_CLASS_NODES = 300
_BATCH_FILES = 64


def cache_path() -> Path:
    """Where the graph of this installation is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "peergraph", f"code-graph-{installation_key(FORMAT_VERSION)}.npz")


def load_code_graph(*, rebuild: bool = False, progress: bool = True) -> NodeGraph:
    """The code graph of the running installation, from the cache or built and cached now.

    A cache file that cannot be read is rebuilt. Raises OSError if the cache cannot be written.
    """
    path = cache_path()
    if not rebuild and path.exists():
        try:
            return load_npz(path, name="code graph")
        except (ValueError, OSError) as error:
            print(f"peergraph: rebuilding the code graph: {error}", file=sys.stderr)
    sources = find_sources(installation_roots())
    graph = build_code_graph(sources, min_class_nodes=MIN_CLASS_NODES, progress=progress)
    try:
        save_npz(graph, path)
    except OSError as error:
        raise OSError(
            f"cannot keep the code graph in {path.parent} ({error.strerror}); set XDG_CACHE_HOME "
            "to a folder that can be written"
        ) from error
    return graph


def build_code_graph(
    sources: Sequence[SourceFile],
    *,
    min_class_nodes: int = MIN_CLASS_NODES,
    seed: int = 0,
    progress: bool = True,
) -> NodeGraph:
    """Parses `sources` and connects their modules, classes and functions.

    Node features are hashed bags of identifier and docstring words without those of the node's
    own dotted module path. The label is the top-level package, for the 40 packages with most
    nodes that have at least `min_class_nodes` of them; other nodes have label -1.

    Raises ValueError if no package has enough nodes.
    """
    files = list(_parse(sources, progress))
    packages = [f.module.split(".", 1)[0] for f in files for _ in f.names]
    y, class_names = _labels(packages, min_class_nodes)
    indptr, indices, edge_type = _in_neighbours(resolve_edges(files), len(packages))
    train, val, test = random_split(y, seed)
    return NodeGraph(
        name="code graph",
        indptr=indptr,
        indices=indices,
        x=_features(files),
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        class_names=class_names,
        directed=True,
        edge_type=edge_type,
        edge_type_names=EDGE_TYPE_NAMES,
    )


def _parse(sources: Sequence[SourceFile], progress: bool) -> Iterator[FileFacts]:
    with progress_bar(len(sources), "reading code", "files", show=progress) as bar:
        if len(sources) <= _BATCH_FILES:
            for facts in map(parse_file, sources):
                bar.update()
                if facts is not None:
                    yield facts
            return
        batches = [sources[i : i + _BATCH_FILES] for i in range(0, len(sources), _BATCH_FILES)]
        # Spawned: forking a process that runs torch's threads can deadlock the child.
        workers = min(os.cpu_count() or 1, len(batches))
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for batch, parsed in zip(batches, pool.map(parse_files, batches), strict=True):
                bar.update(len(batch))
                yield from (facts for facts in parsed if facts is not None)


def _labels(
    packages: Sequence[str], min_class_nodes: int
) -> tuple[npt.NDArray[np.int64], list[str]]:
    counts = Counter(packages)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_CLASSES]
    class_names = [name for name in ranked if counts[name] >= min_class_nodes]
    if not class_names:
        raise ValueError(
            f"the code graph needs packages with {min_class_nodes} or more modules, classes and "
            f"functions; the largest of {len(counts)} found has {max(counts.values(), default=0)}"
        )
    label = {name: i for i, name in enumerate(class_names)}
    return np.array([label.get(package, -1) for package in packages], np.int64), class_names


def _in_neighbours(
    edges: npt.NDArray[np.int64], num_nodes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """CSC by destination; a pair with several relations is one edge of the lowest type."""
    edges = edges[np.lexsort((edges[:, 2], edges[:, 0], edges[:, 1]))]
    is_first = np.ones(len(edges), bool)
    is_first[1:] = (edges[1:, :2] != edges[:-1, :2]).any(axis=1)
    edges = edges[is_first]
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(edges[:, 1], minlength=num_nodes), out=indptr[1:])
    return indptr, edges[:, 0].astype(np.int32), edges[:, 2].astype(np.uint8)


def _features(files: Sequence[FileFacts]) -> npt.NDArray[np.float16]:
    """log(1 + count), each row of length 1."""
    table = np.concatenate([f.words for f in files])
    x = np.empty(table.shape, np.float16)
    for rows in np.array_split(np.arange(len(table)), 1 + len(table) // 65536):
        block = np.log1p(table[rows].astype(np.float32))
        norm = np.linalg.norm(block, axis=1, keepdims=True)
        x[rows] = block / np.maximum(norm, 1e-12)
    return x
