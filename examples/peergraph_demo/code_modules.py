"""The modules of a Python installation, parsed: what each file defines, and what that refers to.

This file loads no torch: processes that parse start at once, and take little memory.
"""

from __future__ import annotations

import ast
import gc
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

PACKAGE_BYTES = 2_000_000  # of source, which bounds time and memory
SITE_FOLDERS = ("site-packages", "dist-packages")
_SKIPPED_FOLDERS = {"__pycache__", "test", "tests", *SITE_FOLDERS}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_MOST_PROCESSES = 8
_PARSE = (
    "import sys; sys.path.append({folder!r}); "
    "from peergraph_demo.code_modules import parse_input; parse_input()"
)
_DEFINITIONS = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}
# Values of fields and nodes that have no other nodes below them, nor a name.
_LEAVES = {
    *(type(None), int, str, bool, float, complex, bytes, type(Ellipsis)),
    *(ast.Load, ast.Store, ast.Del, ast.Constant, ast.Pass, ast.alias),
    *(ast.Global, ast.Nonlocal, ast.Break, ast.Continue),
}


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
        """Notes what is below `node`, which is in the definition numbered `scope`.

        Files have millions of nodes: types are compared, and fields are read without `getattr`.
        """
        for value in vars(node).values():
            for child in value if type(value) is list else (value,):
                kind = type(child)
                if kind in _LEAVES:
                    continue
                inner = scope
                if kind is ast.Name:
                    self.identifiers[scope][child.id] += 1
                    self.uses[scope].add(child.id)
                    continue
                if kind is ast.Attribute:
                    self.identifiers[scope][child.attr] += 1
                    self.uses[scope].add(_dotted(child))
                elif kind in _DEFINITIONS:
                    inner = len(self.names)
                    self.names.append(f"{self.names[scope]}.{child.name}")
                    self.parents.append(scope)
                    self.uses.append(set())
                    self.identifiers.append(Counter([child.name]))
                elif kind is ast.Import or kind is ast.ImportFrom:
                    self._import(child, scope)
                elif kind is ast.arg:
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


def _dotted(node: ast.expr) -> str:
    """The dotted name of an expression, or its last part where it is none."""
    parts = []
    while type(node) is ast.Attribute:
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if type(node) is ast.Name else "")
    return ".".join(reversed(parts))


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


def read_modules(modules: Sequence[Module], cpus: int) -> list[Module]:
    """Parses the modules, in as many processes as there are processors, but at most 8.

    Returns those that can be parsed, in the same order. The processes talk over pipes: locks of
    `multiprocessing` need a folder /dev/shm, which some containers lack.
    """
    count = min(cpus, _MOST_PROCESSES)
    with ThreadPoolExecutor(count) as threads:
        parts = threads.map(_parse_in_process, (modules[i::count] for i in range(count)))
        by_name = {module.names[0]: module for part in parts for module in part}
    return [by_name[module.names[0]] for module in modules if module.names[0] in by_name]


def parse_input() -> None:
    """Parses the pickled modules of the standard input, and pickles them to the output."""
    gc.disable()  # trees have no cycles
    modules = pickle.load(sys.stdin.buffer)
    pickle.dump([m for m in modules if m.read() is not None], sys.stdout.buffer, protocol=-1)


def _parse_in_process(modules: Sequence[Module]) -> list[Module]:
    code = _PARSE.format(folder=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-IB", "-c", code],  # reads no module of the current folder
        input=pickle.dumps(list(modules)),
        stdout=subprocess.PIPE,
        check=True,
    )
    parsed: list[Module] = pickle.loads(done.stdout)
    return parsed
