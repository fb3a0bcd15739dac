"""The tutorials of docs/start run, and print what their pages show."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import run_python

RUNNER = Path(__file__).parent.parent / "docs" / "start" / "run_tutorials.py"


def load_runner() -> ModuleType:
    spec = spec_from_file_location("run_tutorials", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()


@pytest.mark.parametrize("name", runner.PAGES)
def test_tutorial_prints_what_its_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "dgl":
        pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    draw = find_spec("matplotlib") is not None
    tutorial = runner.Tutorial.read(name, draw=draw)
    script = tmp_path / "train.py"
    script.write_text(tutorial.script)
    monkeypatch.chdir(tmp_path)
    # The pages say which lines change on GPUs; what they show is the output of CPU ranks.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run_python(script, ranks=tutorial.ranks)
    assert done.returncode == 0, done.stderr
    assert runner.differences(tutorial.page.read_text(), tutorial.filled(done.stdout)) == []
    assert not draw or (tmp_path / f"{name}.svg").stat().st_size > 1000
    assert (runner.FOLDER / f"{name}.svg").exists(), "python docs/start/run_tutorials.py draws it"


def test_differences_are_noticed() -> None:
    assert runner.differences("loss 0.512, 2 ranks\n", "loss 0.530, 2 ranks\n") == []
    assert runner.differences("loss 0.512\n", "loss 0.9\n") != []
    assert runner.differences("loss 0.512\n", "accuracy 0.512\n") != []
    assert runner.differences("loss 0.512\n", "loss 0.512\nloss 0.4\n") != []
