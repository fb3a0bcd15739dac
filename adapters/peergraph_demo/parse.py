"""One Python file as graph facts: its definitions, the names they refer to, their words."""

from __future__ import annotations

import ast
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

NUM_FEATURES = 128
MODULE, CLASS, FUNCTION = range(3)
CONTAINS, IMPORTS, CALLS, INHERITS = range(4)

_DOCSTRING_CHARACTERS = 2000
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]{2,}")
# A shorter package name ("os", "re") is part of too many unrelated words.
_MIN_CONTAINED_NAME = 4
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class SourceFile:
    """A file and the module it is: `package` is the label, the first part of `module`."""

    path: Path
    module: str
    is_package: bool
    size: int

    @property
    def package(self) -> str:
        return self.module.split(".", 1)[0]


@dataclass
class FileFacts:
    """What one file says; node 0 is the module, references name their target in full."""

    module: str
    names: list[str]  # full dotted name of each node
    kinds: list[int]
    parents: list[int]  # -1 for the module
    references: list[tuple[int, int, str]]  # node, edge type, full dotted name
    exports: dict[str, str]  # names the module binds by import
    star_imports: list[str]
    words: npt.NDArray[np.uint8]  # [nodes, NUM_FEATURES] counts of hashed words, at most 255


@lru_cache(maxsize=1 << 17)
def split_words(identifier: str) -> tuple[str, ...]:
    """The lower-case words of a snake_case or camelCase name, without single letters."""
    return tuple(w.lower() for w in _WORD.findall(identifier) if len(w) > 1)


@lru_cache(maxsize=1 << 17)
def _bucket(word: str) -> int:
    return zlib.crc32(word.encode()) % NUM_FEATURES


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


@dataclass
class _Scope:
    """A module, class or function while its file is walked."""

    index: int
    kind: int
    parent: _Scope | None
    name: str
    # name -> full dotted name of what it stands for, None if that is not known
    bindings: dict[str, str | None] = field(default_factory=dict)
    identifiers: Counter[str] = field(default_factory=Counter)
    calls: list[tuple[int, list[str]]] = field(default_factory=list)

    def lookup(self, name: str) -> str | None:
        """What `name` stands for here. Methods do not see the names of their class."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or scope.kind != CLASS):
                return scope.bindings[name]
            scope = scope.parent
        if name in ("self", "cls"):
            return self._enclosing_class()
        return None

    def _enclosing_class(self) -> str | None:
        scope: _Scope | None = self
        while scope is not None and scope.kind != CLASS:
            scope = scope.parent
        return None if scope is None else scope.name


def parse_file(source: SourceFile) -> FileFacts | None:
    """The facts of one file, or None if it cannot be read or parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    walk = _Walk(source)
    walk.run(tree)
    return walk.facts()


def parse_files(sources: Iterable[SourceFile]) -> list[FileFacts | None]:
    """`parse_file` for a batch: what a worker process runs."""
    return [parse_file(source) for source in sources]


