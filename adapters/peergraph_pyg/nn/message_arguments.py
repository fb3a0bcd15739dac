"""Arguments of messages, collected as in the code that PyG compiles for a layer's class.

PyG's general `propagate`, which runs where Peergraph does not, collects some of them differently.
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
    """Returns the arguments of the messages of `layer`; `general` collects them in PyG's way."""
    if layer.flow == "source_to_target":
        with _keep_version(edge_index):
            return general(args, edge_index, size, kwargs)
    # With flow "target_to_source", compiled code takes the first of a pair for the nodes that send
    # messages; the general code takes the second.
    pairs = {arg for arg in args if arg[-2:] in ("_i", "_j") and _is_pair(kwargs.get(arg[:-2]))}
    collected = {
        arg: compat.lift_pair(layer, edge_index, size, kwargs[arg[:-2]], arg.endswith("_j"))
        for arg in sorted(pairs)
    }
    others = [arg for arg in args if arg not in pairs]
    return {**general(others, edge_index, size, kwargs), **collected}


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _keep_version(edge_index: Any) -> Any:
    """Hides from autograd that PyG marks a COO matrix as coalesced in place.

    Autograd would take the mark for a change of the indices that were read before.
    """
    if isinstance(edge_index, Tensor) and edge_index.layout == torch.sparse_coo:
        return compat.keep_version(edge_index)
    return nullcontext()
