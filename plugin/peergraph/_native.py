"""Loads the compiled module `_C`, or explains why it cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

SUFFIX = EXTENSION_SUFFIXES[0]


def explain(error: ImportError, folders: Iterable[str]) -> str:
    """Returns the likely causes of `error`, most likely first, for a package in `folders`."""
    own_name = "_C" + SUFFIX
    names = {path.name for folder in folders for path in Path(folder).glob("_C.*.so")}
    others = sorted(names - {own_name})
    causes = []
    if own_name not in names:
        if others:
            causes.append(f"it was built for another Python ({', '.join(others)}): reinstall it")
        causes.append("the package was not built: run `pip install -e .` in the source tree")
        causes.append("a source folder hides the installed package: start Python elsewhere")
    else:
        causes.append("it was built on a newer system (libstdc++ or libc): build it on this one")
        causes.append("the file is damaged or of another architecture: reinstall it")
    lines = [f"peergraph's compiled module {own_name} cannot be loaded. Likely causes:"]
    lines += [f"  {number}. {cause}" for number, cause in enumerate(causes, 1)]
    lines.append(f"The import said: {error}")
    return "\n".join(lines)


try:
    import_module("peergraph._C")
except ImportError as error:
    raise ImportError(explain(error, import_module("peergraph").__path__)) from error