class _Walk:
    """Walks the syntax tree with a stack of its own, as deep nesting exceeds Python's."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.scopes: list[_Scope] = []
        self.by_name: dict[str, _Scope] = {}
        self.references: set[tuple[int, int, str]] = set()
        self.star_imports: list[str] = []
        self.stack: list[tuple[ast.AST, _Scope]] = []

    def run(self, tree: ast.Module) -> None:
        root = self._add_scope(self.source.module, MODULE, None)
        self._add_docstring(tree, root)
        self._push_children(tree, root)
        while self.stack:
            node, scope = self.stack.pop()
            self._visit(node, scope)
        for scope in self.scopes:
            self._resolve_calls(scope)

    def facts(self) -> FileFacts:
        root = self.scopes[0]
        return FileFacts(
            module=self.source.module,
            names=[s.name for s in self.scopes],
            kinds=[s.kind for s in self.scopes],
            parents=[-1 if s.parent is None else s.parent.index for s in self.scopes],
            references=sorted(self.references),
            exports={k: v for k, v in root.bindings.items() if v is not None},
            star_imports=self.star_imports,
            words=self._count_words(),
        )

    def _add_scope(self, name: str, kind: int, parent: _Scope | None) -> _Scope:
        # Overloads, property setters and conditional definitions share one node.
        known = self.by_name.get(name)
        if known is not None:
            return known
        scope = _Scope(len(self.scopes), kind, parent, name)
        self.scopes.append(scope)
        self.by_name[name] = scope
        return scope

    def _push_children(self, node: ast.AST, scope: _Scope) -> None:
        # Reversed, so that nodes are numbered in the order of the file.
        self.stack.extend((child, scope) for child in reversed(list(_children(node))))

    def _visit(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, ast.Name):
            scope.identifiers[node.id] += 1
            if not isinstance(node.ctx, ast.Load):
                scope.bindings.setdefault(node.id, None)
            return
        if isinstance(node, _DEFINITIONS):
            self._define(node, scope)
            return
        if isinstance(node, ast.Attribute):
            scope.identifiers[node.attr] += 1
        elif isinstance(node, ast.Call):
            self._refer(scope, CALLS, node.func)
        elif isinstance(node, ast.arg):
            scope.identifiers[node.arg] += 1
            if node.arg not in ("self", "cls"):
                scope.bindings.setdefault(node.arg, None)
        elif isinstance(node, ast.keyword):
            scope.identifiers[node.arg or ""] += 1
        elif isinstance(node, ast.Import):
            self._import(node, scope)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node, scope)
        elif isinstance(node, ast.Constant):
            return
        self._push_children(node, scope)

    def _define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: _Scope
    ) -> None:
        kind = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
        inner = self._add_scope(f"{scope.name}.{node.name}", kind, scope)
        scope.bindings[node.name] = inner.name
        inner.identifiers[node.name] += 1
        self._add_docstring(node, inner)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                self._refer(inner, INHERITS, base)
        self._push_children(node, inner)

    def _add_docstring(self, node: ast.AST, scope: _Scope) -> None:
        body = getattr(node, "body", None)
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            text = first.value.value
            if isinstance(text, str):
                scope.identifiers.update(_IDENTIFIER.findall(text[:_DOCSTRING_CHARACTERS]))

    def _refer(self, scope: _Scope, edge_type: int, target: ast.expr) -> None:
        parts: list[str] = []
        while isinstance(target, ast.Attribute):
            parts.append(target.attr)
            target = target.value
        if isinstance(target, ast.Name):
            parts.append(target.id)
            scope.calls.append((edge_type, parts[::-1]))

    def _import(self, node: ast.Import, scope: _Scope) -> None:
        for alias in node.names:
            scope.identifiers[alias.name] += 1
            self.references.add((scope.index, IMPORTS, alias.name))
            if alias.asname is None:
                first = alias.name.split(".", 1)[0]
                scope.bindings[first] = first
            else:
                scope.bindings[alias.asname] = alias.name

    def _import_from(self, node: ast.ImportFrom, scope: _Scope) -> None:
        base = self._absolute(node)
        for alias in node.names:
            if alias.name == "*":
                self.references.add((scope.index, IMPORTS, base))
                self.star_imports.append(base)
                continue
            scope.identifiers[alias.name] += 1
            target = f"{base}.{alias.name}"
            self.references.add((scope.index, IMPORTS, target))
            scope.bindings[alias.asname or alias.name] = target

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = self.source.module.split(".")
        up = node.level - 1 if self.source.is_package else node.level
        parts = parts[: len(parts) - up]
        return ".".join([*parts, node.module] if node.module else parts)

    def _resolve_calls(self, scope: _Scope) -> None:
        for edge_type, (first, *rest) in scope.calls:
            # The bases of a class are looked up outside of it.
            start = scope.parent if edge_type == INHERITS and scope.parent else scope
            target = start.lookup(first)
            if target is not None:
                self.references.add((scope.index, edge_type, ".".join([target, *rest])))

    def _count_words(self) -> npt.NDArray[np.uint8]:
        giveaway = GiveawayWords(self.source.module)
        counts = np.zeros((len(self.scopes), NUM_FEATURES), np.int64)
        for row, scope in zip(counts, self.scopes, strict=True):
            for identifier, count in scope.identifiers.items():
                for word in split_words(identifier):
                    if word != "self" and word not in giveaway:
                        row[_bucket(word)] += count
        return np.minimum(counts, 255).astype(np.uint8)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
