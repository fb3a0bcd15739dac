"""The graph of a Python installation's code: a real data set that needs no download.

Nodes are modules, classes and functions. Edges lead from a definition to what it contains and to
what it refers to. The task is to predict the package of a node.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
import warnings
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

import torch
from torch_geometric.data import Data

from peergraph.cache_folder import cache_folder

VERSION = 4  # of the cached file
NUM_FEATURES, MAX_CLASSES = 128, 40
PACKAGE_BYTES = 2_000_000  # of source, which bounds time and memory
_SITE_FOLDERS = ("site-packages", "dist-packages")
_SKIPPED_FOLDERS = {"__pycache__", "test", "tests", *_SITE_FOLDERS}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Module:
    """What one file defines. Node 0 is the module.

    Args:
        path, names: of the file; the full dotted name of each node.
        parents: the node around each node; -1 for the module.
        uses: for each node, the dotted names that it refers to, as they are written.
        identifiers: for each node, how often it has each identifier.
        imports: names that the module imports, and what they stand for.
    """

    path: Path
    names: list[str]
    parents: list[int] = field(default_factory=lambda: [-1])
    uses: list[set[str]] = field(default_factory=lambda: [set()])
    identifiers: list[Counter[str]] = field(default_factory=lambda: [Counter()])
    imports: dict[str, str] = field(default_factory=dict)

    def read(self) -> Module | None:
        """Parses the file. Returns None if that is not possible."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.path.read_bytes())
            self._visit(tree, 0)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return self

    def _visit(self, node: ast.AST, scope: int) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, _Definition):
                inner = len(self.names)
                self.names.append(f"{self.names[scope]}.{child.name}")
                self.parents.append(scope)
                self.uses.append(set())
                self.identifiers.append(Counter([child.name]))
            elif isinstance(child, ast.Import | ast.ImportFrom):
                self._import(child, scope)
            elif isinstance(child, ast.Name | ast.Attribute):
                parts = _parts(child)
                self.identifiers[scope][parts[-1]] += 1
                self.uses[scope].add(".".join(parts))
            elif isinstance(child, ast.arg):
                self.identifiers[scope][child.arg] += 1
            self._visit(child, inner)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: int) -> None:
        base = ""
        if isinstance(node, ast.ImportFrom):
            parts = self.names[0].split(".")
            up = node.level - (self.path.stem == "__init__")
            parts = parts[: len(parts) - up] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else []), ""])
        for alias in node.names:
            name = alias.asname or (alias.name if base else alias.name.partition(".")[0])
            self.imports[name] = base + (alias.name if base or alias.asname else name)
            self.uses[scope].add(name)

    def targets(self, node: int) -> set[str]:
        """Returns the full dotted names that a node refers to."""
        targets = set()
        for text in self.uses[node]:
            first, dot, rest = text.partition(".")
            if first in ("self", "cls") and self.parents[node] > 0:
                targets.add(self.names[self.parents[node]] + dot + rest)
            elif first in self.imports:
                targets.add(self.imports[first] + dot + rest)
            else:
                targets.add(f"{self.names[0]}.{text}")
        return targets

    def words(self) -> torch.Tensor:
        """Returns [nodes, NUM_FEATURES] logarithms of counts of hashed words, rows of length 1."""
        own = {"self", *split_words(self.names[0])}  # these would tell the package
        words = torch.zeros(len(self.names), NUM_FEATURES)
        for row, identifiers in zip(words.numpy(), self.identifiers, strict=True):
            for identifier, count in identifiers.items():
                for word in split_words(identifier):
                    if word not in own:
                        row[zlib.crc32(word.encode()) % NUM_FEATURES] += count
        return torch.nn.functional.normalize(words.log1p())


def _parts(node: ast.expr) -> list[str]:
    """The dotted name of an expression, or its last part where it is none."""
    if isinstance(node, ast.Name):
        return [node.id]
    return [*_parts(node.value), node.attr] if isinstance(node, ast.Attribute) else [""]


@lru_cache(maxsize=1 << 17)
def split_words(identifier: str) -> list[str]:
    """Returns the lower-case words of a snake_case or camelCase name, without single letters."""
    return [word.lower() for word in _WORD.findall(identifier) if len(word) > 1]


def find_modules(roots: list[Path], package_bytes: int = PACKAGE_BYTES) -> list[Module]:
    """Returns the modules below `roots`, by name; the first root wins where two have the same.

    A package has at most `package_bytes` of source, its outer modules first.
    """
    paths: dict[str, Path] = {}
    for root in roots:
        for folder, subfolders, files in os.walk(root):
            # A package's folder is a Python name; "numpy-2.0.dist-info" is not.
            subfolders[:] = {d for d in subfolders if d.isidentifier()} - _SKIPPED_FOLDERS
            for path in (Path(folder, name) for name in files if name.endswith(".py")):
                parts = path.relative_to(root).with_suffix("").parts
                module = ".".join(parts[:-1] if path.stem == "__init__" else parts)
                if module and path.stem.isidentifier():
                    paths.setdefault(module, path)
    used, modules = Counter[str](), list[Module]()
    for name in sorted(paths, key=lambda name: (name.count("."), name)):
        package = name.partition(".")[0]
        used[package] += paths[name].stat().st_size
        if used[package] <= package_bytes:
            modules.append(Module(paths[name], [name]))
    return sorted(modules, key=lambda module: module.names)


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


def build_code_graph(modules: list[Module]) -> Data:
    """Parses the modules, and connects their definitions, each edge in both directions.

    The label is the top-level package, of the 40 packages with most nodes; other nodes have the
    label -1 and are in no mask.
    """
    # Spawned: forking a process that runs torch's threads can deadlock the child.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        read = [m for m in pool.map(Module.read, modules, chunksize=64) if m is not None]
    packages = [m.names[0].partition(".")[0] for m in read for _ in m.names]
    largest = Counter(packages).most_common(MAX_CLASSES)
    classes = {name: number for number, (name, _) in enumerate(largest)}
    y = torch.tensor([classes.get(name, -1) for name in packages])
    edges = find_edges(read)
    graph = Data(
        x=torch.cat([module.words() for module in read]).half(),
        y=y,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        name="code graph",
        num_classes=len(classes),
    )
    nodes = (y >= 0).nonzero().view(-1)
    nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))]
    parts = nodes.tensor_split((int(0.6 * len(nodes)), int(0.8 * len(nodes))))
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        graph[f"{name}_mask"] = torch.zeros(len(y), dtype=torch.bool).index_fill_(0, part, True)
    return graph


def load_code_graph() -> Data:
    """Returns the graph of the running installation, from the cache or made and cached now."""
    folders = [sysconfig.get_paths()["stdlib"]]
    folders += [path for path in sys.path if Path(path).name in _SITE_FOLDERS]
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
        torch.save(graph.to_dict(), temporary)
        temporary.replace(path)  # at once: a reader sees a whole file
    return Data(**torch.load(path, weights_only=True))
