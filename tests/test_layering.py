"""The layers: areas look only left, the core knows no framework, adapters use public names, and no
files import each other in a circle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.named_case import named_cases

ROOT = Path(__file__).parent.parent
AREAS = ["memory", "store", "sampling", "aggregate", "fullgraph"]
PARTS = {  # of an area, in the order in which they may import each other
    "memory": ["device", "group", "region", "table", "distributed", "training", "topology"],
    "store": [
        *("input", "hotness", "csc", "placement", "contents", "build", "report", "embedding"),
        *("disk", "ingest", "stored_graph", "store", "tensors", "search", "kernel_argument"),
    ],
    "sampling": [
        *("lazy_dict", "sample", "arguments", "random_seeds", "csc_reads", "exclude", "neighbor"),
        *("hgt_sampler", "static_shape", "walks", "saint", "ppr", "negative", "presampling"),
    ],
    "aggregate": [
        *("kernels", "sparse", "ops", "messages", "structure", "csc", "traced", "communities"),
        *("functions", "layers"),
    ],
    "fullgraph": [
        "layout",
        "exchange",
        "tensor",
        "random",
        "structure",
        "plan",
        "offload",
        "dry_run",
        "full_graph_options",
        "graph_arguments",
        "graph",
        "captured_step",
    ],
    "fullgraph/offload": [  # a part with parts of its own
        *("chunks", "rows", "passes", "tensor", "programs", "gradients", "functions", "edges"),
        "offloaded_graph",
    ],
}
TOP = ["integration", "reference", "testing", "cli"]  # used by no area
LAYERS = AREAS + TOP
COMMANDS = {"cli"}  # imported when they run, so they may import a framework
PUBLIC = [  # what adapters may import: these packages, and what their __all__ lists
    "peergraph",
    *(f"peergraph.{area}" for area in AREAS),
    "peergraph.aggregate.layers",
    "peergraph.integration",
    "peergraph.errors",
    "peergraph.autograd",
    "peergraph.cache_folder",
    "peergraph.optim",
    "peergraph.checkpoint_files",
    "peergraph.number_arguments",
    "peergraph.profiling",
    "peergraph.live_bytes",
    "peergraph.cli",
]
MAX_MODULES = 8  # of an area without parts
FACADES = {"__init__.py", "optim.py"}  # what users import; they may use all areas
FRAMEWORKS = {"torch_geometric", "dgl", "cupy", "peergraph_pyg", "peergraph_dgl", "peergraph_demo"}
HOST_HEADERS = re.compile(r"(torch|ATen|c10|pybind11)/|Python\.h")
BINDING = re.compile(r"bind(_\w+)?\.(cpp|h)|module\.cpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def may_use(user: str, used: str) -> bool:
    """Whether layer `user` may use layer `used`; any other name is common to all layers."""
    if used not in LAYERS:
        return True
    return user in LAYERS and LAYERS.index(used) <= LAYERS.index(user)


def may_import(user: list[str], used: list[str]) -> bool:
    """Whether a module of the area and part `user` may import from `used`, wherever it does so.

    Args:
        user, used: names of the modules, without "peergraph".
    """
    for depth in (1, 2):
        if user[:depth] != used[:depth] or len(user) <= depth or len(used) <= depth:
            return True
        parts = PARTS.get("/".join(user[:depth]), [])
        mine, other = user[depth], used[depth]
        if mine in parts and other in parts and parts.index(other) > parts.index(mine):
            return False
    return True


def cpp_violations(root: Path) -> Iterator[str]:
    csrc = root / "csrc"
    for path in sorted(csrc.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        area = path.relative_to(csrc).parts[0]
        is_binding = BINDING.fullmatch(path.name) is not None
        for bracket, header in INCLUDE.findall(path.read_text()):
            where = f"{path.relative_to(root)} includes {header}"
            if bracket == '"' and not (csrc / header).is_file():
                yield f"{where}: write it as <area>/<file>"
            elif bracket == '"' and not may_use(area, header.split("/")[0]):
                yield f"{where}: areas look only left"
            elif HOST_HEADERS.match(header) and not (is_binding and header.startswith("pybind11/")):
                yield f"{where}: only bind* and module.cpp know Python, and nothing torch"


def imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Dotted names imported by a module of `package`, and whether importing it imports them."""
    inner = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        or (isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING")
        for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        at_import = id(node) not in inner
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), at_import
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield [*base, alias.name], at_import


