"""Replaces functions of PyG in every module that has imported them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from peergraph.integration import Patches

# Packages that import nothing of PyG and have most of the modules.
_OTHERS = {
    *sys.stdlib_module_names,
    *("torch", "numpy", "scipy", "sympy", "mpmath", "networkx", "pandas", "pyarrow"),
    *("dgl", "torchdata", "pydantic", "requests", "peergraph", "peergraph_dgl"),
}


def replace_everywhere(
    patches: Patches, replacements: Mapping[Callable[..., Any], Callable[..., Any]]
) -> None:
    """Replaces functions by their name in each module.

    Args:
        patches: remembers the originals.
        replacements: by function; called with the original and then the call's arguments.
    """
    by_id = {id(original): original for original in replacements}
    for full_name, module in list(sys.modules.items()):
        if full_name.partition(".")[0] in _OTHERS:
            continue
        names = getattr(module, "__dict__", {})
        if by_id.keys().isdisjoint(map(id, list(names.values()))):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id and by_id[id(value)] is value:
                patches.replace(module, name, replacements[value])
