"""Where measurements and the demo's graph are kept, also for users without a home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peergraph.cache_folder import cache_folder


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return monkeypatch


def test_the_user_chooses_or_has_a_home(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "peergraph"
    environment.setenv("XDG_CACHE_HOME", "/nowhere")
    assert cache_folder() == Path("/nowhere/peergraph")


def test_users_without_a_home(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / f"peergraph-{os.getuid()}"
    environment.setenv("HOME", str(tmp_path / "missing"))
    assert cache_folder() == own
    assert own.stat().st_mode & 0o777 == 0o700

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    environment.setattr(Path, "home", none)
    assert cache_folder() == own
    other = os.getuid() + 1
    own.rename(tmp_path / f"peergraph-{other}")
    environment.setattr(os, "getuid", lambda: other)
    with pytest.raises(PermissionError, match="of another user: set XDG_CACHE_HOME"):
        cache_folder()
