"""The graph of code: modules, definitions, references, features without the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="the demo needs torch-geometric")

TREE = {
    "alpha/__init__.py": "from .shapes import Circle\nimport beta\n",
    "alpha/shapes.py": """
from beta.tools import measure as ruler

class Shape:
    def area(self):
        return self.scale() * ruler(self)

    def scale(self):
        return 2

class Circle(Shape):
    def draw(self, thickness):
        def inner():
            return ruler
        return inner
""",
    "beta/__init__.py": "",
    "beta/tools.py": "def measure(someValue):\n    return alphaWord + alpha_word\n",
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
    ("beta.tools", "beta.tools.measure"),
    # References.
    ("alpha", "alpha.shapes.Circle"),
    ("alpha", "beta"),
    ("alpha.shapes", "beta.tools.measure"),
    ("alpha.shapes.Shape.area", "alpha.shapes.Shape.scale"),
    ("alpha.shapes.Shape.area", "alpha.shapes.Shape"),
    ("alpha.shapes.Shape.area", "beta.tools.measure"),
    ("alpha.shapes.Circle", "alpha.shapes.Shape"),
    ("alpha.shapes.Circle.draw.inner", "beta.tools.measure"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def read(tree: Path) -> list[Any]:
    from peergraph_demo.code_modules import find_modules, read_modules

    modules = read_modules(find_modules([tree]), cpus=2)
    assert [module.names[0] for module in modules] == [
        "alpha",
        "alpha.shapes",
        "beta",
        "beta.tools",
    ]
    return modules


def test_edges(tree: Path) -> None:
    from peergraph_demo.code_graph import find_edges

    modules = read(tree)
    names = [name for module in modules for name in module.names]
    edges = {(names[a], names[b]) for a, b in find_edges(modules).t().tolist()}
    endpoints = {name for pair in EDGES for name in pair}
    # Names of arguments and others resolve to the module around them.
    missing = EDGES - edges
    assert missing == set()
    for source, target in edges - EDGES:
        assert source.startswith(target) or target in {"beta.tools", "alpha.shapes"}, (
            source,
            target,
        )
    assert endpoints <= set(names)


def test_modules_without_tests_and_metadata(tree: Path, tmp_path: Path) -> None:
    from peergraph_demo.code_modules import find_modules

    modules = {module.names[0]: module.path for module in find_modules([tree])}
    assert list(modules) == ["alpha", "alpha.shapes", "beta", "beta.tools", "broken"]
    (tmp_path / "broken.py").write_text("y = 1\n")
    first = {m.names[0]: m.path for m in find_modules([tmp_path, tree])}
    assert first["broken"] == tmp_path / "broken.py"
    small = find_modules([tree], package_bytes=60)
    assert [module.names[0] for module in small] == ["alpha", "beta", "beta.tools", "broken"]


def test_features_do_not_have_the_words_of_the_path(tree: Path) -> None:
    from peergraph_demo.code_graph import words
    from peergraph_demo.code_modules import split_words

    assert split_words("parseHTTPReply_2x") == ["parse", "http", "reply"]
    [tools] = (module for module in read(tree) if module.names[0] == "beta.tools")
    with_path = words(tools)
    assert torch.allclose(with_path.norm(dim=1), torch.tensor([0.0, 1.0]))
    tools.identifiers[1]["beta"] += 5
    assert torch.equal(words(tools), with_path)


def test_graph_is_cached(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peergraph_demo import code_graph

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules = code_graph.find_modules([tree])
    monkeypatch.setattr(code_graph, "find_modules", lambda roots: modules)
    graph = code_graph.load_code_graph()
    assert (graph.name, graph.num_classes) == ("code graph", 2)
    assert graph.num_nodes == len(graph.y) == 11
    assert graph.is_undirected()
    masks = torch.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert masks.sum(0).eq(1).all()
    monkeypatch.setattr(code_graph, "find_modules", None)
    again = code_graph.load_code_graph()
    assert torch.equal(again.x, graph.x)
    assert torch.equal(again.edge_index, graph.edge_index)
