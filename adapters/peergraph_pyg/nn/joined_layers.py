"""Layers of a HeteroConv that run as one operation over their relations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

EdgeType = tuple[str, str, str]


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
