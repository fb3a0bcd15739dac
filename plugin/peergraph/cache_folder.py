"""The folder of files that can be made again: measurements of this machine, graphs of demos."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/peergraph``, by default ``~/.cache/peergraph``.

    Users of containers often have no home, or one that they cannot write to: theirs is below the
    temporary folder. Raises PermissionError if another user has made it.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder, "peergraph")
    try:
        home = Path.home()  # RuntimeError: this user is in no list of users
        if os.access(home, os.W_OK | os.X_OK):
            return home / ".cache" / "peergraph"
    except RuntimeError:
        pass
    own = Path(tempfile.gettempdir(), f"peergraph-{os.getuid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise PermissionError(f"{own} is of another user: set XDG_CACHE_HOME")
    return own