def modules(folder: Path) -> Iterator[tuple[Path, list[str], ast.Module]]:
    """Each Python file below `folder`: its path, the package it is in, its syntax tree."""
    for path in sorted(folder.rglob("*.py")):
        yield path, list(path.relative_to(folder).parent.parts), ast.parse(path.read_text())


def core_violations(root: Path) -> Iterator[str]:
    own = {path.name.split(".")[0] for path in (root / "plugin" / "peergraph").iterdir()}
    for path, package, tree in modules(root / "plugin"):
        area = package[1] if len(package) > 1 else ""
        for name, at_import in imports(tree, package):
            where = f"{path.relative_to(root)} imports {'.'.join(name)}"
            if at_import and name[0] in FRAMEWORKS and area not in COMMANDS:
                yield f"{where}: the core imports no framework"
            is_facade = path.name in FACADES and not area
            if name[0] == "peergraph" and len(name) > 1 and not is_facade:
                if not may_use(area, name[1]):
                    yield f"{where}: areas look only left"
                elif not may_import([*package[1:], path.stem], name[1:]):
                    yield f"{where}: parts of an area look only left"
                elif area in AREAS and name[1] not in own:
                    yield f"{where}: name the module it comes from"


def public_names(root: Path) -> set[str]:
    """The dotted names that `__all__` of the public packages lists, and the packages."""
    names = {"peergraph"}
    for package in PUBLIC:
        source = root / "plugin" / Path(*package.split("."))
        file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
        if not file.exists():
            continue
        names.add(package)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names.update(f"{package}.{name}" for name in ast.literal_eval(node.value))
    return names


def adapter_violations(root: Path) -> Iterator[str]:
    public = public_names(root)
    for path, package, tree in modules(root / "adapters"):
        for name, _ in imports(tree, package):
            if name[0] == "peergraph" and ".".join(name) not in public:
                where = f"{path.relative_to(root)} imports {'.'.join(name)}"
                yield f"{where}: adapters use public names only"


def file_imports(folder: Path) -> dict[str, set[str]]:
    """The files below a folder that each file imports, by dotted name, without facades.

    Imports in functions and for type checkers count: who reads a file has to read those too.
    """
    trees = {
        ".".join([*package, path.stem]): (package, tree)
        for path, package, tree in modules(folder)
        if path.name not in FACADES
    }
    files: dict[str, set[str]] = {}
    for file, (package, tree) in trees.items():
        dotted = {".".join(name) for name, _ in imports(tree, package)}
        dotted |= {name.rpartition(".")[0] for name in dotted}  # names in a module
        files[file] = (dotted & trees.keys()) - {file}
    return files


def circles(files: dict[str, set[str]]) -> Iterator[str]:
    """The files that import each other, in a circle of any length."""
    while True:
        ends = {file for file, used in files.items() if not used & files.keys()}
        if not ends:
            break
        files = {file: used for file, used in files.items() if file not in ends}
    for file in sorted(files):
        reached, pending = set[str](), [file]
        while pending:
            for used in files[pending.pop()] & files.keys() - reached:
                reached.add(used)
                pending.append(used)
        if file in reached:
            yield file


def circle_violations(root: Path) -> Iterator[str]:
    for folder in ("plugin", "adapters", "examples", "benchmarks"):
        for file in circles(file_imports(root / folder)):
            yield f"{folder}: {file} is in a circle of files that import each other"


def violations(root: Path) -> list[str]:
    checks = (cpp_violations, core_violations, adapter_violations, circle_violations)
    return [violation for find in checks for violation in find(root)]


def test_layers() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize("area", AREAS)
def test_large_areas_have_parts(area: str) -> None:
    files = list((ROOT / "plugin" / "peergraph" / area).rglob("*.py"))
    assert area in PARTS or len(files) <= MAX_MODULES


@pytest.mark.parametrize("area", PARTS)
def test_every_part_has_its_place(area: str) -> None:
    folder = ROOT / "plugin" / "peergraph" / area
    parts = {path.stem for path in folder.iterdir() if not path.name.startswith("__")}
    assert parts == set(PARTS[area])


