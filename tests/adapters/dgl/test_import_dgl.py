"""`import dgl` with and without what its GraphBolt needs, and the launcher that helps scripts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import run_python

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

HAS_GRAPHBOLT = importlib.util.find_spec("dgl") is not None and any(
    (Path(folder) / "graphbolt").is_dir()
    for folder in importlib.util.find_spec("dgl").submodule_search_locations or []
)

SMOKE = "print(dgl.graph(([0, 1], [1, 2])).num_edges())"


def python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("_PEERGRAPH")} | environment
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=280, env=env, check=False
    )


IMPORT_FIRST = """
import sys
before = list(sys.meta_path)
import peergraph_dgl, dgl, torch
left = [finder for finder in sys.meta_path if finder not in before]
assert not [finder for finder in left if "peergraph" in type(finder).__module__]
gb = sys.modules.get("dgl.graphbolt")
assert gb is None or type(gb.__loader__).__name__ == "SourceFileLoader"
if gb is not None:  # it stays usable
    items = gb.ItemSet(torch.arange(5), names="seed_nodes")
    assert sum(1 for _ in gb.ItemSampler(items, batch_size=2)) == 3
print("GraphBolt:", gb is not None)
"""


def test_import_first() -> None:
    done = python("-c", f"{IMPORT_FIRST}\n{SMOKE}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["GraphBolt:", str(HAS_GRAPHBOLT), "2"]
    off = done.stderr.count("GraphBolt's native operators are off")
    assert off == (1 if HAS_GRAPHBOLT else 0)


@pytest.mark.skipif(not HAS_GRAPHBOLT, reason="this DGL has no GraphBolt")
def test_without_what_graphbolt_needs(tmp_path: Path) -> None:
    """As with a torchdata that has no datapipes."""
    (tmp_path / "torchdata").mkdir()
    (tmp_path / "torchdata" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = f"import peergraph_dgl, dgl; {SMOKE}; dgl.graphbolt.ItemSet"
    done = python("-c", code, PYTHONPATH=path)
    assert done.stdout.split()[-1] == "2"
    assert "dgl.graphbolt.ItemSet: dgl.graphbolt is off" in done.stderr
    assert "No module named 'torchdata.datapipes'" in done.stderr
    assert "The rest of DGL works" in done.stderr


def test_touches_nothing_where_dgl_imports_by_itself(tmp_path: Path) -> None:
    """A DGL whose GraphBolt loads keeps its loader and its names, and nothing is said."""
    package = tmp_path / "dgl"
    (package / "graphbolt").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import graphbolt\n")
    (package / "graphbolt" / "__init__.py").write_text("value = __spec__.loader\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = (
        "from peergraph_dgl_importing import import_dgl; import_dgl(); import dgl; "
        "print(type(dgl.graphbolt.value).__name__)"
    )
    source = importlib.util.find_spec("peergraph_dgl")
    assert source is not None
    assert source.origin is not None
    text = (Path(source.origin).parent / "backend" / "import_dgl.py").read_text()
    (tmp_path / "peergraph_dgl_importing.py").write_text(text)
    done = python("-c", code, PYTHONPATH=path)
    assert done.stdout.split() == ["SourceFileLoader"]
    assert done.stderr == ""


SCRIPT = """
import builtins, sys, dgl
import torch.multiprocessing as mp

def child(rank):
    print("child", rank, dgl.graph(([0], [1])).num_edges(), builtins.mine)

if __name__ == "__main__":
    import helper
    print("main", sys.argv[1:], helper.NAME, dgl.__name__)
    mp.spawn(child, nprocs=1)
    sys.exit(7)
"""


def test_launcher(tmp_path: Path) -> None:
    """The script imports DGL itself, as does a process that it spawns; other start-up code stays.

    The exit status is the script's.
    """
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'beside the script'\n")
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 5\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = ("-m", "peergraph.cli", "run", str(script), "--epochs", "3", "-x")
    done = python(*command, PYTHONPATH=path)
    assert done.returncode == 7, done.stderr
    assert "main ['--epochs', '3', '-x'] beside the script dgl" in done.stdout
    assert "child 0 1 5" in done.stdout
    assert done.stderr.count("native operators are off") <= 1


def test_launcher_runs_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task.py").write_text("import sys, dgl; sys.exit(int(sys.argv[1]))\n")
    monkeypatch.chdir(tmp_path)
    done = run_python("-m", "peergraph.cli", "run", "-m", "task", "7")
    assert done.returncode == 7, done.stderr


def test_launcher_without_a_script() -> None:
    done = run_python("-m", "peergraph.cli", "run", "nowhere.py")
    assert done.returncode == 2
    assert "there is no file 'nowhere.py'" in done.stderr
