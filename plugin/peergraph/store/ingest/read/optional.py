"""Packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXTRAS = {"pyarrow": "ingest", "duckdb": "ingest", "dgl": "dgl", "torch_geometric": "pyg"}


class OptionalModule:
    """A module of an optional package, which is imported when it is first used.

    Args:
        name: the name of the module.
        purpose: the purpose for which it is needed, for the message.

    Raises:
        ImportError: at the first use: the package is not installed; tells how to install it.
    """

    def __init__(self, name: str, purpose: str) -> None:
        self._name, self._purpose = name, purpose

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = import_module(self._name)
        except ImportError as error:
            package = self._name.split(".")[0]
            raise ImportError(
                f"{self._purpose} needs {package}: pip install 'peergraph[{_EXTRAS[package]}]' "
                f"({error})"
            ) from error
        value = getattr(module, attribute)
        setattr(self, attribute, value)
        return value


_FILES = "reading Parquet files, CSV files and Arrow's tables"
arrow = OptionalModule("pyarrow", _FILES)
compute = OptionalModule("pyarrow.compute", _FILES)
csv = OptionalModule("pyarrow.csv", _FILES)
dataset = OptionalModule("pyarrow.dataset", _FILES)
filesystems = OptionalModule("pyarrow.fs", _FILES)
parquet = OptionalModule("pyarrow.parquet", _FILES)
duckdb = OptionalModule("duckdb", "looking up string or sparse ids, conditions and queries")
