"""The graph of `peergraph plan`: a saved store, or a graph described by its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import torch

from peergraph.memory import Group
from peergraph.memory.region.free_memory import check_count
from peergraph.number_arguments import check_number, check_real
from peergraph.store import EDGE, NODE
from peergraph.store.disk.saved_store import SavedStore
from peergraph.store.hotness.id_map import hottest_first
from peergraph.store.input.graph_edges import in_degrees, out_degrees, relations_with_edge_ids
from peergraph.store.input.local_csc import local_structure
from peergraph.store.input.schema import Schema, TableSpec, agree_on_schema
from peergraph.store.input.storage import StorageOption, checked_storage, with_storage
from peergraph.store.placement.items import graph_items
from peergraph.store.placement.plan import Item
from peergraph.store.placement.reads import BatchReads

_ALONE = Group(0, 1, torch.device("cpu"), 300.0)

_MOST_SKEW = 100.0
_MOST_ROW_BYTES = 2**31 - 1


def saved_graph(
    folder: str | PathLike[str], storage: StorageOption
) -> tuple[list[Item], BatchReads]:
    """Returns the items and reads of a store that :meth:`Store.save` wrote, with its nodes in
    descending order of out-degree.

    Args:
        folder: the folder of the store.
        storage: the storage of tables; other tables keep the storage that was saved.

    Raises:
        FileNotFoundError, ValueError: as in :meth:`Store.load`.
    """
    source = SavedStore.open(folder, True, _ALONE).source(_ALONE, None)
    schema = with_storage(agree_on_schema(source, _ALONE), checked_storage(storage))
    local = local_structure(source, schema, _ALONE)
    heat = out_degrees(local, schema, _ALONE)
    orders = {t: hottest_first(h, _ALONE.device) for t, h in heat.items()}
    degrees = {t: d[orders[t[2]]] for t, d in in_degrees(local, schema, _ALONE).items()}
    items = graph_items(schema, degrees, relations_with_edge_ids(local, _ALONE))
    hottest = {t: h[orders[t]] for t, h in heat.items()}
    return items, BatchReads.by_nodes(hottest, schema.num_edges)


def described_graph(
    num_nodes: int,
    num_edges: int,
    row_bytes: Sequence[int],
    skew: float,
    storage: StorageOption,
) -> tuple[list[Item], BatchReads]:
    """Returns the items and reads of a graph of these sizes, with neighbour lists of one length.

    Args:
        num_nodes: the number of nodes.
        num_edges: the number of edges.
        row_bytes: the bytes of a row of each node table, in float32. The tables' names are x, x1,
            x2 and so on.
        skew: the reads of the i-th hottest node are proportional to ``i ** -skew``; 0: all nodes
            are read equally often.
        storage: the storage of the tables.

    Raises:
        ValueError: a size is not positive, or the skew is negative; `storage` names a table that
            does not exist or is not of float32.
    """
    check_sizes({"nodes": num_nodes, "edges": num_edges, "row-bytes": min(row_bytes), "skew": skew})
    check_number("--row-bytes", max(row_bytes), 1, _MOST_ROW_BYTES)
    specs = {
        f"x{i or ''}": TableSpec((num_nodes, n), torch.uint8)
        if n % 4
        else TableSpec((num_nodes, n // 4), torch.float32)
        for i, n in enumerate(row_bytes)
    }
    plain = Schema({NODE: num_nodes}, {EDGE: num_edges}, {NODE: specs}, {}, (), ())
    schema = with_storage(plain, checked_storage(storage))
    whole, longer = divmod(num_edges, num_nodes)
    degrees = torch.full((num_nodes,), whole)
    degrees[:longer] += 1
    heat = torch.arange(1, num_nodes + 1, dtype=torch.float64) ** -skew
    return graph_items(schema, {EDGE: degrees}, {EDGE: False}), BatchReads.by_nodes(
        {NODE: heat}, {EDGE: num_edges}
    )


def check_sizes(sizes: Mapping[str, float]) -> None:
    """Raises an error if the size of an option is out of range, or too large for this machine."""
    for name, size in sizes.items():
        if name == "skew":
            check_real("--skew", size, 0, _MOST_SKEW)
        else:
            check_number(f"--{name}", size, 1)
    check_count("--nodes", sizes["nodes"])
