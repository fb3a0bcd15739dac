"""A labelled graph in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class NodeGraph:
    """A graph for node classification: CSC of in-neighbours, features, labels, split.

    `indptr` int64 [N + 1], `indices` int32 [E]: the sources of the edges into a node; `x` [N, F]
    of a float dtype; `y` int64 [N], -1 where there is no label; masks bool [N].
    `directed` is false if every edge is stored both ways.
    """

    name: str
    indptr: Array
    indices: Array
    x: Array
    y: Array
    train_mask: Array
    val_mask: Array
    test_mask: Array
    class_names: list[str]
    directed: bool

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __str__(self) -> str:
        split = "/".join(str(int(m.sum())) for m in self._masks())
        kind = "directed, used both ways" if self.directed else "undirected"
        return (
            f"{self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges ({kind}), "
            f"{self.x.shape[1]} {self.x.dtype} features, {self.num_classes} classes, "
            f"{split} for training/validation/test"
        )

    def _masks(self) -> tuple[Array, Array, Array]:
        return self.train_mask, self.val_mask, self.test_mask

    def check(self) -> None:
        """Raises ValueError naming the first part that does not fit the others."""
        n = self.num_nodes
        if n < 1 or self.indptr[0] != 0 or (np.diff(self.indptr) < 0).any():
            raise ValueError("indptr must rise from 0 and have one entry more than there are nodes")
        if self.indptr[-1] != self.num_edges:
            raise ValueError(
                f"indptr ends at {self.indptr[-1]}, but indices has {self.num_edges} entries"
            )
        if self.num_edges and (self.indices.min() < 0 or self.indices.max() >= n):
            raise ValueError(f"indices must be node ids below {n}")
        if self.x.ndim != 2 or len(self.x) != n:
            raise ValueError(f"x must have {n} rows, one a node, got shape {self.x.shape}")
        if self.y.shape != (n,) or self.y.min() < -1 or self.y.max() >= self.num_classes:
            raise ValueError(f"y must be [{n}] labels from -1 to {self.num_classes - 1}")
        for mask in self._masks():
            if mask.shape != (n,) or mask.dtype != bool or not mask.any():
                raise ValueError(f"masks must be bool [{n}], each with a node in it")
            if (self.y[mask] < 0).any():
                raise ValueError("a mask contains nodes without a label")


def random_split(y: Array, seed: int) -> tuple[Array, Array, Array]:
    """Bool masks over the labelled nodes: 60 % training, 20 % validation, 20 % test."""
    nodes = np.random.default_rng(seed).permutation(np.flatnonzero(y >= 0))
    bounds = [int(0.6 * len(nodes)), int(0.8 * len(nodes))]
    masks = np.zeros((3, len(y)), bool)
    for mask, part in zip(masks, np.split(nodes, bounds), strict=True):
        mask[part] = True
    return masks[0], masks[1], masks[2]
