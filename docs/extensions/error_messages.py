"""The directive ``error-messages``: the texts of all errors that Peergraph's Python code raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
# The errors that say most about a machine or a run come first.
ORDER = (
    *("PeerLostError", "CollectiveMismatchError", "ImportError", "RuntimeError"),
    *("NotImplementedError", "ValueError", "TypeError", "IndexError", "KeyError"),
)


@dataclass(frozen=True, order=True)
class Message:
    """An error's text, with … in the places of values."""

    error: str
    text: str
    module: str


def messages() -> list[Message]:
    """Those of all `raise` statements with a text of their own, sorted."""
    found = set()
    for folder in ("plugin", "adapters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            for error, text in _raised(ast.parse(path.read_text())):
                found.add(Message(error, text, module.removesuffix(".__init__")))
    return sorted(m for m in found if m.error in ORDER)


def _raised(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        # Some functions return the error that their callers raise.
        call = node.exc if isinstance(node, ast.Raise) else None
        call = node.value if isinstance(node, ast.Return) else call
        if isinstance(call, ast.Call) and call.args:
            error = call.func
            text = _text(call.args[0])
            if isinstance(error, ast.Name) and text.strip("… "):
                yield error.id, " ".join(text.split())


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


class ErrorMessages(Directive):
    """A list for each kind of error."""

    def run(self) -> list[nodes.Node]:
        found = messages()
        result: list[nodes.Node] = []
        for error in ORDER:
            of_error = [m for m in found if m.error == error]
            if of_error:
                section = nodes.section(ids=[f"messages-{error.lower()}"], names=[error.lower()])
                section += nodes.title(error, error)
                section += _listed(of_error)
                result.append(section)
        return result


def _listed(found: list[Message]) -> nodes.bullet_list:
    items = nodes.bullet_list()
    for message in found:
        paragraph = nodes.paragraph("", message.text + " ")
        paragraph += nodes.inline("", f"({message.module})", classes=["module"])
        items += nodes.list_item("", paragraph)
    return items


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("error-messages", ErrorMessages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
