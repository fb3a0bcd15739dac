"""The documentation's site: its tables are those of the records, its reference is complete."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# The command line, and what tests compare with.
NOT_FOR_USERS = {"peergraph.cli", "peergraph.reference", "peergraph.testing"}


def load(path: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a script that is no module of a package."""
    monkeypatch.setattr(sys, "path", [str((ROOT / path).parent), *sys.path])
    return runpy.run_path(str(ROOT / path))


def test_tables_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("benchmarks/site_figures.py", monkeypatch)
    page = figures["PAGE"].read_text()
    assert figures["filled"](page) == page, "make figures writes the tables anew"
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(figures["CHARTS"])
    for name in [*(f"bench_{chart}" for chart in figures["CHARTS"]), "overview"]:
        assert (figures["FIGURES"] / f"{name}.svg").exists()
    assert all(ratio > 0 for *_, ratio in figures["overview"]())


@pytest.mark.parametrize(
    "chart",
    [
        *("gather", "narrow", "sampling", "minibatch", "training", "loader", "captured"),
        *("layers", "typed", "fullgraph", "dropout", "offload"),
    ],
)
def test_charts_are_as_new_as_the_code(chart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("benchmarks/site_figures.py", monkeypatch)
    assert set(figures["MEASURES"]) == set(figures["CHARTS"])
    assert all((ROOT / path).exists() for path in figures["MEASURES"][chart])
    try:
        changes = figures["changes_since"](chart)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs Git's history")
    if chart in figures["OUTDATED"]:
        assert changes, f"{chart} is of the present code: take it out of OUTDATED"
    else:
        assert changes == [], f"{chart}: record a run, or list the commit in CHECKED, or OUTDATED"


def test_commits_of_runs_are_those_that_the_runs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("benchmarks/site_figures.py", monkeypatch)
    assert set(figures["COMMITS"]) == set(figures["RUNS"].values())
    for run, commit in figures["COMMITS"].items():
        assert commit in (ROOT / "benchmarks" / "results" / run / "README.md").read_text()


def test_figures_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, which the extra docs installs")
    figures = load("benchmarks/site_figures.py", monkeypatch)
    drawn = figures["draw"](tmp_path)
    assert sorted(path.name for path in drawn) == sorted(
        ["overview.svg", *(f"bench_{chart}.svg" for chart in figures["CHARTS"])]
    )


def test_troubleshooting_quotes_messages_that_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docutils", reason="needs docutils, which the extra docs installs")
    texts = [m.text for m in load("docs/extensions/error_messages.py", monkeypatch)["messages"]()]
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert len(quoted) > 20
    parts = [[part.strip() for part in quote.split("…") if part.strip()] for quote in quoted]
    missing = [q for q, p in zip(quoted, parts, strict=True) if not any(_has(t, p) for t in texts)]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("peergraph.store.ingest.table", "raise ValueError(MIXED_TEXT)"),
        ("peergraph.aggregate.ops.attention", 'got " + ("both" if att is not None else "none")'),
        ("peergraph.memory.group.group", "raise ValueError(message)"),
    ],
)
def test_messages_with_names_and_conditions_are_listed(
    module: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("docutils", reason="needs docutils, which the extra docs installs")
    assert code in (ROOT / "plugin" / module.replace(".", "/")).with_suffix(".py").read_text()
    listed = load("docs/extensions/error_messages.py", monkeypatch)["messages"]()
    assert any(m.module == module and m.error == "ValueError" for m in listed)
    texts = {m.text for m in listed}
    assert "either left or att must be given, got both" in texts
    assert "this build of peergraph has no CUDA part" in texts


def _has(text: str, parts: list[str]) -> bool:
    """Whether the parts are in the text, one after the other."""
    return re.search(".*".join(map(re.escape, parts)), text) is not None


def described_packages() -> list[str]:
    pages = [path.read_text() for path in (ROOT / "docs" / "reference").glob("*.rst")]
    return [name for page in pages for name in re.findall(r"public-names:: (\S+)", page)]


def test_every_public_package_has_a_page_of_reference() -> None:
    packages = {"peergraph", "peergraph.optim", "peergraph.aggregate.layers"}
    for adapter in ("peergraph_pyg", "peergraph_dgl"):
        packages |= {adapter, f"{adapter}.nn"}
    for init in (ROOT / "plugin" / "peergraph").glob("*/__init__.py"):
        if re.search(r"^__all__ = \[", init.read_text(), re.MULTILINE):
            packages.add(f"peergraph.{init.parent.name}")
    assert sorted(described_packages()) == sorted(packages - NOT_FOR_USERS)


@pytest.mark.parametrize("package", described_packages())
def test_reference_has_a_text_for_every_public_name(package: str) -> None:
    """The pages of the reference are the docstrings of `__all__`."""
    module = pytest.importorskip(package, exc_type=ImportError)
    missing = [
        name
        for name in module.__all__
        if isinstance(value := getattr(module, name), type) or inspect.isroutine(value)
        if not inspect.getdoc(value)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.com/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.com/css">',
        '<img src="http://example.com/badge.svg">',
        "<style>@import 'https://example.com/a.css';</style>",
    ],
)
def test_sources_on_other_hosts_are_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = load("docs/check_offline.py", monkeypatch)["remote_sources"]
    page = tmp_path / "page.html"
    page.write_text(
        f'<a href="https://example.com">{text}</a><link rel="canonical" href="https://x">'
    )
    assert len(check(tmp_path)) == 1
    page.write_text('<a href="https://example.com">a link</a><script src="x.js"></script>')
    assert check(tmp_path) == []


def menu() -> Iterator[tuple[Path, Path]]:
    """Pairs of a page and a page that its table of contents lists."""
    for page in (ROOT / "docs").rglob("*.md"):
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            for name in re.findall(r"^(?:.*<)?([\w./*]+)>?$", tree, re.MULTILINE):
                below_root = os.path.normpath((page.parent / name).relative_to(ROOT))
                for suffix in (".md", ".rst"):
                    yield from ((page, file) for file in ROOT.glob(below_root + suffix))


def test_every_page_stands_in_a_table_of_contents() -> None:
    """As the site's build demands, which not every run of the tests makes."""
    pages = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - {ROOT / "README.md"}
    missing = pages - {page for _, page in menu()} - {ROOT / "docs" / "index.md"}
    assert sorted(str(page.relative_to(ROOT)) for page in missing) == []


def test_files_lie_where_the_menu_has_them() -> None:
    """A chapter's first page and its pages are in one folder."""
    elsewhere = [
        f"{page.relative_to(ROOT)} in {chapter.relative_to(ROOT)}"
        for chapter, page in menu()
        if page.is_relative_to(ROOT / "docs")
        and chapter.parent != (page.parent.parent if page.stem == "index" else page.parent)
    ]
    assert elsewhere == []
