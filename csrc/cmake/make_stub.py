"""Writes plugin/peergraph/_C.pyi, the types of the compiled module, with pybind11-stubgen.

    python csrc/cmake/make_stub.py

The stub is the same for builds with and without CUDA: what a build without CUDA lacks is kept from
the stub that is there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parents[2] / "plugin" / "peergraph" / "_C.pyi"

CUDA_ONLY = frozenset(
    {
        *("cuda_malloc", "cuda_free", "ipc_handle", "open_ipc", "close_ipc"),
        *("enable_peer_access", "register_host", "unregister_host", "raise_pending"),
        *(
            "num_raised_writes",
            "use_thread_local_capture_mode",
            "place_relations",
            "sample_static_shape",
        ),
    }
)
"""Functions and methods of builds with CUDA."""

# pybind11-stubgen writes what pybind11 accepts; callers in Python pass the plain types.
_PLAIN_TYPES = (
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"typing\.SupportsInt\b", "int"),
    (r"typing\.SupportsFloat\b", "float"),
    (r'typing\.Annotated\[(collections\.abc\.Sequence\[int\]), "FixedSize\(\d+\)"\]', r"\1"),
    (r"collections\.abc\.Callable(?!\[)", "collections.abc.Callable[[int], int]"),
    (r"-> tuple:", "-> tuple[typing.Any, ...]:"),
    (r"-> list:", "-> list[typing.Any]:"),
)
_ENUM_METHODS = {"__init__", "__int__", "name", "value"}


def generate() -> str:
    """Returns the stub of the compiled module that is installed, unformatted."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "peergraph._C", "-o", folder]
        subprocess.run(command, check=True, capture_output=True)
        text = (Path(folder) / "peergraph" / "_C.pyi").read_text()
    for pattern, plain in _PLAIN_TYPES:
        text = re.sub(pattern, plain, text)
    module = ast.parse(text)
    module.body = [node for node in module.body if not _assigns(node, "__all__")]
    for node in module.body:
        if isinstance(node, ast.ClassDef) and any(_assigns(n, "__members__") for n in node.body):
            node.body = [
                item
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                or (isinstance(item, ast.FunctionDef) and item.name in _ENUM_METHODS)
            ]
    return ast.unparse(module) + "\n"


def definitions(stub: str) -> dict[str, str]:
    """Returns what a stub defines, by qualified name; several forms of a function are joined."""
    declarations: dict[str, str] = {}
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ClassDef):
            declarations[node.name] = ""
            _add(declarations, f"{node.name}.", node.body)
        else:
            _add(declarations, "", [node])
    return declarations


def with_cuda(generated: str, committed: str) -> str:
    """Returns the generated stub with the functions of CUDA that only the committed one has."""
    new, old = ast.parse(generated), ast.parse(committed)
    names = definitions(generated)
    classes = {node.name: node for node in new.body if isinstance(node, ast.ClassDef)}
    for node in old.body:
        if isinstance(node, ast.FunctionDef) and node.name in CUDA_ONLY - names.keys():
            new.body.append(node)
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for item in node.body:
                is_missing = (
                    isinstance(item, ast.FunctionDef)
                    and item.name in CUDA_ONLY
                    and f"{node.name}.{item.name}" not in names
                )
                if is_missing:
                    classes[node.name].body.append(item)
    return ast.unparse(new) + "\n"


def _add(declarations: dict[str, str], prefix: str, body: list[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            name = prefix + node.name
            node.body = []
            declarations[name] = declarations.get(name, "") + ast.dump(node)
        elif isinstance(node, ast.AnnAssign):
            declarations[prefix + ast.unparse(node.target)] = ast.dump(node.annotation)


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name


def main() -> None:
    """Writes the stub and formats it."""
    first = '"""Types of the compiled module; `make stub` writes them."""\n\n'
    STUB.write_text(first + with_cuda(generate(), STUB.read_text()))
    subprocess.run(["ruff", "format", "--quiet", str(STUB)], check=True)
    subprocess.run(["ruff", "check", "--fix", "--quiet", str(STUB)], check=True)


if __name__ == "__main__":
    main()
