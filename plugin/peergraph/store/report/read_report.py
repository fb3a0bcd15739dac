"""Counted reads by tier and link, compared with the plan's prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peergraph.memory import Group
from peergraph.printing import format_seconds, format_share, table_lines
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.prediction import Prediction, format_links, total_link_bytes

_UNSEEN = "not seen: workers of a DataLoader, users' kernels, replays of CUDA graphs"
_SAMPLED = ("structure", "edge ids")


@dataclass(frozen=True)
class ItemReads:
    """The reads of a structure, its edge ids or a table.

    Args:
        kind, name: the kind and the name of the item, as in the plan.
        reads: for each measured rank, the number of lists or rows read from each source: replicated
            rows, each rank's shards, the host, and the slower tiers.
        read_bytes: the same in bytes. A list's bounds count 32 bytes each, and so does a neighbour.
        seconds: for each measured rank, the seconds of gathers and similar reads; 0 for structures,
            see :attr:`ReadReport.sampling`.
    """

    kind: str
    name: str
    reads: tuple[tuple[int, ...], ...]
    read_bytes: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]

    def hits(self, world_size: int) -> tuple[float, ...]:
        """Returns the shares of reads of replicated rows, sharded rows, the host, and slower
        tiers.
        """
        by_source = [sum(counts) for counts in zip(*self.reads, strict=True)]
        tiers = [by_source[0], sum(by_source[1 : 1 + world_size]), *by_source[1 + world_size :]]
        return tuple(count / max(1, sum(tiers)) for count in tiers)


@dataclass(frozen=True)
class ReadReport:
    """The reads of one rank, or of all; ``print`` compares them with the plan's prediction.

    Args:
        plan: the plan of the store.
        ranks: the ranks that were measured.
        batches: for each measured rank, the number of mini-batches: of samples, or without samples
            of calls of walkers, or without both of gathers of the table with most gathers.
        items: the items that were read, with their reads.
        sampling: for each measured rank, the seconds in samplers, edge ids included.
    """

    plan: Plan
    ranks: tuple[int, ...]
    batches: tuple[int, ...]
    items: tuple[ItemReads, ...]
    sampling: tuple[float, ...]

    def item(self, kind: str, name: str) -> ItemReads:
        """Returns the reads of one item. Raises ``KeyError`` if it was not read."""
        for item in self.items:
            if (item.kind, item.name) == (kind, name):
                return item
        raise KeyError(f"no reads of {kind} {name!r}")

    def link_bytes(self) -> list[list[float]]:
        """Returns the bytes of a mini-batch: a row for each measured rank, a column for each rank
        that they are read from, and a last column for the host. Replicated rows count as reads of
        the rank's own memory.
        """
        world = self.plan.world_size
        rows = []
        for index, (rank, batches) in enumerate(zip(self.ranks, self.batches, strict=True)):
            moved = [0.0] * (world + 1)
            for item in self.items:
                replicated, *others = item.read_bytes[index]
                moved[rank] += replicated / max(1, batches)
                for source, count in enumerate(others[: world + 1]):
                    moved[source] += count / max(1, batches)
            rows.append(moved)
        return rows

    def seconds_per_batch(self) -> float:
        """Returns the seconds of sampling and gathering a mini-batch, on the slowest measured
        rank.
        """
        return self._slowest(*(item.seconds for item in self.items), self.sampling)

    def of_all_ranks(self, group: Group) -> ReadReport:
        """Returns the measurements of all ranks in one report. Collective."""
        reports: list[ReadReport] = group.all_gather(self)
        names = dict.fromkeys((i.kind, i.name) for m in reports for i in m.items)
        sources = max((len(i.reads[0]) for m in reports for i in m.items), default=0)
        items = [_merged(kind, name, reports, sources) for kind, name in names]
        return ReadReport(
            self.plan,
            tuple(rank for m in reports for rank in m.ranks),
            tuple(count for m in reports for count in m.batches),
            tuple(items),
            tuple(seconds for m in reports for seconds in m.sampling),
        )

    def _slowest(self, *seconds: tuple[float, ...]) -> float:
        by_rank = [sum(of_rank) for of_rank in zip(*seconds, strict=True)]
        slowest: float = max(
            spent / max(1, n) for spent, n in zip(by_rank, self.batches, strict=True)
        )
        return slowest

    def __str__(self) -> str:
        who = ", ".join(map(str, self.ranks))
        count = min(self.batches) if len(set(self.batches)) == 1 else f"{min(self.batches)} or more"
        comparison = ", compared with the plan's prediction" if self.plan.predictions else ""
        lines = [f"reads of a mini-batch on rank {who}, measured over {count}{comparison}:"]
        lines += table_lines(list(self._hits()), 3)
        lines += table_lines(list(self._links()), 2)
        lines.append(f"  {_UNSEEN}")
        return "\n".join(lines)

    def _hits(self) -> Iterator[tuple[str, ...]]:
        predicted = {(p.kind, p.name): p for p in self.plan.predictions}
        shown = [(item, item.hits(self.plan.world_size)) for item in self.items]
        behind = any(len(hits) > 3 and hits[3] for _, hits in shown)
        tiers = ("replicated", "sharded", "host", "disk")[: 4 if behind else 3]
        yield ("", "", "", *tiers, "reads", "time")
        for item, hits in shown:
            sampled = item.kind in _SAMPLED
            reads = sum(map(sum, item.reads)) / max(1, sum(self.batches))
            spent = "" if sampled else format_seconds(self._slowest(item.seconds))
            shares = [format_share(share) for share in hits[: len(tiers)]]
            yield (item.kind, item.name, "measured", *shares, f"{reads:.0f}", spent)
            if (item.kind, item.name) in predicted:
                p = predicted[item.kind, item.name]
                shares = [format_share(share) for share in p.hits[: len(tiers)]]
                shares += [""] * (len(tiers) - len(shares))
                yield ("", "", "predicted", *shares, "", "")
        blank = [""] * (len(tiers) + 1)
        if any(self.sampling):
            yield ("sampling", "", "measured", *blank, format_seconds(self._slowest(self.sampling)))
        yield ("total", "", "measured", *blank, format_seconds(self.seconds_per_batch()))

    def _links(self) -> Iterator[tuple[str, ...]]:
        read: list[Prediction] = [
            p for p in self.plan.predictions if self._was_read(p.kind, p.name)
        ]
        expected = total_link_bytes(read)
        measured = self.link_bytes()
        predicted = [expected[rank] for rank in self.ranks] if expected else []
        unit, cells = format_links([*measured, *predicted])
        gpus = range(self.plan.world_size)
        yield (f"{unit} from", "", *(f"GPU {j}" for j in gpus), "host")
        for index, rank in enumerate(self.ranks):
            yield (f"to GPU {rank}", "measured", *cells[index])
            if predicted:
                yield ("", "predicted", *cells[len(measured) + index])

    def _was_read(self, kind: str, name: str) -> bool:
        return any((item.kind, item.name) == (kind, name) for item in self.items)


def _merged(kind: str, name: str, reports: list[ReadReport], sources: int) -> ItemReads:
    nothing = ItemReads(kind, name, ((0,) * sources,), ((0,) * sources,), (0.0,))
    of = [next((i for i in m.items if (i.kind, i.name) == (kind, name)), nothing) for m in reports]
    return ItemReads(
        kind,
        name,
        tuple(counts for item in of for counts in item.reads),
        tuple(counts for item in of for counts in item.read_bytes),
        tuple(seconds for item in of for seconds in item.seconds),
    )
