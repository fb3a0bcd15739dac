"""Makes a store's folder from files, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from peergraph.memory.region.free_memory import free_host_memory
from peergraph.number_arguments import check_number
from peergraph.store.disk.atomic_folder import new_folder
from peergraph.store.disk.manifest import FILE_NAME, Manifest, NodeEntry
from peergraph.store.disk.save_store import write_text
from peergraph.store.ingest.database import Database
from peergraph.store.ingest.formats.description import described_files
from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles, TableFiles
from peergraph.store.ingest.ingest_edges import EdgeIngest
from peergraph.store.ingest.ingest_nodes import NodeIngest
from peergraph.store.ingest.ingest_report import IngestReport
from peergraph.store.ingest.node_ids import NodeIds
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.frame_spec import is_list_type
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType
from peergraph.store.input.storage import (
    CheckedStorage,
    StorageOption,
    check_tables,
    checked_storage,
)

_LEAST_MEMORY = 64 << 20
_MOST_DEFAULT_MEMORY = 16 << 30

BadRowPolicy = Literal["error", "skip"]


def ingest(
    folder: str | PathLike[str],
    source: str | PathLike[str] | GraphFiles | None = None,
    *,
    nodes: Mapping[NodeType, NodeFiles] | NodeFiles | None = None,
    edges: Mapping[EdgeType, EdgeFiles] | EdgeFiles | None = None,
    tables: Mapping[NodeType, TableFiles] | None = None,
    format: str = "auto",
    bad_rows: BadRowPolicy = "error",
    memory: int | None = None,
    progress: bool | None = None,
    storage: StorageOption | None = None,
) -> IngestReport:
    """Makes a store's folder, as :meth:`Store.save` writes it, from files of other formats, in
    bounded memory. Runs in one process and is not collective; :meth:`Store.load` reads the result
    on any number of ranks. See docs/guides/ingest.md.

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
        tables: the tables of a database by name, instead of `source`: keys become edges, and other
            columns the frame ``"tf"`` of each table, with statistics.
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
    graph, narrow = _graph_files(source, nodes, edges, tables, format), checked_storage(storage)
    if not graph.tables:
        _check_storage(graph, narrow)
    path = Path(fspath(folder))
    with new_folder(path) as part:
        workspace = Workspace(part, memory, progress, bad_rows == "skip", storage=narrow)
        try:
            ingest_all = _ingest_tables if graph.tables else _ingest_graph
            manifest = ingest_all(graph, workspace)
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
        {t: n for t, n in manifest.num_nodes.items() if not is_list_type(t)},
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
    tables: Mapping[NodeType, TableFiles] | None,
    format: str,
) -> GraphFiles:
    if source is not None:
        if nodes is not None or edges is not None or tables is not None:
            raise ValueError("give source, or nodes, edges and tables, not both")
        return source if isinstance(source, GraphFiles) else described_files(source, format)
    if isinstance(nodes, NodeFiles):
        nodes = {NODE: nodes}
    if isinstance(edges, EdgeFiles):
        edges = {EDGE: edges}
    return GraphFiles(nodes or {}, edges or {}, tables or {})


def _check_storage(graph: GraphFiles, storage: CheckedStorage) -> None:
    """Raises ValueError if the option names a table that does not exist."""
    names: dict[NodeType | EdgeType, Iterable[str]] = {t: n.tables for t, n in graph.nodes.items()}
    names.update({t: e.tables for t, e in graph.edges.items()})
    check_tables(storage, names)


def _ingest_tables(graph: GraphFiles, workspace: Workspace) -> Manifest:
    """Ingests the tables of a database, and other types of the graph."""
    with ExitStack() as files:
        database = Database(graph.tables, workspace, files)
        of_tables = database.graph_files()
        for kind in (*graph.nodes, *graph.edges):
            if kind in of_tables.nodes or kind in of_tables.edges:
                raise ValueError(f"{kind!r} is a type of the tables, too")
        whole = GraphFiles({**of_tables.nodes, **graph.nodes}, {**of_tables.edges, **graph.edges})
        _check_storage(whole, workspace.storage)
        return database.finish(_ingest_graph(whole, workspace))


def _ingest_graph(graph: GraphFiles, workspace: Workspace) -> Manifest:
    """Ingests all types of a graph: first the nodes that have files, then the edges."""
    named = (
        node_type for source, _, destination in graph.edges for node_type in (source, destination)
    )
    # A type that only edges name comes after those that are described.
    types = dict.fromkeys([*graph.nodes, *named])
    ids = {
        node_type: NodeIds(node_type, f"node{number}", graph.nodes.get(node_type, NodeFiles()))
        for number, node_type in enumerate(types)
    }
    with ExitStack() as stack:
        nodes = [stack.enter_context(closing(NodeIngest(ids[t], workspace))) for t in types]
        edges = []
        for number, (kind, files) in enumerate(graph.edges.items()):
            both = ids[kind[0]], ids[kind[2]]
            step = EdgeIngest(kind, f"edge{number}", files, both, workspace)
            edges.append(stack.enter_context(closing(step)))
        tables = [step.read() for step in nodes]
        waiting = [step for step in edges if step.waits]
        for step in waiting:
            step.read()
        for node_ids in ids.values():
            if node_ids.count is None:
                node_ids.number_named(workspace)
        entries = []
        for step in edges:
            if step not in waiting:
                step.read()
            entries.append(step.sort())
    counts = [node_ids.count or 0 for node_ids in ids.values()]
    return Manifest(tuple(map(NodeEntry, types, counts, tables)), tuple(entries), ())
