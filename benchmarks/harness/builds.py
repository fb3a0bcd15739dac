"""Processes of several builds of Peergraph, which answer requests in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Build:
    """A process that answers requests of JSON, a line each, by :func:`serve`."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, request: Any) -> Any:
        """Returns the answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def serve(answer: Callable[[Any], Any]) -> None:
    """Answers each line of the standard input."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
