"""Layers of a HeteroConv that run as one operation over their relations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from peergraph.integration import note

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Call:
    """The arguments of a HeteroConv.

    Args:
        x: features by node type.
        edges: edge indices by edge type.
        edge_weights: likewise, where there are any.
    """

    x: Mapping[str, Any]
    edges: Mapping[EdgeType, Any]
    edge_weights: Mapping[EdgeType, Any]


class JoinedLayers(ABC):
    """Layers of several relations that run as one operation.

    Args:
        layers: the layers by edge type.
    """

    def __init__(self, layers: Mapping[EdgeType, Any]) -> None:
        self.layers = layers

    @abstractmethod
    def sums(self, scales: Mapping[str, float]) -> dict[str, Tensor]:
        """Returns the sum of the layers' results for each destination type.

        Args:
            scales: factors of the sums by destination type.
        """

    def apart(self) -> dict[EdgeType, Tensor]:
        """Returns the result of each layer."""
        raise NotImplementedError(f"{type(self).__name__} adds the results of its layers")


def note_single_layers(kinds: Iterable[Mapping[EdgeType, Any]]) -> None:
    """Notes for ``explain`` the layers that no other layer is like.

    Args:
        kinds: the layers of each kind by edge type.
    """
    for layers in kinds:
        if len(layers) == 1:
            [edge_type] = layers
            note(
                f"forward: {' '.join(edge_type)} alone, no other relation has a layer of its "
                "reduction, width and dtype"
            )
