"""Run at the start of child processes of `peergraph run`, so that `import dgl` works in them too.

`peergraph_dgl` provides the help for the import. It is imported when DGL is imported, not before:
most processes never import DGL.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


class _AdapterFirst(MetaPathFinder, Loader):
    """On the first import of DGL imports the adapter, which imports DGL, and returns DGL."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "dgl":
            return None
        sys.meta_path.remove(self)
        import_module("peergraph_dgl")
        self._spec = sys.modules["dgl"].__spec__
        return ModuleSpec("dgl", self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules["dgl"]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _run_hidden() -> None:
    """Runs the `sitecustomize` that Python would have found without this one."""
    here = Path(__file__).parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here.resolve()]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


sys.meta_path.insert(0, _AdapterFirst())
_run_hidden()
