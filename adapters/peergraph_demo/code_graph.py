"""The graph of a Python installation's code: a real data set that needs no download.

Nodes are modules, classes and functions. Edges lead from a definition to what it contains, imports
and refers to. The task is to predict the package of a node.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from peergraph_demo.bars import progress_bar
from peergraph_demo.graph import NodeGraph, random_split
from peergraph_demo.npz_file import load_npz, save_npz
from peergraph_demo.parse import FileFacts, SourceFile, parse_file

FORMAT_VERSION = 3
MIN_CLASS_NODES = 300
# Bounds time and memory: about 50,000 nodes and 10 seconds on two cores.
PACKAGE_BYTES = 4_000_000
_MAX_CLASSES = 40
_FILES_PER_TASK = 64
_MAX_REEXPORTS = 12
_SITE_FOLDERS = ("site-packages", "dist-packages")
_SKIPPED_FOLDERS = frozenset({"__pycache__", "test", "tests", *_SITE_FOLDERS})


def installation_roots() -> list[Path]:
    """Returns the standard library and the folders of installed packages, in the order of the
    path.
    """
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    roots += [Path(p) for p in sys.path if Path(p).name in _SITE_FOLDERS]
    return list(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


def cache_path() -> Path:
    """Returns the file that keeps the graph of this interpreter and its installed packages."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    installed = sorted(f"{d.name}=={d.version}" for d in metadata.distributions())
    parts = [str(FORMAT_VERSION), sys.version, *map(str, installation_roots()), *installed]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return Path(base, "peergraph", f"code-graph-{key}.npz")


def load_code_graph(*, rebuild: bool = False, progress: bool = True) -> NodeGraph:
    """Returns the code graph of the running installation, from the cache or built and cached now.

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


def find_sources(roots: Sequence[Path], package_bytes: int = PACKAGE_BYTES) -> list[SourceFile]:
    """Returns the modules below `roots`, by name; the first root wins where two have the same
    module.

    A package has at most `package_bytes` of source, its outer modules first.
    """
    found: dict[str, tuple[SourceFile, int]] = {}
    for root in roots:
        for folder, subfolders, files in os.walk(root):
            # A package's folder is a Python name; "numpy-2.0.dist-info" is not.
            subfolders[:] = (
                d for d in subfolders if d.isidentifier() and d not in _SKIPPED_FOLDERS
            )
            for name in files:
                stem, extension = os.path.splitext(name)
                parts = [*Path(folder).relative_to(root).parts, stem]
                is_package = stem == "__init__"
                module = ".".join(parts[:-1] if is_package else parts)
                if extension == ".py" and stem.isidentifier() and module and module not in found:
                    path = Path(folder, name)
                    source = SourceFile(path, module, is_package)
                    found[module] = source, path.stat().st_size
    used: Counter[str] = Counter()
    chosen = []
    for source, size in sorted(found.values(), key=lambda f: (f[0].module.count("."), f[0].module)):
        used[source.package] += size
        if used[source.package] <= package_bytes:
            chosen.append(source)
    return sorted(chosen, key=lambda source: source.module)


def build_code_graph(
    sources: Sequence[SourceFile],
    *,
    min_class_nodes: int = MIN_CLASS_NODES,
    seed: int = 0,
    progress: bool = True,
) -> NodeGraph:
    """Parses `sources` and connects their modules, classes and functions.

    Node features are hashed bags of identifier and docstring words, without the words of the
    node's own module path. The label is the top-level package, for the 40 packages with most
    nodes that have at least `min_class_nodes` of them; other nodes have label -1.

    Raises ValueError if no package has enough nodes.
    """
    files = list(_parse(sources, progress))
    packages = [f.names[0].split(".", 1)[0] for f in files for _ in f.names]
    y, class_names = _labels(packages, min_class_nodes)
    indptr, indices = _in_neighbours(find_edges(files), len(packages))
    train, val, test = random_split(y, seed)
    words = np.log1p(np.concatenate([f.words for f in files]).astype(np.float32))
    norm = np.linalg.norm(words, axis=1, keepdims=True)
    return NodeGraph(
        name="code graph",
        indptr=indptr,
        indices=indices,
        x=(words / np.maximum(norm, 1e-12)).astype(np.float16),
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        class_names=class_names,
        directed=True,
    )


def _parse(sources: Sequence[SourceFile], progress: bool) -> Iterator[FileFacts]:
    with progress_bar(len(sources), "reading code", "files", show=progress) as bar:
        if len(sources) <= _FILES_PER_TASK:
            parsed: Iterator[FileFacts | None] = map(parse_file, sources)
            yield from (facts for facts in parsed if facts is not None)
            return
        # Spawned: forking a process that runs torch's threads can deadlock the child.
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            for facts in pool.map(parse_file, sources, chunksize=_FILES_PER_TASK):
                bar.update()
                if facts is not None:
                    yield facts


def find_edges(files: Sequence[FileFacts]) -> set[tuple[int, int]]:
    """Returns all edges as (source, destination), without self loops; nodes are numbered over all
    files.
    """
    names = [name for facts in files for name in facts.names]
    # A submodule hides what its package defines under the same name.
    ids = {name: i for i, name in reversed(list(enumerate(names)))}
    exports = {f"{facts.names[0]}.{k}": v for facts in files for k, v in facts.exports.items()}

    def resolve(name: str, left: int = _MAX_REEXPORTS) -> int | None:
        """Returns the node of a dotted name, through re-exports, or else the node around it."""
        if name in ids or left == 0:
            return ids.get(name)
        if name in exports:
            return resolve(exports[name], left - 1)
        owner, _, part = name.rpartition(".")
        around = resolve(owner, left - 1) if owner else None
        if around is None or names[around] == owner:
            return around
        return resolve(f"{names[around]}.{part}", left - 1)

    edges: set[tuple[int, int]] = set()
    first = 0
    for facts in files:
        edges.update((first + parent, first + i) for i, parent in facts.contains)
        package = ids.get(facts.names[0].rpartition(".")[0])
        if package is not None:
            edges.add((package, first))
        for i, target in facts.references:
            found = resolve(target)
            if found is not None and found != first + i:
                edges.add((first + i, found))
        first += len(facts.names)
    return edges


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
    edges: set[tuple[int, int]], num_nodes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """CSC by destination."""
    pairs = np.array(sorted(edges), np.int64).reshape(-1, 2)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(pairs[:, 1], minlength=num_nodes), out=indptr[1:])
    return indptr, pairs[np.argsort(pairs[:, 1], kind="stable"), 0].astype(np.int32)
