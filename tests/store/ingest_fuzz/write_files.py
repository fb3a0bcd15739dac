"""Writes the files of a case, and makes the arguments of the ingest from it.

Keys of a file's style: ``groups`` (rows of a row group), ``pandas`` (pandas writes); for CSV
``delimiter``, ``newline``, ``bom``, ``header``, ``quote``, ``lines`` (more lines of text: ``(row,
text)``), ``repeat`` (the rows are written several times); for arrays ``order`` (``"F"``), ``big``
(byte order), ``transposed``, ``shape`` (of the header); for all ``cut`` (bytes that the end lacks),
``fifo``, ``dangling``.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch

from peergraph.store import Columns, CsvFormat, EdgeFiles, NodeFiles
from peergraph.store import Rows as TableRows
from tests.store.ingest_fuzz.case import Case, File, Rows, Table
from tests.store.ingest_fuzz.kinds import to_arrow

_COMPRESSORS: dict[str, Any] = {".gz": gzip.compress, ".bz2": bz2.compress, ".GZ": gzip.compress,
                ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}  # fmt: skip


def write_case(case: Case, folder: Path) -> dict[str, Any]:
    """Writes all files into the folder; returns the arguments of :meth:`Store.ingest`."""
    nodes = {rows.type: NodeFiles(**_arguments(rows, folder), id=rows.id,
                                  numbering=rows.numbering,  # type: ignore[arg-type]
                                  num_nodes=rows.num_nodes) for rows in case.nodes}  # fmt: skip
    edges = {}
    for rows in case.edges:
        ends: dict[str, Any] = dict(zip(("source", "destination"), rows.ends or (), strict=False))
        edges[rows.type] = EdgeFiles(**_arguments(rows, folder), **ends,
                                     add_reverse=rows.add_reverse,
                                     edge_ids=rows.edge_ids)  # fmt: skip
    return {"nodes": nodes, "edges": edges, "bad_rows": case.bad_rows, "memory": case.memory}


def type_folder(rows: Rows) -> str:
    """Returns the name of the folder that has the files of a type."""
    return rows.type if isinstance(rows.type, str) else "-".join(rows.type)


def table_stem(rows: Rows, number: int) -> Path:
    """Returns the path of a table's own file, without its ending."""
    return Path(f"tables of {type_folder(rows)}") / f"table{number}"


def sql(where: tuple[Any, ...]) -> str:
    """Returns a condition as DuckDB takes it."""
    kind, name, *rest = where
    column = '"' + name.replace('"', '""') + '"' if name else ""
    return {"above": "{0} > {1}", "some": "{0} IS NOT NULL", "even": "{0} % 2 = 0 OR {0} < 0",
            "random": "random() < 0.5", "limit": "true LIMIT 2", "false": "1 = 0",
            "statement": "true; CREATE TABLE t AS SELECT 1", "wrong": "{0} >",
            }[kind].format(column, *rest)  # fmt: skip


def table(file: File) -> pa.Table:
    """Returns the columns of a file."""
    arrays = [to_arrow(column.kind, column.cells) for column in file.columns]
    return pa.Table.from_arrays(arrays, [column.name for column in file.columns])


def frame(values: pa.Table) -> Any:
    """Returns a table of pandas. Its categories are unique, those of Arrow may be 0.0 and -0.0."""
    try:
        return values.to_pandas()
    except ValueError:
        types = [
            kind.value_type if pa.types.is_dictionary(kind) else kind
            for kind in values.schema.types
        ]
        return values.cast(pa.schema(zip(values.schema.names, types, strict=True))).to_pandas()


def array(file: File) -> np.ndarray[Any, Any]:
    """Returns the array of a ``.npy`` file: the columns side by side, or one column."""
    columns = [np.array(c.cells, c.kind if c.kind != "bool" else bool) for c in file.columns]
    values = columns[0] if file.style.get("flat") else np.stack(columns, axis=1)
    values = values.T if file.style.get("transposed") else values
    if file.style.get("big"):
        values = values.astype(values.dtype.newbyteorder(">"))
    return np.array(values, order=file.style.get("order", "C"))


