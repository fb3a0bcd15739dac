"""What PyG's general `propagate` looks up at the ends of edges, where it differs from the code that
PyG compiles for a layer's class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing

from .. import compat

Collect = Callable[[Iterable[str], Any, list[int | None], dict[str, Any]], dict[str, Any]]


def collect(
    layer: MessagePassing,
    general: Collect,
    args: Iterable[str],
    edge_index: Any,
    size: list[int | None],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """What the messages of `layer` are made of; `general` is PyG's way."""
    if layer.flow == "source_to_target":
        with _marks_unseen(edge_index):
            return general(args, edge_index, size, kwargs)
    # Compiled code takes the first of a pair for the ends that messages come from, whichever these
    # are; the general code takes the second one then.
    pairs = {arg for arg in args if arg[-2:] in ("_i", "_j") and _is_pair(kwargs.get(arg[:-2]))}
    found = {
        arg: compat.lift_pair(layer, edge_index, size, kwargs[arg[:-2]], arg.endswith("_j"))
        for arg in sorted(pairs)
    }
    others = [arg for arg in args if arg not in pairs]
    return {**general(others, edge_index, size, kwargs), **found}


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _marks_unseen(edge_index: Any) -> Any:
    """PyG marks a COO matrix as coalesced, in place: autograd would take that for a change of the
    indices that were read before.
    """
    if isinstance(edge_index, Tensor) and edge_index.layout == torch.sparse_coo:
        return compat.keep_version(edge_index)
    return nullcontext()
