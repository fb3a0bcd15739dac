"""`peergraph info FOLDER`: shows the contents of a saved store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from peergraph.printing import format_bytes
from peergraph.store.disk.manifest import ArrayEntry, EdgeEntry, Manifest, TableEntry, read_manifest
from peergraph.store.disk.saved_array import SavedArray
from peergraph.store.input.frame_spec import is_list_type
from peergraph.store.placement.items import type_name

_CHUNK_NODES = 1 << 22
_BAR = 40
_FIRST_COLUMN = 22


def run(folder: str, as_json: bool, picture: str | None) -> int:
    """Prints and draws the facts. Returns the exit status: 2 if the folder is not a store."""
    try:
        facts = collect(Path(folder))
        if picture is not None:
            draw(picture, facts)
    except (ImportError, OSError, ValueError) as error:
        print(f"peergraph info: {error}", file=sys.stderr)
        return 2
    print(json.dumps(facts, indent=2) if as_json else "\n".join(render(facts)))
    return 0


def collect(folder: Path) -> dict[str, Any]:
    """Collects types, counts, dtypes, bytes and degrees. Reads the manifest and the CSC offsets.

    Raises:
        FileNotFoundError, ValueError: as in :meth:`Store.load`.
    """
    manifest = read_manifest(folder, verify=True)
    for entry in manifest.arrays():
        SavedArray.check(folder, entry, verify=False)
    return {
        "folder": str(folder),
        "bytes": sum(map(_bytes, manifest.arrays())),
        "nodes": [
            {
                "type": entry.type,
                "count": entry.count,
                "ids": (folder / _ids_file(number)).exists(),
                "tables": _tables(entry.tables),
            }
            for number, entry in enumerate(manifest.nodes)
        ],
        "edges": [_edge_facts(folder, entry, manifest) for entry in manifest.edges],
        "embeddings": [
            {
                "node_type": entry.type,
                "name": entry.name,
                "optimizer": entry.optimizer,
                **_array(entry.weight),
            }
            for entry in manifest.embeddings
        ],
    }


def _edge_facts(folder: Path, entry: EdgeEntry, manifest: Manifest) -> dict[str, Any]:
    arrays = [entry.indptr, entry.indices, *([entry.edge_ids] if entry.edge_ids else [])]
    return {
        "type": list(entry.type),
        "count": entry.count,
        "index_dtype": entry.indices.dtype,
        "edge_ids": None if entry.edge_ids is None else entry.edge_ids.dtype,
        "structure_bytes": sum(map(_bytes, arrays)),
        "degrees": _degrees(folder, entry, manifest.num_nodes[entry.type[2]]),
        "tables": _tables(entry.tables),
    }


def _degrees(folder: Path, entry: EdgeEntry, num_nodes: int) -> dict[str, Any]:
    """Returns the mean and the largest in-degree, and the nodes and edges by ranges of degrees."""
    file = SavedArray.check(folder, entry.indptr, verify=False)
    nodes = torch.zeros(65, dtype=torch.int64, device="cpu")
    edges = torch.zeros(65, dtype=torch.int64, device="cpu")
    largest = 0
    for begin in range(0, num_nodes, _CHUNK_NODES):
        degrees = file.read(begin, min(begin + _CHUNK_NODES, num_nodes) + 1).diff()
        if int(degrees.min()) < 0:
            raise ValueError(f"{file.path} must not fall")
        # The ranges are 0, 1, 2 to 3, 4 to 7, ...
        ranges = torch.where(degrees > 0, degrees.double().log2().floor() + 1, 0).long()
        nodes += torch.bincount(ranges, minlength=65)
        edges.scatter_add_(0, ranges, degrees)
        largest = max(largest, int(degrees.max()))
    used = int(nodes.nonzero().max()) + 1 if num_nodes else 0
    return {
        "mean": entry.count / max(1, num_nodes),
        "max": largest,
        "histogram": [
            {
                "from": 0 if i == 0 else 1 << (i - 1),
                "to": 0 if i == 0 else (1 << i) - 1,
                "nodes": int(nodes[i]),
                "edges": int(edges[i]),
            }
            for i in range(used)
        ],
    }


def _tables(tables: Sequence[TableEntry]) -> list[dict[str, Any]]:
    return [
        {
            "name": table.name,
            **_array(table.array),
            "shape": list(table.shape),
            "dtype": table.dtype,
            "storage": None if table.storage is None else table.storage.name,
        }
        for table in tables
    ]


def _array(entry: ArrayEntry) -> dict[str, Any]:
    return {"shape": list(entry.shape), "dtype": entry.dtype, "bytes": _bytes(entry)}


def _bytes(entry: ArrayEntry) -> int:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return torch.Size(entry.shape).numel() * dtype.itemsize


def _ids_file(number: int) -> str:
    """Returns the name of the file with the ids of a node type, if it has any."""
    return f"node{number}.ids.parquet"


def render(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines to print."""
    yield f"{facts['folder']}: {format_bytes(facts['bytes'])}"
    for number, nodes in enumerate(facts["nodes"]):
        ids = f", their ids are in {_ids_file(number)}" if nodes["ids"] else ""
        what = "Elements of lists" if is_list_type(nodes["type"]) else "Nodes"
        yield f"{what} {nodes['type']}"
        yield from _row("count", f"{nodes['count']:,}{ids}")
        yield from _render_tables(nodes["tables"])
    for edges in facts["edges"]:
        yield f"Edges {type_name(tuple(edges['type']))}"
        ids = f"edge ids {edges['edge_ids']}" if edges["edge_ids"] else "positions are edge ids"
        yield from _row("count", f"{edges['count']:,}")
        structure = format_bytes(edges["structure_bytes"])
        yield from _row("structure", f"{structure}, sources {edges['index_dtype']}, {ids}")
        yield from _render_tables(edges["tables"])
        yield from _render_degrees(edges["degrees"])
    for entry in facts["embeddings"]:
        yield f"Embedding {entry['node_type']}.{entry['name']}"
        yield from _row("weight", _described(entry))
        yield from _row("optimizer", entry["optimizer"] or "none")


