"""Packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXTRAS = {"pyarrow": "ingest", "duckdb": "ingest", "dgl": "dgl", "torch_geometric": "pyg"}


def require(module: str, purpose: str) -> Any:
    """Imports a module of an optional package.

    Args:
        module: the name of the module.
        purpose: the purpose for which the module is needed, for the message.

    Raises:
        ImportError: the package is not installed; the error tells how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        extra = _EXTRAS[module.split(".")[0]]
        raise ImportError(
            f"{purpose} needs {module.split('.')[0]}: pip install 'peergraph[{extra}]' ({error})"
        ) from error
