"""A structure built from pieces of a list of edges has the rank's edges, sorted by destination."""

from __future__ import annotations

import torch

from peergraph.fullgraph.layout import edge_share
from peergraph.fullgraph.layout.edge_share import EdgeListReader, UnreadShare
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks import reversed_edges
from peergraph.fullgraph.offload.chunks.reversed_edges import ReversedEdges
from peergraph.fullgraph.structure.build_structure import build_structure
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.named_case import named_case

NODES, EDGES = 29, 157


def check_structures() -> None:
    group = Group.current()
    edge_share.PIECE_EDGES = reversed_edges.PIECE_EDGES = 13
    generator = torch.Generator().manual_seed(7)
    edges = torch.randint(NODES, (2, EDGES), generator=generator, device="cpu")
    edges[1, : EDGES // 2] = 3
    order = torch.randperm(NODES, generator=generator, device="cpu")
    few = [0, 4, 3][: group.world_size - 1]  # one rank has no nodes
    counts = [*few, NODES - sum(few)]
    layout = RowLayout.from_order(group, order, counts)
    reader = EdgeListReader(edges)
    for ids in (torch.int32, torch.int64):
        reader = EdgeListReader(edges.to(ids))
        whole = reader.read(group.rank, group.world_size, group.device)
        unread = UnreadShare(reader, group.rank, group.world_size, group.device, 5)
        narrow = UnreadShare(reader, group.rank, group.world_size, group.device, 5, keeps=True)
        for name, share in (("kept", whole), ("unread", unread), ("kept in pieces", narrow)):
            with named_case(name, ids):
                check_structure(layout, edges, share)


def check_structure(layout: RowLayout, edges: torch.Tensor, share: edge_share.Share) -> None:
    structure = build_structure(layout, layout, share)
    first = layout.offsets[layout.group.rank]
    internal = layout.internal_rows
    source, destination = internal[edges[0]], internal[edges[1]]
    mine = (destination >= first) & (destination < first + layout.local_count)
    expected = mine.nonzero().squeeze(1)
    expected = expected[destination[expected].sort(stable=True).indices]
    ids = structure.edge_layout.positions.cpu()
    assert torch.equal(ids, expected)
    assert structure.local.indices.dtype == structure.local.indptr.dtype == torch.int32
    sources, rows = (ends.cpu() for ends in structure.local.edge_ends())
    assert torch.equal(rows, destination[ids] - first)
    own = torch.arange(structure.plan.num_local) + first
    extended = torch.cat([own, structure.plan.halo_rows.cpu()])
    assert torch.equal(extended[sources], source[ids])
    back = ReversedEdges(structure)
    ids = back.structure.edge_layout.positions.cpu()
    mine = (source >= first) & (source < first + layout.local_count)
    assert torch.equal(ids.sort().values, mine.nonzero().squeeze(1))
    keys = source[ids] * NODES + destination[ids]
    assert torch.equal(keys, keys.sort().values)
    weights = torch.rand(EDGES, 2, generator=torch.Generator().manual_seed(1))
    edge_weights = weights[structure.edge_layout.positions.cpu()].to(layout.group.device)
    assert torch.equal(back.exchange_rows(edge_weights).cpu(), weights[ids])


@each_place(1, 2, 3)
def test_pieces_give_the_structure_of_all_edges(world_size: int, device_type: str) -> None:
    run_ranks(check_structures, world_size, device=device_type)
