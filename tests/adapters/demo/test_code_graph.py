"""The code graph: files found, edges, features and labels of small package trees."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from peergraph_demo import code_graph
from peergraph_demo.code_graph import build_code_graph, find_edges, find_sources, load_code_graph
from peergraph_demo.graph import NodeGraph
from peergraph_demo.parse import NUM_FEATURES, FileFacts, SourceFile, parse_file, split_words

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

    def draw(self):
        helper()
        def inner():
            return tools.missing()
        return inner
''',
    "beta/__init__.py": "from .tools import measure as helper\n",
    "beta/tools.py": '''
import alpha

LIMIT = 3

def measure(value):
    """Measures someValue."""
    return alpha.Circle().draw(value)
''',
    "beta/user.py": "from alpha.shapes import helper\n\ndef go():\n    return helper()\n",
    "gamma.py": "import os\nfrom beta.tools import LIMIT\n",
    "broken.py": "def (:\n",
    "notes.dist-info/skip.py": "x = 1\n",
    "alpha/tests/test_x.py": "x = 1\n",
}

EDGES = {
    ("alpha", "alpha.shapes"),
    ("alpha.shapes", "alpha.shapes.Shape"),
    ("alpha.shapes", "alpha.shapes.Circle"),
    ("alpha.shapes.Shape", "alpha.shapes.Shape.area"),
    ("alpha.shapes.Shape", "alpha.shapes.Shape.scale"),
    ("alpha.shapes.Circle", "alpha.shapes.Circle.draw"),
    ("alpha.shapes.Circle.draw", "alpha.shapes.Circle.draw.inner"),
    ("beta", "beta.tools"),
    ("beta", "beta.user"),
    ("beta.tools", "beta.tools.measure"),
    ("beta.user", "beta.user.go"),
    ("alpha", "alpha.shapes.Circle"),
    ("alpha", "beta"),
    ("alpha.shapes", "beta.tools"),
    ("alpha.shapes", "beta.tools.measure"),
    ("beta", "beta.tools.measure"),
    ("beta.tools", "alpha"),
    # alpha.shapes imports helper from beta, which imports it from beta.tools.
    ("beta.user", "beta.tools.measure"),
    # LIMIT has no node: the module around it is the target.
    ("gamma", "beta.tools"),
    ("alpha.shapes.Shape.area", "alpha.shapes.Shape.scale"),
    # `self` alone refers to the class.
    ("alpha.shapes.Shape.area", "beta.tools.measure"),
    ("alpha.shapes.Circle", "alpha.shapes.Shape"),
    ("alpha.shapes.Circle.draw", "beta.tools.measure"),
    # The module has no `missing`.
    ("alpha.shapes.Circle.draw.inner", "beta.tools"),
    ("beta.tools.measure", "alpha.shapes.Circle"),
    ("beta.user.go", "beta.tools.measure"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def facts_of(tree: Path) -> list[FileFacts]:
    parsed = [parse_file(source) for source in find_sources([tree])]
    return [facts for facts in parsed if facts is not None]


def build(tree: Path) -> NodeGraph:
    return build_code_graph(find_sources([tree]), min_class_nodes=5, progress=False)


def test_sources_are_modules_without_tests_and_metadata(tree: Path, tmp_path: Path) -> None:
    found = {s.module: s.is_package for s in find_sources([tree])}
    modules = ["alpha.shapes", "beta.tools", "beta.user", "broken", "gamma"]
    assert found == {"alpha": True, "beta": True, **dict.fromkeys(modules, False)}
    (tmp_path / "gamma.py").write_text("y = 1\n")
    first = {s.path.parent for s in find_sources([tmp_path, tree]) if s.module == "gamma"}
    assert first == {tmp_path}


def test_large_packages_are_cut(tmp_path: Path) -> None:
    (tmp_path / "big" / "deep").mkdir(parents=True)
    for name in ("big/a.py", "big/b.py", "big/deep/c.py", "low.py"):
        (tmp_path / name).write_text("#" * 100)
    modules = [s.module for s in find_sources([tmp_path], package_bytes=200)]
    assert modules == ["big.a", "big.b", "low"]


def test_exact_edges(tree: Path) -> None:
    files = facts_of(tree)
    names = [name for facts in files for name in facts.names]
    assert {(names[s], names[d]) for s, d in find_edges(files)} == EDGES
    graph = build(tree)
    graph.check()
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    stored = [(names[s], names[d]) for s, d in zip(graph.indices, destination, strict=True)]
    assert sorted(stored) == sorted(EDGES)
    assert graph.directed


def test_labels_and_split(tree: Path) -> None:
    graph = build(tree)
    names = [name for facts in facts_of(tree) for name in facts.names]
    assert graph.class_names == ["alpha", "beta"]
    expected = [{"alpha": 0, "beta": 1}.get(n.split(".")[0], -1) for n in names]
    assert graph.y.tolist() == expected
    masks = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert (masks.sum(0) == (graph.y >= 0)).all()


def test_features_are_normalised_words_without_the_path(tree: Path) -> None:
    graph = build(tree)
    names = [name for facts in facts_of(tree) for name in facts.names]
    row = graph.x[names.index("alpha.shapes.Circle")].astype(np.float32)
    found = set(np.flatnonzero(row).tolist())
    words = (b"circle", b"round", b"thing", b"of", b"shape")
    assert {zlib.crc32(word) % NUM_FEATURES for word in words} <= found
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-3)
    assert {zlib.crc32(word) % NUM_FEATURES for word in (b"alpha", b"shapes")}.isdisjoint(found)


def test_words_that_give_the_package_away_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "layers.py"
    path.write_text("def run_torchvision(torch, my_nn, layers, pytorch_x, kept):\n    pass\n")
    facts = parse_file(SourceFile(path, "torch.nn.layers", False))
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
    parse_file(SourceFile(path, "deep", False))
    assert parse_file(SourceFile(tmp_path / "absent.py", "absent", False)) is None
    path.write_bytes(b"x = '\xff\xfe'")
    assert parse_file(SourceFile(path, "deep", False)) is None


def test_too_small_for_labels(tree: Path) -> None:
    with pytest.raises(ValueError, match="300 or more modules, classes and functions"):
        build_code_graph(find_sources([tree]), progress=False)
    with pytest.raises(ValueError, match="largest of 0 found has 0"):
        build_code_graph([], progress=False)


def test_worker_processes_give_the_same_graph(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build(tree)
    monkeypatch.setattr(code_graph, "_FILES_PER_TASK", 3)
    pooled = build(tree)
    for name in ("indptr", "indices", "x", "y", "train_mask"):
        assert (getattr(alone, name) == getattr(pooled, name)).all()


def test_cache(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = code_graph.cache_path().name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(code_graph, "installation_roots", lambda: [tree])
    monkeypatch.setattr(code_graph, "MIN_CLASS_NODES", 5)
    path = code_graph.cache_path()
    assert path.parent == tmp_path / "cache" / "peergraph"
    assert path.name != other
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
