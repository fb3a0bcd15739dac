"""Finds the definition that a dotted name stands for, across files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from peergraph_demo.parse import CONTAINS, IMPORTS, INHERITS, MODULE, FileFacts

_MAX_DEPTH = 12


class Resolver:
    """Follows re-exports of modules and the bases of classes, as the import system would."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        self.ids: dict[str, int] = {}
        self._exports: dict[str, dict[str, str]] = {}
        self._stars: dict[str, list[str]] = {}
        self._bases: dict[str, list[str]] = {}
        self._members: dict[tuple[str, str], str | None] = {}
        first = 0
        for facts in files:
            self._exports[facts.module] = facts.exports
            self._stars[facts.module] = facts.star_imports
            for i, (name, kind) in enumerate(zip(facts.names, facts.kinds, strict=True)):
                # A submodule hides what its package defines under the same name.
                if kind == MODULE or name not in self.ids:
                    self.ids[name] = first + i
            for i, edge_type, target in facts.references:
                if edge_type == INHERITS:
                    self._bases.setdefault(facts.names[i], []).append(target)
            first += len(facts.names)

    def resolve(self, name: str, depth: int = 0) -> str | None:
        """The full name of the node that `name` stands for, or None."""
        first, *rest = name.split(".")
        current: str | None = first if first in self.ids else None
        for part in rest:
            if current is None:
                return None
            current = self._member(current, part, depth)
        return current

    def resolve_import(self, name: str) -> str | None:
        """As `resolve`, or the nearest node around a constant or an extension module."""
        while name:
            found = self.resolve(name)
            if found is not None:
                return found
            name = name.rpartition(".")[0]
        return None

    def _member(self, owner: str, part: str, depth: int) -> str | None:
        full = f"{owner}.{part}"
        if full in self.ids:
            return full
        key = (owner, part)
        if key not in self._members:
            self._members[key] = None  # ends import cycles
            if depth < _MAX_DEPTH:
                self._members[key] = self._inherited_member(owner, part, depth + 1)
        return self._members[key]

    def _inherited_member(self, owner: str, part: str, depth: int) -> str | None:
        target = self._exports.get(owner, {}).get(part)
        if target is not None:
            return self.resolve(target, depth)
        for module in self._stars.get(owner, []):
            found = self.resolve(f"{module}.{part}", depth)
            if found is not None:
                return found
        for base in self._bases.get(owner, []):
            base_class = self.resolve(base, depth)
            if base_class is not None and base_class != owner:
                found = self._member(base_class, part, depth)
                if found is not None:
                    return found
        return None


def resolve_edges(files: Sequence[FileFacts]) -> npt.NDArray[np.int64]:
    """All edges as rows (source, destination, type), without self loops; pairs may repeat."""
    resolver = Resolver(files)
    edges: list[tuple[int, int, int]] = []
    first = 0
    for facts in files:
        for i, parent in enumerate(facts.parents):
            if parent >= 0:
                edges.append((first + parent, first + i, CONTAINS))
        package = resolver.ids.get(facts.module.rpartition(".")[0])
        if package is not None:
            edges.append((package, first, CONTAINS))
        for i, edge_type, target in facts.references:
            find = resolver.resolve_import if edge_type == IMPORTS else resolver.resolve
            found = find(target)
            if found is not None and resolver.ids[found] != first + i:
                edges.append((first + i, resolver.ids[found], edge_type))
        first += len(facts.names)
    return np.array(edges, np.int64).reshape(-1, 3)
