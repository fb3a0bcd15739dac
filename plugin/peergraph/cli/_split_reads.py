"""The rows that each of several machines stores and reads if they split the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.store.build.machine_split import NARROW_ROW_BYTES
from peergraph.store.hotness.id_map import id_dtype
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.cost_model import HitRateCurve
from peergraph.store.placement.plan import Item
from peergraph.store.placement.reads import BatchReads


@dataclass(frozen=True)
class RemoteReads:
    """Rows of one type that a machine needs from other machines for a step.

    Where the rows of several steps are exchanged together, each is counted once, and divided by
    the number of steps.

    Args:
        rows: number of distinct rows in the mini-batches of all its GPUs.
        rows_of_gpu: number of distinct rows in the mini-batches of one GPU.
        row_bytes: bytes of a row in all split tables of the type together.
        id_bytes: bytes of a row's id.
    """

    rows: float
    rows_of_gpu: float
    row_bytes: int
    id_bytes: int


@dataclass(frozen=True)
class SplitReads:
    """Items and reads of one of several machines that split the rows of tables.

    Args:
        items: the items, with the rows that this machine has.
        reads: the reads of these rows by a mini-batch.
        remote: for each type with split tables, the rows that it needs from other machines.
    """

    items: list[Item]
    reads: BatchReads
    remote: tuple[RemoteReads, ...]

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        reads: BatchReads,
        machines: int,
        gpus: int,
        hot_ratio: float,
        batches_per_exchange: int,
    ) -> SplitReads:
        """Splits the tables with rows of more than 16 bytes over the machines.

        Each machine has the hottest rows of a node table and an equal share of the other rows; edge
        tables have no hot rows.

        Args:
            items: the items of the whole graph.
            reads: the reads of a mini-batch in the whole graph.
            machines: the number of machines.
            gpus: the number of GPUs of each machine.
            hot_ratio: the share (0..1) of the rows of a node table that every machine has.
            batches_per_exchange: the number of mini-batches of each GPU whose rows are exchanged
                together.
        """
        kept, elsewhere = list[Item](), (machines - 1) / machines
        nodes, edges = dict(reads.nodes), dict(reads.edges)
        remote: dict[NodeType | EdgeType, RemoteReads] = {}
        for item in items:
            row_bytes = item.bytes_of(1) if item.rows else 0
            if item.kind not in ("node table", "edge table") or row_bytes <= NARROW_ROW_BYTES:
                kept.append(item)
                continue
            of: NodeType | EdgeType
            if isinstance(item.of, str):
                hot, of = round(hot_ratio * item.rows), f"{item.of}, split"
                curve, count = reads.nodes[item.of]
            else:
                hot, of = 0, (*item.of[:2], f"{item.of[2]}, split")
                curve, count = HitRateCurve.uniform(item.rows), reads.edges[item.of]
            if of not in remote:
                all_gpus, one_gpu = (
                    elsewhere
                    * curve.distinct_rows(count, n * batches_per_exchange, hot)
                    / batches_per_exchange
                    for n in (gpus, 1)
                )
                id_bytes = id_dtype(item.rows).itemsize
                remote[of] = RemoteReads(all_gpus, one_gpu, 0, id_bytes)
                one = elsewhere * curve.distinct_rows(count, 1, hot)
                if isinstance(of, str):
                    nodes[of] = _curve_of_machine(curve, hot, machines), count - one
                else:
                    edges[of] = count - one
            remote[of] = replace(remote[of], row_bytes=remote[of].row_bytes + row_bytes)
            rows = MachineSplit(item.rows, hot, machines, index=0).local_rows
            kept.append(replace(item, rows=rows, of=of))
        found = replace(reads, nodes=nodes, edges=edges)
        return cls(kept, found, tuple(remote.values()))


def _curve_of_machine(curve: HitRateCurve, hot: int, machines: int) -> HitRateCurve:
    """Returns the curve of the rows that one machine has: the first `hot` rows, and every
    `machines`-th of the other rows.
    """
    total = int(curve.rows[-1])
    cold = hot + -(-(curve.rows[curve.rows > hot] - hot) // machines)
    rows = np.unique(np.concatenate([curve.rows[curve.rows < hot], [hot], cold, [0]]))
    among_all = np.where(rows <= hot, rows, np.minimum(total, hot + (rows - hot) * machines))
    share = np.interp(among_all, curve.rows, curve.share)
    hot_share = curve.hit_rate(hot)
    share = np.where(rows <= hot, share, hot_share + (share - hot_share) / machines)
    return HitRateCurve(rows, share / share[-1] if share[-1] else share)
