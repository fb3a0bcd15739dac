"""A short run of random programs with fixed seeds, and what the runner itself does."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from tests.fullgraph.fuzz.campaign import Campaign
from tests.fullgraph.fuzz.generator import make_program
from tests.fullgraph.fuzz.outcomes import first_difference, observe, run_program
from tests.fullgraph.fuzz.report import (
    DIFFERS,
    EQUAL,
    LOST,
    NAMED,
    UNNAMED,
    Configuration,
    Outcome,
    Report,
    Result,
)
from tests.fullgraph.fuzz.shrink import shrink
from tests.fullgraph.fuzz.workers import PRELOADED, Workers

EQUAL_SHARE = 0.8


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("ranks", "programs"), [(1, 60), (3, 16)])
def test_programs_end_as_on_plain_tensors(ranks: int, programs: int) -> None:
    graphs, dtypes = ["pyg", "pyg", "pyg", "typed"], ["float64", "float64", "float64", "float32"]
    if importlib.util.find_spec("dgl"):
        graphs.append("dgl")
    campaign = Campaign([ranks], [0, 0, 1, 3, 5], loaders=0.1, graphs=graphs, dtypes=dtypes)
    report = Report()
    try:
        campaign.run(range(programs), report.add)
    finally:
        campaign.close()
    assert report.failures == 0, "\n".join([*map(str, report.findings.values()), str(report)])
    assert report.outcomes[EQUAL] >= EQUAL_SHARE * programs, str(report)


def test_what_ranks_are_forked_with_does_not_initialise_cuda() -> None:
    script = """
import importlib, sys
import torch

def initialise(*_):
    raise SystemExit("CUDA would be initialised")

torch._C._show_config = torch.cuda._lazy_init = initialise
torch.cuda.is_available = torch.cuda.device_count = initialise
for module in sys.argv[1:]:
    importlib.import_module(module)
"""
    # Another interpreter, which has imported nothing.
    command = [sys.executable, "-c", script, "peergraph.testing.ranks", *PRELOADED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_seed_says_everything() -> None:
    where = Configuration()
    lines, values = make_program(3, where)
    assert lines == make_program(3, where)[0] != make_program(5, where)[0]
    again = observe(lines, 3, where) or []
    assert len(values) == len(again)
    assert first_difference(values, again) == (0, "")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("check('x', x[:3])", EQUAL),
        ("check('x', x * 2)", DIFFERS),
        ("check('x', x.float())", DIFFERS),
        ("check('x', x[:3].unsqueeze(0))", DIFFERS),
        ("check('y', x[:3])", DIFFERS),
        ("x.histogram(4)", NAMED),
        ("x.nothing", UNNAMED),
    ],
)
def test_outcomes_of_a_program(line: str, kind: str) -> None:
    expected = observe(["check('x', x[:3])"], 1, Configuration())
    assert expected is not None
    assert run_program([line], 1, expected, Configuration()).kind == kind


def test_a_program_is_shrunk_to_what_fails() -> None:
    lines = [f"v{i} = {i}" for i in range(20)] + ["with torch.no_grad(): z = 1.0"]

    def fails(lines: list[str]) -> bool:
        return {"v3 = 3", "v17 = 17"} <= set(lines) and "z = " in lines[-1]

    assert shrink(lines, fails) == ["v3 = 3", "v17 = 17", "z = 1.0"]


def test_values_that_consist_of_rounding_may_differ() -> None:
    zero = "(x @ x.t()).sum(0) - x @ x.sum(0)"
    values = observe([f"check('zero', 1e6 * ({zero}))", "check('x', x)"], 1, Configuration())
    assert values is not None
    assert values[0].slack > 1e-9 > values[1].slack


@pytest.mark.parametrize("choice", ["argmax(1)[0]", "argmax(1)[0] == 1", "argmax(1)[0] == 2"])
def test_equal_scores_select_any_class(choice: str) -> None:
    lines = [
        "model = nn.Linear(x.shape[1], 3, dtype=x.dtype)",
        "nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "optimizer.step()",
        f"check('class', model(x).{choice})",
        "check('scores', model(x))",
    ]
    values = observe(lines, 1, Configuration())
    assert values is not None
    assert values[0].slack == math.inf > 1e-9 > values[1].slack


@pytest.mark.parametrize(("function", "is_undefined"), [("x.pow(3)", True), ("3 * x", False)])
def test_gradients_of_unseen_writes_may_differ(function: str, is_undefined: bool) -> None:
    """Where torch refuses them once it sees the write: of values that a function has saved."""
    lines = ["x = x.requires_grad_()", f"v = ({function}).sum()", "x.data.mul_(0.5)"]
    values = observe([*lines, "v.backward()", "check('x.grad', x.grad)"], 1, Configuration())
    assert values is not None
    assert (values[0].slack == math.inf) == is_undefined


@pytest.mark.parametrize(
    ("end", "texts"),
    [
        (signal.SIGSEGV, ["rank 1 was ended by SIGSEGV", "Segmentation fault", "in _end"]),
        (signal.SIGKILL, ["rank 1 was ended by SIGKILL", "the last words"]),
        (3, ["rank 1 ended with exit code 3", "the last words"]),
        (ValueError, ["rank 1 raised", "ValueError: of the program"]),
        (None, ["rank 1 did not end in 1 s", "the last words", "in _end"]),
    ],
)
def test_a_lost_process_leaves_evidence(end: object, texts: list[str]) -> None:
    workers = Workers(2, deadline_s=1)
    try:
        assert workers.run(_outcome).kind == EQUAL
        outcome = workers.run(_end, end)
        assert outcome.kind == LOST
        assert all(text in outcome.message for text in texts), outcome.message
        script = str(Result(7, Configuration(ranks=2), outcome, ["x.sum()"]))
        compile(script, "finding", "exec")
        assert workers.run(_outcome).kind == EQUAL  # of new ranks
    finally:
        workers.close()


def _outcome() -> Outcome:
    return Outcome(EQUAL)


def _end(end: object) -> Outcome:
    """Ends rank 1."""
    if dist.get_rank() == 1:
        print("the last words", file=sys.stderr, flush=True)
        if isinstance(end, signal.Signals):
            os.kill(os.getpid(), end)
        elif isinstance(end, int):
            os._exit(end)
        elif end is not None:
            raise ValueError("of the program")
        time.sleep(100)
    return Outcome(EQUAL)
