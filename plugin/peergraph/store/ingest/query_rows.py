"""The rows of a query in DuckDB's SQL, which reads the files that it names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from os.path import abspath, dirname
from typing import Any

from peergraph.store.ingest.read.arrow_rows import StreamRows
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.workspace import Workspace, arrow_reader, translated_errors

_CSV_FILE = re.compile(r"\.(csv|tsv|txt)(\.\w+)?$", re.IGNORECASE)
_TYPES = {"all_varchar", "columns"}
"""Arguments by which DuckDB does not guess types of CSV files."""
_NAMES = (
    *("$..table_name", "$..function.function_name", "$..function..column_names[0]"),
    *("$..function..text", "$..function..value.value"),  # versions differ
)
"""Where the tree of a query has its tables, table functions, and their options and literals."""


def query_rows(query: str, workspace: Workspace) -> RowSource:
    """Returns the rows of a query, which is evaluated once.

    Raises:
        ValueError: it is no SELECT, or it reads other files than those that it names as literals,
            or CSV files whose types DuckDB would guess.
    """
    what = f"query={query!r} is not valid"
    with workspace.queries(what) as cursor:
        if len(cursor.extract_statements(query)) != 1:
            raise ValueError(f"{what}: it has several statements")
        error, *names = cursor.execute(
            "SELECT json_extract_string(tree, '$.error_message'), "
            + ", ".join(f"json_extract_string(tree, '{path}')" for path in _NAMES)
            + " FROM (SELECT json_serialize_sql(?) AS tree)",
            [query],
        ).fetchone()
    if error is not None:
        raise ValueError(f"{what}: {error}")
    tables, functions, options, *literals = names
    untyped = [name for name in tables if _CSV_FILE.search(name)]
    readers = [name for name in functions if "csv" in name.lower()]
    if untyped or len(readers) > sum(name.lower() in _TYPES for name in options):
        raise ValueError(
            f"{what}: DuckDB would guess the types of {(untyped + readers)[0]} from the first "
            "rows: use read_csv(..., all_varchar = true), or columns = {...}"
        )
    files = [name for part in (tables, *literals) for name in part if name]
    paths = [path for name in files for path in (glob.glob(name, recursive=True) or [name])]
    # A pattern is looked for in its folder.
    patterns = [name for name in files if re.search(r"[*?\[]", name)]
    folders = sorted({abspath(dirname(re.split(r"[*?\[]", name)[0])) for name in patterns})
    database = workspace.new_database([*paths, *map(abspath, paths)], folders)
    with translated_errors(what, workspace.temporary):
        reader = arrow_reader(database.sql(query))

    def rows(columns: Sequence[str], _: int) -> Iterator[Any]:
        with translated_errors(what, workspace.temporary):
            for batch in reader:
                yield batch.select([*columns])
        database.close()

    return RowSource([StreamRows("the query's result", reader.schema, None, rows)])
