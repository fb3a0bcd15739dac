"""Imports DGL even if GraphBolt's native library for the installed torch is missing.

While DGL 2.x is imported, it loads a native library of GraphBolt for the installed torch version.
Its wheels have libraries for the torch versions of 2024. Neither GraphBolt's Python modules nor the
rest of DGL need the library.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

GRAPHBOLT = "dgl.graphbolt"

_INSTALL = "pip install 'peergraph[dgl]'"

# The last name that GraphBolt's package defines before it loads the library.
_LAST_NAME = "load_graphbolt"


def import_dgl() -> ModuleType:
    """Imports DGL; has no effect if DGL is imported already or can be imported as it is.

    If GraphBolt's native library is missing, ``dgl.graphbolt`` is imported without it: its classes
    work, its native operators do not. If GraphBolt's Python modules cannot be imported either,
    every use of ``dgl.graphbolt`` raises ``ImportError``. In both cases the main process (of local
    rank 0) emits one ``UserWarning``.

    Raises:
        ImportError: DGL, or a package that it needs, is not installed.
    """
    if "dgl" in sys.modules:
        return sys.modules["dgl"]
    if importlib.util.find_spec("dgl") is None:
        raise ImportError(f"peergraph_dgl needs DGL: {_INSTALL}", name="dgl")
    if importlib.util.find_spec("packaging") is None:
        # DGL's own message names a part of setuptools that no longer exists.
        raise ImportError(f"DGL needs the package 'packaging': {_INSTALL}", name="packaging")
    with _watched_graphbolt():
        return importlib.import_module("dgl")


@contextmanager
def _watched_graphbolt() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds GraphBolt as Python does, and gives it a :class:`_GraphBoltLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != GRAPHBOLT:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _GraphBoltLoader(spec.loader)
        return spec


class _GraphBoltLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            with warnings.catch_warnings():
                # torchdata warns of the removal of datapipes; the package's extra pins a version.
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torchdata\.")
                self._loader.exec_module(module)
        except (ImportError, FileNotFoundError) as error:
            if _LAST_NAME in vars(module):
                _import_without_library(error)
            else:
                _replace_by_errors(module, error)

    def __getattr__(self, name: str) -> Any:
        # Readers of the loader during the import call `get_data`, `get_source` and others.
        return getattr(self._loader, name)


def _import_without_library(error: Exception) -> None:
    from .graphbolt_operators import define_missing

    define_missing()
    _warn_once(
        "GraphBolt's native operators are off: this DGL has no GraphBolt library for torch "
        f"{_torch_version()} ({error}). GraphBolt's Python classes and the rest of DGL work; "
        "dgl.sparse needs a library of its own that is missing likewise."
    )


def _replace_by_errors(module: ModuleType, error: Exception) -> None:
    """Replaces all names of the module by errors, so that the rest of DGL can be imported."""
    for name in [n for n in sys.modules if n.startswith(f"{GRAPHBOLT}.")]:
        del sys.modules[name]
    for name in [n for n in vars(module) if not n.startswith("__")]:
        delattr(module, name)
    reason = f"dgl.graphbolt is off: it could not be imported with torch {_torch_version()}"
    reason = f"{reason} ({error}); for its Python classes: {_INSTALL}"

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # as inspecting a module expects
        raise ImportError(f"dgl.graphbolt.{name}: {reason}", name=GRAPHBOLT)

    module.__getattr__ = missing  # type: ignore[method-assign]
    _warn_once(f"{reason}. The rest of DGL works.")


def _warn_once(text: str) -> None:
    """Warns in the main process of rank 0, not in worker processes and in other ranks."""
    is_main = multiprocessing.current_process().name == "MainProcess"
    if is_main and os.environ.get("LOCAL_RANK", "0") == "0":
        warnings.warn(text, UserWarning, stacklevel=2)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)