def _render_tables(tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for table in tables:
        yield from _row(f"table {table['name']}", _described(table))


def _described(table: Mapping[str, Any]) -> str:
    shape = " x ".join(f"{size:,}" for size in table["shape"])
    stored = f" stored as {table['storage']}" if table.get("storage") else ""
    return f"{shape} {table['dtype']}{stored}, {format_bytes(table['bytes'])}"


def _row(name: str, value: str) -> Iterator[str]:
    yield f"  {name:{_FIRST_COLUMN}} {value}"


def _render_degrees(degrees: Mapping[str, Any]) -> Iterator[str]:
    """Yields a bar for each range of degrees: its nodes, and their share of the edges."""
    yield from _row("in-degree", f"mean {degrees['mean']:.2f}, largest {degrees['max']:,}")
    most = max((part["nodes"] for part in degrees["histogram"]), default=0)
    total = max(1, sum(part["edges"] for part in degrees["histogram"]))
    for part in degrees["histogram"]:
        bar = "#" * -(-_BAR * part["nodes"] // max(1, most))
        share = 100 * part["edges"] / total
        counts = f"{part['nodes']:,} nodes, {share:.0f} % of edges"
        yield f"  {range_name(part):>{_FIRST_COLUMN}} {bar:{_BAR}} {counts}"


def range_name(part: Mapping[str, Any]) -> str:
    """Names a range of degrees: ``0``, ``1``, ``2-3`` and so on."""
    return str(part["from"]) if part["from"] == part["to"] else f"{part['from']}-{part['to']}"


def draw(path: str | PathLike[str], facts: Mapping[str, Any]) -> None:
    """Writes a picture of the degrees. The file name's ending is the format (png, svg, pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: a format that matplotlib does not know.
    """
    from matplotlib.figure import Figure

    count = max(1, len(facts["edges"]))
    figure = Figure(figsize=(9, 3.5 * count), layout="constrained")
    all_axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for axes, edges in zip(all_axes, facts["edges"], strict=False):
        parts = edges["degrees"]["histogram"]
        places = range(len(parts))
        axes.bar([p - 0.2 for p in places], [p["nodes"] for p in parts], 0.4, label="nodes")
        axes.bar([p + 0.2 for p in places], [p["edges"] for p in parts], 0.4, label="their edges")
        axes.set_xticks([*places], [range_name(part) for part in parts], rotation=45)
        axes.set_yscale("symlog")
        axes.set_xlabel("in-degree")
        mean, largest = edges["degrees"]["mean"], edges["degrees"]["max"]
        name = type_name(tuple(edges["type"]))
        axes.set_title(f"{name}: {edges['count']:,} edges, mean {mean:.2f}, largest {largest:,}")
        axes.legend()
    figure.suptitle(f"{facts['folder']}: {format_bytes(facts['bytes'])}")
    figure.savefig(path)
