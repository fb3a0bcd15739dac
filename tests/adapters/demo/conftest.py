"""The demo is an example, which is imported from its folder where it is not installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

EXAMPLES = str(Path(__file__).parents[3] / "examples")


@pytest.fixture(autouse=True)
def demo_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    paths = [EXAMPLES, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
