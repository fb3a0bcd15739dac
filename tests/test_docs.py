"""The documentation names only what exists: links, files and dotted names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Where a path in the text may start.
BASES = [
    ROOT / base for base in ("", "csrc", "plugin", "plugin/peergraph", "adapters", "benchmarks")
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]+\.(?:py|pyi|h|cpp|cu|cuh|sh|md|json))`")
NAME = re.compile(r"`(peergraph(?:_pyg|_dgl|_demo)?(?:\.[A-Za-z]\w*)+)")
MAX_DESIGN_WORDS = 1700


def pages() -> Iterator[tuple[str, Path, str]]:
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page, page.read_text()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_lead_somewhere() -> None:
    dead = []
    for name, page, text in pages():
        for target, anchor in LINK.findall(text):
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{name}: {target}#{anchor}")
    assert dead == []


def test_files_exist() -> None:
    missing = [
        f"{name}: {path}"
        for name, _, text in pages()
        for path in FILE.findall(text)
        if not any((base / path).exists() for base in BASES)
    ]
    assert missing == []


def test_names_exist() -> None:
    missing = []
    for name, _, text in pages():
        for dotted in sorted(set(NAME.findall(text))):
            if not resolves(dotted):
                missing.append(f"{name}: {dotted}")
    assert missing == []


def resolves(dotted: str) -> bool:
    """Whether the name is a module, or something in a module."""
    package, *rest = dotted.split(".")
    if package != "peergraph":
        pytest.importorskip(package, exc_type=ImportError)
    for split in range(len(rest), -1, -1):
        module = ".".join([package, *rest[:split]])
        try:
            exists = find_spec(module) is not None
        except ModuleNotFoundError:
            exists = False
        if exists:
            try:
                reduce(getattr, rest[split:], import_module(module))
            except AttributeError:
                return False
            return True
    return False


def test_path_into_full_graphs_has_five_files_with_their_classes() -> None:
    page = (ROOT / "docs" / "internals" / "fullgraph_reading.md").read_text()
    steps = re.findall(r"^\| `(fullgraph/\S+\.py)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(steps) == 5
    for path, name in steps:
        assert re.search(rf"^class {name}\b", (ROOT / "plugin/peergraph" / path).read_text(), re.M)
    for owner, method in re.findall(r"`(\w+)\.(\w+)`\*\*", page):
        path = next(path for path, name in steps if name == owner)
        assert f"def {method}(" in (ROOT / "plugin/peergraph" / path).read_text()


# The facts to look up: every limit, every message, every argument.
LONG_GUIDES = {"limits", "troubleshooting"}
MAX_GUIDE_WORDS = 900


def test_guides_are_short() -> None:
    """What takes more words is an internals page, a benchmark page or a second guide."""
    lengths = {}
    for page in (ROOT / "docs" / "guides").glob("*.md"):
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        lengths[page.stem] = sum(re.search(r"\w", word) is not None for word in prose.split())
    long = {name: words for name, words in lengths.items() if words > MAX_GUIDE_WORDS}
    assert set(long) <= LONG_GUIDES, long


def test_design_is_short() -> None:
    assert len((ROOT / "docs" / "design.md").read_text().split()) <= MAX_DESIGN_WORDS