def write_file(file: File, path: Path) -> None:
    """Writes a file of any format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.style.get("fifo"):
        return os.mkfifo(path)
    if file.style.get("dangling"):
        return path.symlink_to(path.with_name("gone"))
    name, stream = path.name, io.BytesIO()
    if name.endswith(".npy"):
        np.save(stream, array(file))
        data = stream.getvalue()
        if shape := file.style.get("shape"):
            data = _with_header(data, shape, array(file).dtype)
    elif name.endswith(".npz"):
        save = np.savez_compressed if file.style.get("big") else np.savez
        save(stream, a=array(file), other=np.zeros(3))
        data = stream.getvalue()
    elif name.endswith((".parquet", ".pq")):
        _write_parquet(file, stream)
        data = stream.getvalue()
    else:
        data = _csv_text(file).encode("utf-8-sig" if file.style.get("bom") else "utf-8")
        if compress := _COMPRESSORS.get(path.suffix):
            data = compress(data)
    path.write_bytes(data[: len(data) - min(len(data), file.style.get("cut", 0))])


def _arguments(rows: Rows, folder: Path) -> dict[str, Any]:
    part = Path(type_folder(rows))
    for file in {file.name: file for file in rows.files}.values():
        write_file(file, folder / part / file.name)
    names = [str(part / file.name) + ":a" * file.name.endswith(".npz") for file in rows.files]
    forms = {"paths": names, "folder": str(part), "glob": str(part / "*")}
    files: Any = forms.get(rows.form) if rows.files else None
    if rows.files and rows.form not in forms:
        files = _in_memory(rows)
    tables = {spec.name: _table(spec, table_stem(rows, number), folder)
              for number, spec in enumerate(rows.tables)}  # fmt: skip
    where = None if rows.where is None else sql(rows.where)
    return {"files": files, "tables": tables, "where": where, "csv": CsvFormat(**rows.csv)}


def _in_memory(rows: Rows) -> Any:
    file = rows.files[0]
    if rows.form == "tensor":
        return torch.from_numpy(array(file).copy())
    values = table(file)
    return {"table": lambda: values, "dataset": lambda: pads.dataset(values),
            "reader": values.to_reader, "pandas": lambda: frame(values)}[rows.form]()  # fmt: skip


def _table(spec: Table, stem: Path, folder: Path) -> Any:
    options: dict[str, Any] = {"dtype": spec.dtype, "nan": spec.nan}
    if spec.form == "column":
        return Columns(spec.columns[0], **options)
    if spec.form in ("list", "pattern"):
        return Columns("f*" if spec.form == "pattern" else spec.columns, **options)
    assert spec.file is not None
    if spec.form == "tensor":
        return TableRows(torch.from_numpy(array(spec.file).copy()), **options)
    path = stem.with_name(stem.name + spec.file.name)
    write_file(spec.file, folder / path)
    header = spec.file.style.get("header", True)
    member = ":a" if path.suffix == ".npz" else ""
    return TableRows(f"{path}{member}", **options, csv=CsvFormat(header=header))


def _write_parquet(file: File, stream: io.BytesIO) -> None:
    values, groups = table(file), file.style.get("groups") or None
    if file.style.get("pandas"):
        try:
            types = {pa.int64(): __import__("pandas").Int64Dtype()}
            frame = values.to_pandas(types_mapper=types.get)
            frame.to_parquet(stream, index=False, row_group_size=groups)
            return
        except (ValueError, TypeError, NotImplementedError):  # a kind that pandas does not know
            stream.seek(0)
            stream.truncate()
    pq.write_table(values, stream, row_group_size=groups,
                   write_statistics=file.style.get("statistics", True))  # fmt: skip


def _csv_text(file: File) -> str:
    style, stream = file.style, io.StringIO(newline="")
    quoting: Any = csv.QUOTE_ALL if style.get("quote") else csv.QUOTE_MINIMAL
    newline, lines = style.get("newline", "\n"), dict(style.get("lines", ()))
    writer = csv.writer(stream, delimiter=style.get("delimiter", ","), quoting=quoting,
                        lineterminator=newline)  # fmt: skip
    if style.get("header", True):
        writer.writerow([column.name for column in file.columns])
    cells = zip(*(column.cells for column in file.columns), strict=True)
    for row, values in enumerate(list(cells) * style.get("repeat", 1)):
        if row in lines:
            stream.write(lines.pop(row) + newline)
        if values == (None,) or values == ("",):
            stream.write(newline)  # the module would quote it
        else:
            writer.writerow(values)
    text = stream.getvalue() + "".join(line + newline for _, line in sorted(lines.items()))
    return text.removesuffix(newline) if style.get("no_end") else text


def _with_header(data: bytes, shape: Any, dtype: np.dtype[Any]) -> bytes:
    """Returns a ``.npy`` file with another shape in its header."""
    begin = 10 + int.from_bytes(data[8:10], "little")
    header = str({"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}).encode()
    header = header.ljust(117) + b"\n"
    return data[:8] + len(header).to_bytes(2, "little") + header + data[begin:]
