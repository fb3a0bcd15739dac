"""Recognises the format of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path

from peergraph.store.ingest.formats.description import description_files
from peergraph.store.ingest.formats.lsc import is_lsc, lsc_files
from peergraph.store.ingest.formats.ogb import is_ogb, ogb_files
from peergraph.store.ingest.formats.saved_graphs import dgl_files, processed_file, pyg_files
from peergraph.store.ingest.graph_files import GraphFiles

FORMATS: dict[str, Callable[[Path], GraphFiles]] = {
    "ogb": ogb_files,
    "lsc": lsc_files,
    "dgl": dgl_files,
    "pyg": pyg_files,
    "description": description_files,
}


def described_files(source: str | PathLike[str], format: str = "auto") -> GraphFiles:
    """Returns the files of a dataset.

    Args:
        source: its folder or file.
        format: a name of :data:`FORMATS`, or ``"auto"``.

    Raises:
        FileNotFoundError: there is nothing of that name.
        ValueError: it is of no known format, or not of this one.
    """
    path = Path(fspath(source))
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"format must be auto or one of {', '.join(FORMATS)}, got {format!r}")
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    name = _recognised(path) if format == "auto" else format
    if name is None:
        raise ValueError(
            f"{path} is of no known format ({', '.join(FORMATS)}); describe it by nodes and edges"
        )
    return FORMATS[name](path)


def _recognised(path: Path) -> str | None:
    if path.is_file():
        endings = {".json": "description", ".toml": "description", ".bin": "dgl", ".pt": "pyg"}
        return endings.get(path.suffix)
    if is_ogb(path):
        return "ogb"
    if is_lsc(path):
        return "lsc"
    return "pyg" if processed_file(path) is not None else None
