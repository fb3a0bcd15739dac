"""The directive ``error-messages``: the texts of all errors that Peergraph's code raises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
# The errors that say most about a machine or a run come first; others follow by name.
ORDER = (
    *("PeerLostError", "CollectiveMismatchError", "ImportError", "RuntimeError"),
    *("NotImplementedError", "ValueError", "TypeError", "IndexError", "KeyError"),
)
# Errors that Peergraph itself catches.
INTERNAL = {"AssertionError", "MachineFailedError", "NeedsOtherRowsError"}
INTERNAL |= {"UncacheableArgumentError", "SystemError"}
_CPP = {
    "invalid_argument": "ValueError",
    "out_of_range": "IndexError",
    "runtime_error": "RuntimeError",
    "PG_CHECK_ARG": "ValueError",
}
_CPP_RAISES = re.compile(r"throw std::(\w+)\(|^\s*(PG_CHECK_ARG)\(", re.MULTILINE)
_CPP_TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|[^"]+')

_Values = Mapping[str, list[ast.expr]]


@dataclass(frozen=True, order=True)
class Message:
    """An error's text, with … in the places of values."""

    error: str
    text: str
    module: str


def messages() -> list[Message]:
    """Those of all statements that raise an error with a text of Peergraph's own, sorted."""
    result = set()
    trees = {
        path: ast.parse(path.read_text())
        for folder in ("plugin", "adapters")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    constants: dict[str, list[ast.expr]] = {}
    for tree in trees.values():
        for name, value in [*_assigned(tree.body), *_returned(tree)]:
            constants.setdefault(name, []).append(value)
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        names = constants | _by_name(_assigned(tree.body))
        for error, text in _raised(tree, names):
            result.add(Message(error, text, module.removesuffix(".__init__")))
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        if path.suffix in {".cpp", ".cu", ".h", ".cuh"}:
            for error, text in _raised_in_cpp(path.read_text()):
                result.add(Message(error, text, "peergraph._C"))
    return sorted(result)


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _returned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The values of functions, some of which make the text of an error."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield function.name, node.value


def _by_name(pairs: Iterator[tuple[str, ast.expr]]) -> dict[str, list[ast.expr]]:
    result: dict[str, list[ast.expr]] = {}
    for name, value in pairs:
        result.setdefault(name, []).append(value)
    return result


def _raised(node: ast.AST, names: _Values) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        inner = (n for n in ast.walk(node) if isinstance(n, ast.Assign))
        names = {**names, **_by_name(_assigned(list(inner)))}
    # Some functions return the error that their callers raise.
    call = node.exc if isinstance(node, ast.Raise) else None
    call = node.value if isinstance(node, ast.Return) else call
    if isinstance(call, ast.Call) and call.args:
        error = ast.unparse(call.func).rpartition(".")[2]
        if error.endswith("Error") and error[:1] != "_" and error not in INTERNAL:
            for argument in call.args:  # the first one may be a number, of OSError
                for text in _texts(argument, names):
                    if re.search(r"\w", text):
                        yield error, re.sub(r"…( ?…)+", "…", " ".join(text.split()))
    for child in ast.iter_child_nodes(node):
        yield from _raised(child, names)


def _texts(node: ast.expr, names: _Values, depth: int = 2) -> list[str]:
    """What an expression may say; names and calls are followed to the depth."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(_texts(part, {})[0] for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        pairs = product(_texts(node.left, names, depth), _texts(node.right, names, depth))
        return ["".join(pair) for pair in pairs]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, names, depth), *_texts(node.orelse, names, depth)]
    source = node.func if isinstance(node, ast.Call) else node
    values = names.get(ast.unparse(source).rpartition(".")[2], []) if depth else []
    return [text for value in values for text in _texts(value, names, depth - 1)] or ["…"]


def _raised_in_cpp(text: str) -> Iterator[tuple[str, str]]:
    for match in _CPP_RAISES.finditer(text):
        error = _CPP.get(match[1] or match[2])
        arguments = _arguments(text[match.end() :])
        if error and arguments:
            parts = map(_shown, _CPP_TOKEN.finditer(arguments[-1]))
            message = " ".join("".join(parts).split())
            if re.search(r"\w", message):
                yield error, message


def _shown(token: re.Match[str]) -> str:
    """A literal, … for a value, and nothing for what joins or casts them."""
    if token[1] is not None:
        return token[1].replace('\\"', '"')
    return "…" if re.sub(r"std::string(_view)?|[\s+()]", "", token[0]) else ""


def _arguments(text: str) -> list[str]:
    """The arguments of a call, from behind its opening bracket."""
    depth, begin, result = 0, 0, []
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|[(){}\[\],]', text):
        if token[0] == "," and depth == 0:
            result.append(text[begin : token.start()])
            begin = token.end()
        elif token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
            if depth < 0:
                return [*result, text[begin : token.start()]]
    return []


class ErrorMessages(Directive):
    """A list for each kind of error."""

    def run(self) -> list[nodes.Node]:
        by_error: dict[str, list[Message]] = {error: [] for error in ORDER}
        for message in messages():
            by_error.setdefault(message.error, []).append(message)
        result: list[nodes.Node] = []
        for error, of_error in by_error.items():
            section = nodes.section(ids=[f"messages-{error.lower()}"], names=[error.lower()])
            section += nodes.title(error, error)
            section += _listed(of_error)
            result.append(section)
        return result


def _listed(of_error: list[Message]) -> nodes.bullet_list:
    items = nodes.bullet_list()
    for message in of_error:
        paragraph = nodes.paragraph("", message.text + " ")
        paragraph += nodes.inline("", f"({message.module})", classes=["module"])
        items += nodes.list_item("", paragraph)
    return items


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("error-messages", ErrorMessages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
