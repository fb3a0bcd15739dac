"""Makes a store's folder from files, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from peergraph.memory.region.free_memory import free_host_memory
from peergraph.number_arguments import check_number
from peergraph.store.disk.atomic_folder import new_folder
from peergraph.store.disk.manifest import FILE_NAME, Manifest, NodeEntry
from peergraph.store.disk.save_store import write_text
from peergraph.store.ingest.formats.known_formats import described_files
from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers
from peergraph.store.ingest.ingest_edges import EdgeIngest
from peergraph.store.ingest.ingest_nodes import NodeIngest
from peergraph.store.ingest.ingest_report import IngestReport
from peergraph.store.ingest.node_ids import NodeIds
from peergraph.store.ingest.open_type import open_type
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType
from peergraph.store.input.storage import StorageOption, check_tables, checked_storage
from peergraph.store.placement.items import type_name

_LEAST_MEMORY = 64 << 20
_MOST_DEFAULT_MEMORY = 16 << 30

BadRowPolicy = Literal["error", "skip"]


def ingest(
    folder: str | PathLike[str],
    source: str | PathLike[str] | GraphFiles | None = None,
    *,
    nodes: Mapping[NodeType, NodeFiles] | NodeFiles | None = None,
    edges: Mapping[EdgeType, EdgeFiles] | EdgeFiles | None = None,
    format: str = "auto",
    bad_rows: BadRowPolicy = "error",
    memory: int | None = None,
    progress: bool | None = None,
    storage: StorageOption | None = None,
) -> IngestReport:
    """Makes a store's folder, as :meth:`Store.save` writes it, from files of other formats, in
    bounded memory. Runs in one process and is not collective; :meth:`Store.load` reads the result
    on any number of ranks. See docs/ingest.md.

    The folder is equal, byte by byte, to the saved folder of a store that is built from the same
    edges in memory. It appears when it is complete. Until then the files are in a folder
    ``<name>.part-...`` next to it, which is removed after an error, or after a kill by the next
    ingest of the same name.

    Args:
        folder: the folder to make; it must not exist.
        source: a folder or file of a known format, or a description (``.json``, ``.toml``), or
            :class:`GraphFiles`.
        nodes, edges: the files by type, instead of `source`; without a mapping, the files of a
            graph with one node type and one edge type. The number of nodes of a type that only
            edges name is the largest id plus one, or the number of different strings.
        format: the format of `source`: ``"auto"``, ``"ogb"``, ``"lsc"``, ``"dgl"``, ``"pyg"`` or
            ``"description"``.
        bad_rows: ``"error"``: raise an error after all rows of a type have been read; ``"skip"``:
            leave out bad rows of edges, and rows of nodes with a missing or repeated id if ids are
            looked up.
        memory: bytes to use for edges, ids and buffers; default: half of the free memory, at most
            16 GB. Tables of nodes in the order of the files take no memory.
        progress: whether to show progress bars; default: for more than 1 GB, on a terminal.
        storage: how tables are stored, as in :class:`PlacementOptions`: the folder then has rows of
            fewer bytes, which :meth:`Store.load` takes as they are.

    Returns:
        Counts, bad rows, time and bytes.

    Raises:
        FileExistsError: the folder exists.
        FileNotFoundError: a file does not exist, or a pattern matches no file.
        BadRowsError: rows cannot be used; the error names their files and numbers. It is a
            ``ValueError``.
        ValueError: the files do not fit together or have another format, or the storage of a table
            cannot hold a value.
        ImportError: a package for a format is missing; the error tells how to install it.
        OSError: the disk is full, or a file cannot be read.
    """
    started = time.perf_counter()
    if bad_rows not in ("error", "skip"):
        raise ValueError(f"bad_rows must be 'error' or 'skip', got {bad_rows!r}")
    if memory is None:
        memory = max(_LEAST_MEMORY, min(_MOST_DEFAULT_MEMORY, free_host_memory() // 2))
    check_number("memory", memory, 1)
    graph, narrow = _graph_files(source, nodes, edges, format), checked_storage(storage)
    names: dict[NodeType | EdgeType, Iterable[str]] = {t: n.tables for t, n in graph.nodes.items()}
    names.update({t: e.tables for t, e in graph.edges.items()})
    check_tables(narrow, names)
    path = Path(fspath(folder))
    with new_folder(path) as part:
        workspace = Workspace(part, memory, progress, bad_rows == "skip", storage=narrow)
        try:
            manifest = _GraphIngest(graph, workspace).run()
        except OSError as error:
            if error.filename is None and error.errno is not None:  # of a write
                raise OSError(error.errno, error.strerror, str(part)) from error
            raise
        finally:
            workspace.close()
        write_text(part / FILE_NAME, manifest.to_json())
        written = sum(file.stat().st_size for file in part.iterdir())
    return IngestReport(
        path,
        manifest.num_nodes,
        {entry.type: entry.count for entry in manifest.edges},
        workspace.bad_rows,
        time.perf_counter() - started,
        workspace.bytes_read,
        written,
        tuple(workspace.notes),
        workspace.storage_reports,
    )


def _graph_files(
    source: str | PathLike[str] | GraphFiles | None,
    nodes: Mapping[NodeType, NodeFiles] | NodeFiles | None,
    edges: Mapping[EdgeType, EdgeFiles] | EdgeFiles | None,
    format: str,
) -> GraphFiles:
    if source is not None:
        if nodes is not None or edges is not None:
            raise ValueError("give source, or nodes and edges, not both")
        return source if isinstance(source, GraphFiles) else described_files(source, format)
    if isinstance(nodes, NodeFiles):
        nodes = {NODE: nodes}
    if isinstance(edges, EdgeFiles):
        edges = {EDGE: edges}
    return GraphFiles(nodes or {}, edges or {})


class _GraphIngest:
    """All types of a graph: first the nodes that have files, then the edges."""

    def __init__(self, graph: GraphFiles, workspace: Workspace) -> None:
        self._graph, self._workspace = graph, workspace
        named = dict.fromkeys(t for s, _, d in graph.edges for t in (s, d))
        # A type that only edges name comes after those that are described.
        self._node_types = list(dict.fromkeys([*graph.nodes, *named]))
        self._nodes: dict[NodeType, NodeIds] = {}
        self._edges: list[EdgeIngest] = []

    def run(self) -> Manifest:
        graph, work = self._graph, self._workspace
        rows = {
            t: open_type(edges, [edges.source, edges.destination], work)
            for t, edges in graph.edges.items()
        }
        ends = {t: _ends(t, graph.edges[t], rows[t]) for t in rows}
        tables = {}
        for number, node_type in enumerate(self._node_types):
            described = graph.nodes.get(node_type, NodeFiles())
            step = NodeIngest(node_type, number, described, work)
            self._nodes[node_type], tables[node_type] = step.run()
        try:
            for number, (kind, files) in enumerate(graph.edges.items()):
                both = self._nodes[kind[0]], self._nodes[kind[2]]
                edges = EdgeIngest(kind, number, files, rows[kind], ends[kind], both, work)
                self._edges.append(edges)
            waiting = [edges for edges in self._edges if edges.waits]
            for edges in waiting:
                edges.read()
            for number, node_type in enumerate(self._node_types):
                if self._nodes[node_type].is_named_by_edges:
                    self._count(node_type, number)
            entries = []
            for edges in self._edges:
                if edges not in waiting:
                    edges.read()
                entries.append(edges.run())
        except BaseException:
            for edges in self._edges:
                edges.close()
            raise
        nodes = (NodeEntry(t, self._nodes[t].count or 0, tables[t]) for t in self._node_types)
        return Manifest(tuple(nodes), tuple(entries), ())

    def _count(self, node_type: NodeType, number: int) -> None:
        """Numbers the nodes of a type that only edges name."""
        nodes, work = self._nodes[node_type], self._workspace
        if not nodes.is_looked_up:
            nodes.count = nodes.count_nodes(node_type)
            return
        kind = nodes.kind or "number"
        nodes.numbers = IdNumbers.of_distinct(nodes.keys, kind, work)
        nodes.count = nodes.numbers.count
        nodes.numbers.save(node_type, f"node{number}", kind)


def _ends(edge_type: EdgeType, files: EdgeFiles, source: RowSource) -> tuple[str, str]:
    """Returns the columns of sources and destinations."""
    names, what = source.names, f"edges {type_name(edge_type)}"
    if files.source is not None and files.destination is not None:
        for name in (files.source, files.destination):
            # An empty CSV file has no columns.
            if names and name not in names:
                raise ValueError(f"{what}: no column {name!r}; columns: {', '.join(names)}")
        return files.source, files.destination
    if len(names) == 1:
        raise ValueError(f"{what} need two columns, there is {names[0]!r} only")
    return (names[0], names[1]) if names else ("0", "1")
