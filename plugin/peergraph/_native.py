"""Loads the compiled module `_C`, or says why it cannot be loaded."""

from __future__ import annotations

import sysconfig
from importlib import import_module
from pathlib import Path


def explain(error: ImportError, folder: Path) -> str:
    """The likely causes of `error`, most likely first, for an installation in `folder`."""
    wanted = "_C" + str(sysconfig.get_config_var("EXT_SUFFIX"))
    others = sorted(path.name for path in folder.glob("_C.*.so") if path.name != wanted)
    causes = []
    if not (folder / wanted).exists():
        if others:
            causes.append(f"it was built for another Python ({', '.join(others)}): reinstall it")
        causes.append("the package was not built: run `pip install -e .` in the source tree")
        causes.append("a source folder hides the installed package: start Python elsewhere")
    else:
        causes.append("it was built on a newer system (libstdc++ or libc): build it on this one")
        causes.append("the file is damaged or of another architecture: reinstall it")
    lines = [f"peergraph's compiled module {wanted} cannot be loaded. Likely causes:"]
    lines += [f"  {number}. {cause}" for number, cause in enumerate(causes, 1)]
    lines.append(f"The import said: {error}")
    return "\n".join(lines)


try:
    import_module("peergraph._C")
except ImportError as error:
    raise ImportError(explain(error, Path(__file__).parent)) from error
