"""Which Python files the code graph is made of."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from peergraph_demo.parse import SourceFile

# Bounds time and memory: 40 MB are about 50,000 nodes and 8 seconds on two cores.
MAX_BYTES = 40_000_000
# Larger files are data tables and generated parsers.
MAX_FILE_BYTES = 1_000_000
_SITE_FOLDERS = ("site-packages", "dist-packages")
_SKIPPED_FOLDERS = frozenset({"__pycache__", "test", "tests", *_SITE_FOLDERS})


def installation_roots() -> list[Path]:
    """The standard library and the folders of installed packages, in the order of the path."""
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    roots += [Path(p) for p in sys.path if Path(p).name in _SITE_FOLDERS]
    return list(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


def installation_key(format_version: int) -> str:
    """A hash of the interpreter and the installed packages: what the graph depends on."""
    installed = sorted(f"{d.name}=={d.version}" for d in metadata.distributions())
    parts = [str(format_version), sys.version, *map(str, installation_roots()), *installed]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def find_sources(roots: Sequence[Path], max_bytes: int = MAX_BYTES) -> list[SourceFile]:
    """The modules below `roots`, by name; the first root wins where two have the same module.

    Beyond `max_bytes` in all, the largest packages are cut to an equal size.
    """
    found: dict[str, SourceFile] = {}
    for root in roots:
        for source in _walk(root):
            found.setdefault(source.module, source)
    packages: dict[str, list[SourceFile]] = defaultdict(list)
    for module in sorted(found):
        packages[found[module].package].append(found[module])
    limit = _fair_limit([sum(s.size for s in p) for p in packages.values()], max_bytes)
    return [source for package in packages.values() for source in _cut(package, limit)]


def _walk(root: Path) -> Iterator[SourceFile]:
    for folder, subfolders, files in os.walk(root):
        # A package's folder is a Python name; "numpy-2.0.dist-info" is not.
        subfolders[:] = sorted(
            d for d in subfolders if d.isidentifier() and d not in _SKIPPED_FOLDERS
        )
        for name in sorted(files):
            stem, extension = os.path.splitext(name)
            if extension != ".py" or not stem.isidentifier():
                continue
            path = Path(folder, name)
            parts = [*path.parent.relative_to(root).parts, stem]
            is_package = stem == "__init__"
            if is_package:
                parts.pop()
            size = path.stat().st_size
            if parts and size <= MAX_FILE_BYTES:
                yield SourceFile(path, ".".join(parts), is_package, size)


def _fair_limit(sizes: Sequence[int], total: int) -> int:
    """The limit L with sum(min(size, L)) <= total, the largest size if all fit."""
    left = total
    ordered = sorted(sizes)
    for i, size in enumerate(ordered):
        share = left // (len(ordered) - i)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else 0


def _cut(package: list[SourceFile], limit: int) -> Iterator[SourceFile]:
    used = 0
    # The outer modules first: they are what other packages import.
    for source in sorted(package, key=lambda s: (s.module.count("."), s.module)):
        used += source.size
        if used > limit:
            return
        yield source
