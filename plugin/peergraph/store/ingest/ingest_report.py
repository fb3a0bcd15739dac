"""The report of an ingest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peergraph.memory import StorageReport
from peergraph.store.ingest.bad_rows import BadRows
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.plan import format_bytes


@dataclass(frozen=True)
class IngestReport:
    """The result of :meth:`Store.ingest`; ``print`` shows it.

    Args:
        folder: the folder of the store.
        num_nodes, num_edges: the number of nodes or edges of each type.
        bad_rows: the rows that were left out.
        seconds: the duration of the ingest.
        bytes_read: the bytes read from the files; compressed files as they are.
        bytes_written: the bytes of the store's files.
        notes: the columns and dtypes of tables and ids, and files that were left out.
        storage_reports: for each table with narrow storage, by name: the changes of its values.
    """

    folder: Path
    num_nodes: dict[NodeType, int]
    num_edges: dict[EdgeType, int]
    bad_rows: BadRows
    seconds: float
    bytes_read: int
    bytes_written: int
    notes: tuple[str, ...] = ()
    storage_reports: dict[str, StorageReport] = field(default_factory=dict)

    def __str__(self) -> str:
        nodes, edges = sum(self.num_nodes.values()), sum(self.num_edges.values())
        read, written = format_bytes(self.bytes_read), format_bytes(self.bytes_written)
        lines = [
            f"{self.folder}: {nodes:,} nodes, {edges:,} edges in {self.seconds:.1f} s "
            f"({read} read, {written} written)"
        ]
        lines += self.notes
        if self.bad_rows.total:
            lines += [f"{self.bad_rows.total:,} bad rows were left out", str(self.bad_rows)]
        lines += [str(report) for report in self.storage_reports.values()]
        return "\n".join(lines)
