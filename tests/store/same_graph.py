"""Whether a store holds the graph that it was built from."""

from __future__ import annotations

import torch

from peergraph.store import GraphSource, Store


def assert_same_graph(store: Store, source: GraphSource) -> None:
    """Structure by edge id, degrees and every table equal the source's."""
    for edge_type, edges in source.edges.items():
        assert edges.coo is not None
        assert torch.equal(store.edge_index(edge_type), edges.coo.long())
        degrees = torch.bincount(edges.coo[1], minlength=source.num_nodes[edge_type[2]])
        assert torch.equal(store.in_degree(edge_type), degrees)
    for node_type, tables in source.node_tables.items():
        assert store.node_table_names(node_type) == list(tables)
        for name, values in tables.items():
            assert_same_table(store.node_table(name, node_type), values)
    for edge_type, tables in source.edge_tables.items():
        for name, values in tables.items():
            assert_same_table(store.edge_table(name, edge_type), values)


def assert_same_table(table, values) -> None:  # type: ignore[no-untyped-def]
    assert table.dtype == values.dtype
    assert tuple(table.shape) == tuple(values.shape)
    assert torch.equal(table.read(), values)
    ids = torch.randint(len(values), (17,))
    assert torch.equal(table.gather(ids).cpu(), values[ids])
