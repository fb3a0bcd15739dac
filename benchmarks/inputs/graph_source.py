"""The graph of a benchmark as the source of a store."""

from __future__ import annotations

import torch

from inputs.arrays import fill_features, label_rows
from inputs.graphs import GraphSpec, make_csc
from peergraph.store import EdgeSource, GraphSource, RowSource


def make_source(
    spec: GraphSpec,
    node_range: tuple[int, int],
    device: torch.device,
    feature_dim: int = 0,
    labels: bool = False,
) -> GraphSource:
    """The destinations in a range of nodes, with the rows of these nodes, made on the device.

    Args:
        node_range: the share of this rank.
        feature_dim: columns of the table "x" of float32; 0 leaves it out.
        labels: whether there is a table "y" of labels.
    """
    begin, end = node_range
    tables = {}
    if feature_dim:
        tables["x"] = RowSource(
            (end - begin, feature_dim),
            torch.float32,
            lambda first, last: fill_features(
                first, torch.empty(last - first, feature_dim, device=device)
            ),
        )
    if labels:
        tables["y"] = RowSource(
            (end - begin,),
            torch.int64,
            lambda first, last: label_rows(
                torch.arange(first, last, device=device), spec.num_classes
            ),
        )
    edges = EdgeSource(csc=make_csc(spec, device, node_range))
    return GraphSource.homogeneous(spec.num_nodes, edges, tables, node_range=node_range)
