"""host_time.py on a few steps."""

from __future__ import annotations

from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python


def test_host_time() -> None:
    done = run_python(BENCHMARKS / "host_time.py", "--rounds", "1", "--steps", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| accelerated step |" in done.stdout
