"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from importlib.metadata import requires, version
from pathlib import Path

import peergraph
from peergraph import _C

ROOT = Path(__file__).parent.parent
MAX_LINES = 500


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Public names that a stub declares, each with its statement."""
    statements: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            statements[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            statements[node.target.id] = node
    return {name: node for name, node in statements.items() if not name.startswith("_")}


def assert_same_names(stub: dict[str, ast.stmt], compiled: set[str]) -> None:
    assert compiled - set(stub) == set()
    if _C.has_cuda:  # some functions exist in a CUDA build only
        assert set(stub) - compiled == set()


def test_stub_matches_the_compiled_module() -> None:
    stub = ROOT / "plugin" / "peergraph" / "_C.pyi"
    names = declared(ast.parse(stub.read_text()).body)
    compiled = public(dir(_C))
    assert_same_names(names, compiled)
    for name in compiled:
        node, value = names[name], getattr(_C, name)
        if isinstance(node, ast.ClassDef):
            assert_same_names(declared(node.body), public(vars(value)))
        elif isinstance(node, ast.FunctionDef):
            arguments = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
            assert arguments == re.findall(r"(\w+): ", value.__doc__.splitlines()[0]), name


def test_version_is_that_of_the_source() -> None:
    source = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert source is not None
    assert peergraph.__version__ == version("peergraph") == source[1]


def test_files_are_short() -> None:
    files = [
        path
        for folder in ("csrc", "plugin", "adapters")
        for path in (ROOT / folder).rglob("*")
        # Not the stub: there is one for the whole compiled module.
        if path.suffix in {".py", ".h", ".cpp", ".cu", ".cuh"}
    ]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


# Words of a private language, each with a term that engineers would search for.
BANNED = {
    "afar": "remote",
    "alike": "same",
    "away": "remote",
    "become": "set_class",
    "beside": "predicted, comparison",
    "lay": "layout",
    "lies": "location",
    "manieth": "index",
    "owns": "owner",
    "strewn": "scattered",
    "told": "received",
    "turned": "reversed, transposed",
    "whose": "owner",
    "wishes": "options",
}
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|"(?:\\.|[^"\n])*"')


KINDS = ("name", "id", "arg", "attr")  # of definitions, names, arguments and attributes


def identifiers(path: Path) -> Iterable[str]:
    text = path.read_text()
    if path.suffix != ".py":
        return re.findall(r"[A-Za-z_]\w*", COMMENT_OR_STRING.sub("", text))
    nodes = ast.walk(ast.parse(text))
    return [value for n in nodes for k in KINDS if isinstance(value := getattr(n, k, None), str)]


def test_names_are_the_fields_terms() -> None:
    banned = [
        f"{path.relative_to(ROOT)}: {name}, perhaps {BANNED[word.lower()]}"
        for folder in ("csrc", "plugin", "adapters")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cpp", ".cu", ".cuh"}
        for name in identifiers(path)
        for word in WORD.findall(name)
        if word.lower() in BANNED
    ]
    assert banned == []


# Participles say how a value came; a variable, an attribute or a function says what it is.
PARTICIPLES = {
    "found",
    "given",
    "held",
    "kept",
    "known",
    "made",
    "needed",
    "seen",
    "taken",
    "wanted",
}


def test_names_are_nouns() -> None:
    participles = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("plugin", "adapters", "examples", "release", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if not isinstance(node, ast.keyword)  # perhaps of a function of others
        for kind in KINDS
        for name in [getattr(node, kind, None)]
        if isinstance(name, str) and name.strip("_") in PARTICIPLES
    ]
    assert participles == []


def test_constraints_pin_all_that_make_installs() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.split("==")[0]) for line in lines if "==" in line}
    names = {
        normal(re.split(r"[^\w.-]", requirement)[0])
        for requirement in requires("peergraph") or []
        if not re.search(r"extra == .(cupy|nvml|plot|partition|dev)", requirement)
    }
    assert "torch" in names
    assert names | {"scikit-build-core", "pybind11", "ruff", "mypy", "clang-format"} <= pinned
