"""The directive ``public-names``: the docstrings of all that a package's ``__all__`` lists."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# Names that several packages export are described on the page of the first.
PACKAGES = (
    "peergraph.memory",
    "peergraph.store",
    "peergraph.sampling",
    "peergraph.aggregate",
    "peergraph.aggregate.layers",
    "peergraph.fullgraph",
    "peergraph.optim",
    "peergraph.integration",
    "peergraph",
    "peergraph_pyg",
    "peergraph_dgl",
    "peergraph_pyg.nn",
    "peergraph_dgl.nn",
)


class PublicNames(SphinxDirective):
    """Classes with their public methods, functions, and where other names are described."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        lines: list[str] = []
        for name in sorted(import_module(package).__all__, key=str.lower):
            if not name.startswith("__"):
                lines += [*_describe(package, name), ""]
        return self.parse_text_to_nodes(StringList(lines, source=package))


def first_package(package: str, name: str) -> str:
    """The package on whose page a public name is described."""
    value = getattr(import_module(package), name)
    if isinstance(value, (type, ModuleType)) or inspect.isroutine(value):
        for other in PACKAGES[: PACKAGES.index(package)]:
            module = import_module(other)
            if name in module.__all__ and getattr(module, name) is value:
                return other
    return package


def _describe(package: str, name: str) -> list[str]:
    value = getattr(import_module(package), name)
    full = f"{package}.{name}"
    first = first_package(package, name)
    if first != package:
        role = "class" if isinstance(value, type) else "func"
        return [f"``{name}`` is :py:{role}:`{first}.{name}`."]
    if isinstance(value, ModuleType):
        return [f"``{full}``: {(value.__doc__ or '').strip().splitlines()[0]}"]
    if isinstance(value, type):
        bases = [] if value.__bases__ == (object,) else ["   :show-inheritance:"]
        return [f".. autoclass:: {full}", "   :members:", *bases]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}"]
    return [f".. data:: {full}", f"   :type: {type(value).__name__}"]


_LITERAL = re.compile(r"(``.+?``)")


def _escape(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Shapes such as ``[rows, *row]`` are not the beginning of emphasis, and a first line with a
    colon does not begin with a type, which napoleon would look for in that of an attribute.
    """
    for i, line in enumerate(lines):
        parts = _LITERAL.split(line)
        parts[::2] = [re.sub(r"(?<!\\)(\*)", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # a comment, which napoleon takes for the first line


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public-names", PublicNames)
    # Before napoleon, whose own emphasis stays.
    app.connect("autodoc-process-docstring", _escape, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
