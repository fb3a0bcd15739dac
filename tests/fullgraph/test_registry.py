"""What methods of tensors call by name is registered when the package is imported."""

from __future__ import annotations

import re
from pathlib import Path

import peergraph.fullgraph
from peergraph.fullgraph.tensor.arguments import PlainRowsError, SplitRowsError
from peergraph.fullgraph.tensor.registry import METHODS


def test_all_methods_are_registered() -> None:
    [folder] = peergraph.fullgraph.__path__
    called = {PlainRowsError.again, SplitRowsError.again}
    for path in Path(folder).rglob("*.py"):
        called |= set(re.findall(r'METHODS\["([^"]+)"\]', path.read_text()))
    assert called == METHODS.keys()
