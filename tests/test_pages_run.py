"""The scripts of tutorials and guides run, and print what their pages show."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import run_python

RUNNER = Path(__file__).parent.parent / "docs" / "run_pages.py"


def load_runner() -> ModuleType:
    spec = spec_from_file_location("run_pages", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()

_NEEDS = {"start/dgl": "peergraph_dgl", "start/files": "duckdb"}


@pytest.mark.parametrize("name", runner.PAGES)
def test_page_shows_what_its_script_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in _NEEDS:
        pytest.importorskip(_NEEDS[name], exc_type=ImportError)
    if name == "start/full_batch" and find_spec("pymetis") is not None:
        pytest.skip("METIS, which is installed, makes other parts than the page shows")
    draw = find_spec("matplotlib") is not None
    page = runner.Page.read(name, draw=draw)
    script = tmp_path / "train.py"
    script.write_text(page.script)
    monkeypatch.chdir(tmp_path)
    # The pages say which lines change on GPUs; what they show is the output of CPU ranks, so that
    # the program finds no GPU (`cpu_by_default`).
    done = run_python(script, ranks=page.ranks)
    assert done.returncode == 0, done.stderr
    assert runner.differences(page.path.read_text(), page.filled(done.stdout)) == []
    if page.picture:
        assert not draw or (tmp_path / page.picture.name).stat().st_size > 1000
        assert page.picture.exists(), "python docs/run_pages.py draws it"


def test_differences_are_noticed() -> None:
    assert runner.differences("loss 0.512, 2 ranks\n", "loss 0.530, 2 ranks\n") == []
    assert runner.differences("loss 0.512\n", "loss 0.9\n") != []
    assert runner.differences("loss 0.512\n", "accuracy 0.512\n") != []
    assert runner.differences("loss 0.512\n", "loss 0.512\nloss 0.4\n") != []
