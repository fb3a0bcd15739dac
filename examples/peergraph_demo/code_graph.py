"""The graph of a Python installation's code: a real data set that needs no download.

Nodes are modules, classes and functions. Edges lead from a definition to what it contains and to
what it refers to. The task is to predict the package of a node.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import zlib
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from peergraph.cache_folder import cache_folder
from peergraph.control_groups import usable_cpus
from peergraph_demo.code_modules import (
    SITE_FOLDERS,
    Module,
    find_modules,
    read_modules,
    split_words,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data

VERSION = 4  # of the cached file
NUM_FEATURES, MAX_CLASSES = 128, 40


def find_edges(modules: list[Module]) -> torch.Tensor:
    """Returns [2, edges], without self loops; nodes are numbered over all modules."""
    names = [name for module in modules for name in module.names]
    # A submodule hides what its package defines under the same name.
    ids = {name: i for i, name in reversed(list(enumerate(names)))}

    def resolve(name: str) -> int:
        """Returns the node of a dotted name, else of the innermost one around it, or -1."""
        while name and name not in ids:
            name = name.rpartition(".")[0]
        return ids.get(name, -1)

    edges, first = set[tuple[int, int]](), 0
    for module in modules:
        around = ids.get(module.names[0].rpartition(".")[0], -1)
        for node, parent in enumerate(module.parents):
            edges.add((around if parent < 0 else first + parent, first + node))
            edges.update((first + node, resolve(name)) for name in module.targets(node))
        first += len(module.names)
    rows = sorted(edge for edge in edges if edge[0] != edge[1] and min(edge) >= 0)
    return torch.tensor(rows, dtype=torch.int64).view(-1, 2).t()


def words(module: Module) -> torch.Tensor:
    """Returns [nodes, NUM_FEATURES] logarithms of counts of hashed words, rows of length 1."""
    own = {"self", *split_words(module.names[0])}  # these would tell the package
    words = torch.zeros(len(module.names), NUM_FEATURES)
    for row, identifiers in zip(words.numpy(), module.identifiers, strict=True):
        for identifier, count in identifiers.items():
            for word in split_words(identifier):
                if word not in own:
                    row[zlib.crc32(word.encode()) % NUM_FEATURES] += count
    return torch.nn.functional.normalize(words.log1p())


def build_code_graph(modules: list[Module]) -> dict[str, Any]:
    """Parses the modules, and connects their definitions, each edge in both directions.

    Returns what a `Data` object of PyG has.

    The label is the top-level package, of the 40 packages with most nodes; other nodes have the
    label -1 and are in no mask.
    """
    read = read_modules(modules, usable_cpus())
    packages = [m.names[0].partition(".")[0] for m in read for _ in m.names]
    largest = Counter(packages).most_common(MAX_CLASSES)
    classes = {name: number for number, (name, _) in enumerate(largest)}
    y = torch.tensor([classes.get(name, -1) for name in packages])
    edges = find_edges(read)
    graph = {
        "x": torch.cat([words(module) for module in read]).half(),
        "y": y,
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "name": "code graph",
        "num_classes": len(classes),
    }
    nodes = (y >= 0).nonzero().view(-1)
    nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))]
    parts = nodes.tensor_split((int(0.6 * len(nodes)), int(0.8 * len(nodes))))
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        graph[f"{name}_mask"] = torch.zeros(len(y), dtype=torch.bool).index_fill_(0, part, True)
    return graph


def make_code_graph() -> Path:
    """Returns the cached graph's file. Makes it if there is none; PyG is not needed for that."""
    folders = [sysconfig.get_paths()["stdlib"]]
    folders += [path for path in sys.path if Path(path).name in SITE_FOLDERS]
    roots = list(dict.fromkeys(Path(path).resolve() for path in folders if os.path.isdir(path)))
    installed = sorted(f"{d.name}=={d.version}" for d in metadata.distributions())
    key = "\n".join([str(VERSION), sys.version, *map(str, roots), *installed])
    folder = cache_folder()
    path = folder / f"code-graph-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"
    if not path.exists():
        print("reading the code of this Python installation", flush=True)
        graph = build_code_graph(find_modules(roots))
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        torch.save(graph, temporary)
        temporary.replace(path)  # at once: a reader sees a whole file
    return path


def load_code_graph() -> Data:
    """Returns the graph of the running installation."""
    from torch_geometric.data import Data

    return Data(**torch.load(make_code_graph(), weights_only=True))