ALLOWED = {
    "csrc/common/check.h": "#include <string>",
    "csrc/memory/gather.h": '#include "common/check.h"',
    "csrc/memory/bind.cpp": "#include <pybind11/pybind11.h>",
    "csrc/store/store.cu": '#include "memory/gather.h"',
    "plugin/peergraph/_C.pyi": "",
    "plugin/peergraph/__init__.py": "from peergraph.store import Store",
    "plugin/peergraph/errors.py": "import torch",
    "plugin/peergraph/memory/__init__.py": "from peergraph import _C, errors",
    "plugin/peergraph/store/__init__.py": "from ..memory import Table\ndef f():\n  import cupy\n"
    "__all__ = ['Store']",
    "plugin/peergraph/store/disk/x.py": "from peergraph.store.input import x",
    "plugin/peergraph/store/disk/y.py": "from peergraph.store.disk import z",
    "plugin/peergraph/store/disk/z.py": "import peergraph.store.input.x",
    "plugin/peergraph/cli/run.py": "import torch_geometric\nfrom peergraph import Store",
    "adapters/peergraph_pyg/__init__.py": "from peergraph.store import Store",
}


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_allows_the_rest(tmp_path: Path) -> None:
    write_tree(tmp_path, ALLOWED)
    assert violations(tmp_path) == []


@named_cases(
    ("path", "text", "rule"),
    [
        (
            "plugin/peergraph/fullgraph/offload/rows/x.py",
            "def f():\n  from peergraph.fullgraph.offload.passes.x import f",
            "parts of an area",
        ),
        (
            "plugin/peergraph/fullgraph/offload/rows/x.py",
            "from peergraph.fullgraph.offload.passes.x import f",
            "parts of an area",
        ),
        ("csrc/memory/x.h", '#include "store/store.h"', "<area>/<file>"),
        ("csrc/memory/x.cpp", '#include "store/store.cu"', "only left"),
        ("csrc/common/x.h", '#include "memory/gather.h"', "only left"),
        ("csrc/memory/x.h", '#include "check.h"', "<area>/<file>"),
        ("csrc/memory/x.cuh", "#include <torch/extension.h>", "nothing torch"),
        ("csrc/memory/x.cu", "#  include <pybind11/pybind11.h>", "nothing torch"),
        ("csrc/store/bind.cpp", "#include <ATen/ATen.h>", "nothing torch"),
        ("plugin/peergraph/memory/x.py", "from peergraph.store import Store", "only left"),
        ("plugin/peergraph/memory/x.py", "def f():\n  from ..store import Store", "only left"),
        ("plugin/peergraph/memory/x.py", "import peergraph.testing", "only left"),
        ("plugin/peergraph/store/input/x.py", "from peergraph.store.disk import x", "only left"),
        (
            "plugin/peergraph/store/input/x.py",
            "def f():\n  from peergraph.store.disk import x",
            "only left",
        ),
        (
            "plugin/peergraph/store/input/x.py",
            "if TYPE_CHECKING:\n  from peergraph.store.disk import x",
            "only left",
        ),
        ("plugin/peergraph/store/store.py", "import peergraph.store.tensors.x", "only left"),
        ("plugin/peergraph/memory/group/x.py", "from peergraph.memory import table", "only left"),
        ("plugin/peergraph/errors.py", "from peergraph import memory", "only left"),
        ("plugin/peergraph/store/x.py", "from peergraph import Store", "name the module"),
        ("plugin/peergraph/store/x.py", "try:\n  import dgl\nexcept: pass", "no framework"),
        ("adapters/peergraph_pyg/x.py", "from peergraph.store._x import f", "public names"),
        ("adapters/peergraph_pyg/x.py", "from peergraph import _C", "public names"),
        ("adapters/peergraph_pyg/x.py", "from peergraph.store import Plan", "public names"),
        ("adapters/peergraph_pyg/x.py", "from peergraph.store.store import Store", "public names"),
    ],
)
def test_catches_each_violation(tmp_path: Path, path: str, text: str, rule: str) -> None:
    tree = tmp_path / str(len(list(tmp_path.iterdir())))
    write_tree(tree, ALLOWED | {path: text})
    # Some of these close a circle, too.
    caught = [violation for violation in violations(tree) if "in a circle" not in violation]
    assert len(caught) == 1, caught
    assert path in caught[0]
    assert rule in caught[0]


@pytest.mark.parametrize(
    "text",
    [
        "from peergraph.store.disk import y",
        "def f():\n  from peergraph.store.disk.y import g",
        "if TYPE_CHECKING:\n  import peergraph.store.disk.y",
        "from peergraph.store.disk import w",
    ],
)
def test_catches_circles_of_files(tmp_path: Path, text: str) -> None:
    changes = {"z": text, "w": "from peergraph.store.disk.y import g"}
    files = {f"plugin/peergraph/store/disk/{name}.py": source for name, source in changes.items()}
    write_tree(tmp_path, ALLOWED | files)
    names = ["y", "z"] if "import w" not in text else ["w", "y", "z"]
    assert violations(tmp_path) == [
        f"plugin: peergraph.store.disk.{name} is in a circle of files that import each other"
        for name in names
    ]
