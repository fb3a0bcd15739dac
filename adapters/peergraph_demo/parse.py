"""One Python file as graph facts: its definitions, the names they refer to, their words."""

from __future__ import annotations

import ast
import re
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

NUM_FEATURES = 128
_DOCSTRING_CHARACTERS = 2000
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]{2,}")
# A shorter package name ("os", "re") is part of too many unrelated words.
_MIN_CONTAINED_NAME = 4


@dataclass(frozen=True)
class SourceFile:
    """A file and the module it is."""

    path: Path
    module: str
    is_package: bool

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.split(".", 1)[0]


@dataclass
class FileFacts:
    """What one file says. Node 0 is the module; references name their targets in full."""

    names: list[str]  # full dotted name of each node
    contains: list[tuple[int, int]]  # node, the node around it
    references: list[tuple[int, str]]  # node, full dotted name
    exports: dict[str, str]  # names that the module imports, and what they stand for
    words: npt.NDArray[np.uint8]  # [nodes, NUM_FEATURES] counts of hashed words, at most 255


def parse_file(source: SourceFile) -> FileFacts | None:
    """Returns the facts of one file, or None if it cannot be read or parsed."""
    visitor = _Visitor(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.path.read_bytes())
        visitor.count_docstring(tree)
        visitor.visit(tree)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return visitor.facts()


class _Visitor(ast.NodeVisitor):
    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.nodes = {source.module: 0}
        self.identifiers = [Counter[str]()]
        self.contains: list[tuple[int, int]] = []
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.references: set[tuple[int, str]] = set()
        self.expressions: set[tuple[int, str, str]] = set()  # node, class around it, dotted text
        self.scope = 0
        self.path = source.module
        self.class_name = ""

    def facts(self) -> FileFacts:
        known = self.definitions | self.imports
        for i, class_name, text in self.expressions:
            first, _, rest = text.partition(".")
            target = class_name if first in ("self", "cls") else known.get(first)
            if target:
                self.references.add((i, f"{target}.{rest}" if rest else target))
        return FileFacts(
            names=list(self.nodes),
            contains=self.contains,
            references=sorted(self.references),
            exports=self.imports,
            words=self._count_words(),
        )

    def count_docstring(
        self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        text = ast.get_docstring(node, clean=False) or ""
        self.identifiers[self.scope].update(_IDENTIFIER.findall(text[:_DOCSTRING_CHARACTERS]))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        before = self.scope, self.path, self.class_name
        self.path += f".{node.name}"
        if self.scope == 0:
            self.definitions[node.name] = self.path
        # Overloads, property setters and conditional definitions share one node.
        if self.path not in self.nodes:
            self.nodes[self.path] = len(self.nodes)
            self.identifiers.append(Counter())
            self.contains.append((self.nodes[self.path], self.scope))
        self.scope = self.nodes[self.path]
        if isinstance(node, ast.ClassDef):
            self.class_name = self.path
        self.identifiers[self.scope][node.name] += 1
        self.count_docstring(node)
        self.generic_visit(node)
        self.scope, self.path, self.class_name = before

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _define

    def visit_Name(self, node: ast.Name) -> None:
        self._refer([node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        owner: ast.expr = node
        while isinstance(owner, ast.Attribute):
            parts.append(owner.attr)
            owner = owner.value
        if isinstance(owner, ast.Name):
            self._refer([owner.id, *reversed(parts)])
        else:
            self.identifiers[self.scope].update(parts)
            self.visit(owner)

    def _refer(self, parts: list[str]) -> None:
        self.identifiers[self.scope].update(parts)
        self.expressions.add((self.scope, self.class_name, ".".join(parts)))

    def visit_arg(self, node: ast.arg) -> None:
        self.identifiers[self.scope][node.arg] += 1
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        self.identifiers[self.scope][node.arg or ""] += 1
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".", 1)[0]
            self._import(name, alias.name if alias.asname else name, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parts = self.source.module.split(".")
        up = node.level - 1 if self.source.is_package else node.level
        parts = parts[: len(parts) - up] if node.level else []
        base = ".".join([*parts, node.module] if node.module else parts)
        for alias in node.names:
            if alias.name == "*":
                self.references.add((self.scope, base))
            else:
                target = f"{base}.{alias.name}"
                self._import(alias.asname or alias.name, target, target)

    def _import(self, name: str, stands_for: str, target: str) -> None:
        self.identifiers[self.scope][target.rpartition(".")[2]] += 1
        self.references.add((self.scope, target))
        self.imports[name] = stands_for

    def _count_words(self) -> npt.NDArray[np.uint8]:
        is_giveaway = GiveawayWords(self.source.module)
        counts = np.zeros((len(self.nodes), NUM_FEATURES), np.int64)
        for row, identifiers in zip(counts, self.identifiers, strict=True):
            for identifier, count in identifiers.items():
                for word in split_words(identifier):
                    if word != "self" and word not in is_giveaway:
                        row[_bucket(word)] += count
        return np.minimum(counts, 255).astype(np.uint8)


class GiveawayWords:
    """The words that tell a module's package: those of its own dotted path."""

    def __init__(self, module: str) -> None:
        parts = module.split(".")
        self._words = {part.strip("_").lower() for part in parts}
        self._words.update(word for part in parts for word in split_words(part))
        name = parts[0].strip("_").lower()
        self._name = name if len(name) >= _MIN_CONTAINED_NAME else None

    def __contains__(self, word: str) -> bool:
        return word in self._words or (self._name is not None and self._name in word)


@lru_cache(maxsize=1 << 17)
def split_words(identifier: str) -> tuple[str, ...]:
    """Returns the lower-case words of a snake_case or camelCase name, without single letters."""
    return tuple(w.lower() for w in _WORD.findall(identifier) if len(w) > 1)


@lru_cache(maxsize=1 << 17)
def _bucket(word: str) -> int:
    return zlib.crc32(word.encode()) % NUM_FEATURES
