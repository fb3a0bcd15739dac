"""Finds the Python interpreters of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


def interpreter(version: str, paths: Sequence[str] = ()) -> str:
    """Returns the path of an interpreter: one of `paths`, `pythonVERSION` on PATH, or of pyenv.

    Args:
        version: as in "3.12".
        paths: texts "VERSION=PATH", which come first.

    Raises FileNotFoundError where there is none.
    """
    for text in paths:
        name, _, path = text.partition("=")
        if name == version:
            return path
    if path := shutil.which(f"python{version}"):
        probe = [path, "-c", "import sys; print('{}.{}'.format(*sys.version_info[:2]))"]
        # A shim of pyenv is found even where it starts nothing.
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True):
        return str(path)
    raise FileNotFoundError(f"Python {version} is not here: --python {version}=PATH")
