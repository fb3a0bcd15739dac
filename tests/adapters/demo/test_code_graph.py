"""The code graph: files found, edges, features and labels of small package trees."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from peergraph_demo import code_graph, parse, sources
from peergraph_demo.code_graph import EDGE_TYPE_NAMES, build_code_graph, load_code_graph
from peergraph_demo.graph import NodeGraph
from peergraph_demo.parse import NUM_FEATURES, SourceFile, parse_file, split_words
from peergraph_demo.resolve import resolve_edges
from peergraph_demo.sources import find_sources

TREE = {
    "alpha/__init__.py": "from .shapes import Circle\nfrom beta import *\n",
    "alpha/shapes.py": '''
"""Alpha shapes: areas."""
import beta.tools as tools
from beta import helper

class Shape:
    def area(self):
        return self.scale(tools.measure(1))

    def scale(self, factor):
        return factor

class Circle(Shape):
    """A roundThing of alpha."""

    def draw(self, helper):
        helper()
        self.area()
        def inner():
            return tools.missing()
        return inner()
''',
    "beta/__init__.py": "from .tools import measure as helper\n",
    "beta/tools.py": '''
import alpha

LIMIT = 3

def measure(value):
    """Measures someValue."""
    return measure(alpha.Circle().draw(value))
''',
    "beta/user.py": "from alpha import helper, LIMIT\n\ndef go():\n    return helper()\n",
    "gamma.py": "import os\nfrom beta.tools import LIMIT\n",
    "broken.py": "def (:\n",
    "notes.dist-info/skip.py": "x = 1\n",
    "alpha/tests/test_x.py": "x = 1\n",
}

EDGES = {
    ("alpha", "alpha.shapes", "contains"),
    ("alpha.shapes", "alpha.shapes.Shape", "contains"),
    ("alpha.shapes", "alpha.shapes.Circle", "contains"),
    ("alpha.shapes.Shape", "alpha.shapes.Shape.area", "contains"),
    ("alpha.shapes.Shape", "alpha.shapes.Shape.scale", "contains"),
    ("alpha.shapes.Circle", "alpha.shapes.Circle.draw", "contains"),
    ("alpha.shapes.Circle.draw", "alpha.shapes.Circle.draw.inner", "contains"),
    ("beta", "beta.tools", "contains"),
    ("beta", "beta.user", "contains"),
    ("beta.tools", "beta.tools.measure", "contains"),
    ("beta.user", "beta.user.go", "contains"),
    ("alpha", "alpha.shapes.Circle", "imports"),
    ("alpha", "beta", "imports"),
    ("alpha.shapes", "beta.tools", "imports"),
    ("alpha.shapes", "beta.tools.measure", "imports"),
    ("beta", "beta.tools.measure", "imports"),
    ("beta.tools", "alpha", "imports"),
    # alpha's star import re-exports helper, which beta in turn imports from beta.tools.
    ("beta.user", "beta.tools.measure", "imports"),
    # LIMIT has no node: the nearest module is the target.
    ("beta.user", "alpha", "imports"),
    ("gamma", "beta.tools", "imports"),
    ("alpha.shapes.Shape.area", "alpha.shapes.Shape.scale", "calls"),
    ("alpha.shapes.Shape.area", "beta.tools.measure", "calls"),
    # self.area is inherited; the parameter `helper` hides the imported one.
    ("alpha.shapes.Circle.draw", "alpha.shapes.Shape.area", "calls"),
    ("alpha.shapes.Circle.draw", "alpha.shapes.Circle.draw.inner", "calls"),
    ("beta.tools.measure", "alpha.shapes.Circle", "calls"),
    ("beta.user.go", "beta.tools.measure", "calls"),
    ("alpha.shapes.Circle", "alpha.shapes.Shape", "inherits"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def facts_of(tree: Path) -> list[parse.FileFacts]:
    parsed = [parse_file(source) for source in find_sources([tree])]
    return [facts for facts in parsed if facts is not None]


def build(tree: Path) -> NodeGraph:
    return build_code_graph(find_sources([tree]), min_class_nodes=5, progress=False)


def test_sources_are_modules_without_tests_and_metadata(tree: Path) -> None:
    found = {s.module: s.is_package for s in find_sources([tree])}
    assert found == {
        "alpha": True,
        "alpha.shapes": False,
        "beta": True,
        "beta.tools": False,
        "beta.user": False,
        "broken": False,
        "gamma": False,
    }


def test_first_root_wins(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "gamma.py").write_text("y = 1\n")
    assert {s.path.parent for s in find_sources([tmp_path, tree]) if s.module == "gamma"} == {
        tmp_path
    }


def test_largest_packages_are_cut(tmp_path: Path) -> None:
    for name, files in (("big", 10), ("mid", 4), ("low", 1)):
        (tmp_path / name).mkdir()
        for i in range(files):
            (tmp_path / name / f"m{i}.py").write_text("#" * 100)
    counts = {
        limit: [
            sum(s.package == p for s in find_sources([tmp_path], max_bytes=limit))
            for p in ("big", "mid", "low")
        ]
        for limit in (1500, 900, 300, 0)
    }
    assert counts == {1500: [10, 4, 1], 900: [4, 4, 1], 300: [1, 1, 1], 0: [0, 0, 0]}


def test_exact_edges(tree: Path) -> None:
    files = facts_of(tree)
    names = [name for facts in files for name in facts.names]
    edges = {(names[s], names[d], EDGE_TYPE_NAMES[t]) for s, d, t in resolve_edges(files)}
    assert edges == EDGES


def test_graph_stores_each_pair_once(tree: Path) -> None:
    graph = build(tree)
    graph.check()
    names = [name for facts in facts_of(tree) for name in facts.names]
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    assert graph.edge_type is not None
    stored = [
        (names[s], names[d], EDGE_TYPE_NAMES[t])
        for s, d, t in zip(graph.indices, destination, graph.edge_type, strict=True)
    ]
    # draw contains and calls inner: one edge, of the lower type.
    twice = ("alpha.shapes.Circle.draw", "alpha.shapes.Circle.draw.inner", "calls")
    assert sorted(stored) == sorted(EDGES - {twice})
    assert graph.directed


def test_labels_and_split(tree: Path) -> None:
    graph = build(tree)
    names = [name for facts in facts_of(tree) for name in facts.names]
    assert graph.class_names == ["alpha", "beta"]
    expected = [{"alpha": 0, "beta": 1}.get(n.split(".")[0], -1) for n in names]
    assert graph.y.tolist() == expected
    masks = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert (masks.sum(0) == (graph.y >= 0)).all()
    labelled = sum(label >= 0 for label in expected)
    assert masks.sum(1).tolist()[0] == int(0.6 * labelled)


def test_features_are_normalised_words_without_the_path(tree: Path) -> None:
    graph = build(tree)
    names = [name for facts in facts_of(tree) for name in facts.names]
    row = graph.x[names.index("alpha.shapes.Circle")].astype(np.float32)
    # Docstring and name; "alpha" and "shapes" are parts of the module's path.
    buckets = {zlib.crc32(w) % NUM_FEATURES for w in (b"circle", b"round", b"thing", b"of")}
    assert zlib.crc32(b"shape") % NUM_FEATURES in np.flatnonzero(row)
    assert buckets <= set(np.flatnonzero(row).tolist())
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-3)
    assert {zlib.crc32(w) % NUM_FEATURES for w in (b"alpha", b"shapes")}.isdisjoint(
        np.flatnonzero(row).tolist()
    )


def test_words_that_give_the_package_away_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "layers.py"
    path.write_text("def run_torchvision(torch, my_nn, layers, pytorch_x, kept):\n    pass\n")
    facts = parse_file(SourceFile(path, "torch.nn.layers", False, 1))
    assert facts is not None
    expected = np.zeros(NUM_FEATURES, np.uint8)
    for word in (b"run", b"my", b"kept"):
        expected[zlib.crc32(word) % NUM_FEATURES] += 1
    assert (facts.words[1] == expected).all()


def test_split_words() -> None:
    assert split_words("_HTTPServer_fooBar2x_a") == ("http", "server", "foo", "bar")


def test_deep_nesting_and_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text("x = " + "+".join(["a"] * 20_000))
    parse_file(SourceFile(path, "deep", False, 1))
    assert parse_file(SourceFile(tmp_path / "absent.py", "absent", False, 1)) is None
    path.write_bytes(b"x = '\xff\xfe'")
    assert parse_file(SourceFile(path, "deep", False, 1)) is None


def test_too_small_for_labels(tree: Path) -> None:
    with pytest.raises(ValueError, match="300 or more modules, classes and functions"):
        build_code_graph(find_sources([tree]), progress=False)
    with pytest.raises(ValueError, match="largest of 0 found has 0"):
        build_code_graph([], progress=False)


def test_worker_processes_give_the_same_graph(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build(tree)
    monkeypatch.setattr(code_graph, "_BATCH_FILES", 3)
    pooled = build(tree)
    for name in ("indptr", "indices", "x", "y", "edge_type", "train_mask"):
        assert (getattr(alone, name) == getattr(pooled, name)).all()


def test_cache(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(code_graph, "installation_roots", lambda: [tree])
    monkeypatch.setattr(sources, "installation_roots", lambda: [tree])
    monkeypatch.setattr(code_graph, "MIN_CLASS_NODES", 5)
    path = code_graph.cache_path()
    assert path.parent == tmp_path / "cache" / "peergraph"
    first = load_code_graph(progress=False)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    written = path.stat().st_mtime_ns

    again = load_code_graph(progress=False)
    assert path.stat().st_mtime_ns == written
    assert (again.indices == first.indices).all()
    assert (again.x == first.x).all()
    assert again.class_names == first.class_names

    (tree / "gamma.py").write_text("def extra():\n    pass\n")
    assert load_code_graph(progress=False).num_nodes == first.num_nodes
    assert load_code_graph(rebuild=True, progress=False).num_nodes == first.num_nodes + 1

    path.write_bytes(b"not a zip file")
    assert load_code_graph(progress=False).num_nodes == first.num_nodes + 1
    assert "rebuilding the code graph" in capsys.readouterr().err


def test_cache_that_cannot_be_written(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(code_graph, "installation_roots", lambda: [tree])
    monkeypatch.setattr(code_graph, "MIN_CLASS_NODES", 5)
    with pytest.raises(OSError, match="set XDG_CACHE_HOME to a folder that can be written"):
        load_code_graph(progress=False)


def test_key_depends_on_installation(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = sources.installation_key(1)
    assert key == sources.installation_key(1)
    assert key != sources.installation_key(2)
    monkeypatch.setattr(sources, "installation_roots", lambda: [tree])
    assert key != sources.installation_key(1)
