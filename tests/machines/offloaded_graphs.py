"""Offloaded graphs over machines: bytes on the network, and rows that are written to tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import peergraph_pyg
from peergraph.fullgraph import named_model, write_rows
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.plan.offload_cost import pass_bytes, place_rows
from peergraph.fullgraph.plan.spread import expected_spread
from peergraph.memory import DistributedTable, Group
from peergraph.store import NODE, GraphSource, Store
from tests.named_case import named_case

_NODES, _EDGES, _CHUNKS = 1200, 4000, 3
_WIDTHS = (16, 32, 8)
_ROW_BYTES = 4 * _WIDTHS[0]


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(GCNConv(*pair) for pair in pairwise(_WIDTHS))

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        first, second = self.convs
        out: torch.Tensor = second(first(x, edge_index).relu(), edge_index)
        return out


def _graph() -> Any:
    random = torch.Generator().manual_seed(3)
    data = Data(
        x=torch.randn(_NODES, _WIDTHS[0], generator=random),
        edge_index=torch.randint(_NODES, (2, _EDGES), generator=random),
    )
    return peergraph_pyg.full_graph(
        data, order="random", device="cpu", offload=True, num_chunks=_CHUNKS
    )


def _received(transfers: SourceTransfers) -> Iterator[set[int]]:
    """By batch, the internal rows of other machines that this rank's window gets."""
    plan = transfers.plan
    layout, group = plan.row_layout, plan.row_layout.group
    offsets = torch.tensor([*layout.offsets, layout.size])
    own = [torch.arange(*offsets[rank : rank + 2]) for rank in group.machines.local_ranks]
    here = set(torch.cat(own).tolist())
    for number, batch in enumerate(transfers.batches):
        rows = transfers.rows(number)[batch.own_stop :].long()
        yield set(plan.halo_rows[rows - plan.num_local].tolist()) - here


def check_offloaded_bytes() -> None:
    """A row crosses the network once a batch and machine, as the gradient does that goes back; and
    about as many as the plan expects.
    """
    data = _graph()
    graph = peergraph_pyg.partition_of(data)
    group, transport = graph.group, Transport.of(graph.group)
    assert graph.offloaded is not None
    graph.offloaded.allocator.use["device"].budget = 0
    data.x = graph.node_rows(data.x.full_tensor())

    def sent(work: Any) -> int:
        before = transport.network_bytes
        work()
        return sum(group.all_gather(transport.network_bytes - before))

    torch.manual_seed(0)
    model = peergraph_pyg.accelerate(_Model())

    def epoch() -> None:
        model(data.x, data.edge_index).square().mean().backward()

    with named_case("rows of a batch"):
        out: list[torch.Tensor] = []
        structure = next(iter(graph.structures.values()))
        transfers = structure.chunked.transfers()
        actual = sent(lambda: out.append(structure.spmm("copy_u", "sum", data.x).full_tensor()))
        by_rank = group.all_gather([sorted(rows) for rows in _received(transfers)])
        machines = group.machines.ranks
        once = sum(
            len(set().union(*(by_rank[rank][batch] for rank in ranks)))
            for ranks in machines
            for batch in range(_CHUNKS)
        )
        each = sum(len(rows) for of_rank in by_rank for rows in of_rank)
        # full_tensor gathers all rows on all ranks.
        gathered = sum(
            count * sum(other not in ranks for other in range(group.world_size))
            for ranks in machines
            for count in (graph.node_layouts[NODE].counts[rank] for rank in ranks)
        )
        assert actual - gathered * _ROW_BYTES == once * _ROW_BYTES
        assert once < each
    with named_case("bytes of an epoch"):
        for _ in range(3):  # The third epoch reuses the sum of the features, as later ones do.
            counted = sent(epoch) / len(machines)
        plan = graph.plan
        schedule = named_model(_WIDTHS).schedule
        rows = {r.name: r.stored_bytes(_NODES // group.world_size, None) for r in schedule.rows}
        placement = place_rows(schedule, rows, (0, 1 << 40, 0))
        assert placement is not None
        spread = expected_spread(plan.facts, _CHUNKS)
        facts = plan.facts
        expected = sum(
            pass_bytes(number, schedule, facts, rows, placement, spread).network
            for number in range(len(schedule.passes))
        )
        assert expected == pytest.approx(counted, rel=0.1)
        assert plan.offload is not None
        assert plan.offload.network_bytes > 0
        assert "network: a machine receives" in str(plan)


def check_written_rows() -> None:
    """Tables of each machine, and arrays, get the rows of all machines."""
    data = _graph()
    group = Group.current("cpu")
    values = data.x.full_tensor() + 1
    source = GraphSource({NODE: _NODES}, {}, {NODE: {"out": torch.zeros(values.shape)}})
    mine = source if group.rank == 0 else None
    for machines in ("replicate", "shard"):
        with named_case("rows in tables", machines):
            store = Store.build(mine, group=group, machines=machines)
            table = store.node_table("out")
            assert isinstance(table, DistributedTable) == (machines == "shard")
            write_rows(data.x + 1, table)
            ids = torch.arange(_NODES)
            result = table.collective_read(ids) if machines == "shard" else table.gather(ids)  # type: ignore[attr-defined]
            assert torch.equal(result, values)
            with pytest.raises(TypeError, match=r"float32.*float64|float64.*float32"):
                write_rows(data.x.double(), table)
            store.close()
