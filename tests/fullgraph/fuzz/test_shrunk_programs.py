"""Short programs that once ended otherwise than on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.fullgraph.fuzz.outcomes import observe, run_program
from tests.fullgraph.fuzz.report import EQUAL, Configuration

LEAF, GRADIENT = "x = x.requires_grad_()", "check('x.grad', x.grad)"
OF_EDGES = (LEAF, "e = x[edge_index[0]] - x[edge_index[1]]", "f = e.tanh()")
PROGRAMS = {
    # Selecting rows of `e` stored them, and `f`, which was recorded before, lost their gradient.
    "rows of a function after rows of its argument": (
        *(*OF_EDGES, "part = e[data.edge_mask]"),
        *("f[data.edge_weight > 0.5].sum().backward()", GRADIENT),
    ),
    "a sum of a function after a range of its argument, without gradients": (
        *(*OF_EDGES, "with torch.no_grad(): part = e[2:9]"),
        *("f.sum(0).pow(2).sum().backward()", GRADIENT),
    ),
    "both": (
        *(*OF_EDGES, "loss = e[data.edge_mask].pow(2).sum() + f[data.edge_mask].sum()"),
        *("loss.backward()", GRADIENT),
    ),
}
# A list of all ids was a view of the rows. Offloaded rows refuse to change.
COPIES = {
    f"{index}, {write}": ("v = x * 2", f"rows = v{index}", write, "check('both', [v, rows])")
    for index in ("[torch.arange(x.shape[0])]", ".index_select(0, torch.arange(x.shape[0]))")
    for write in ("v[:, 1] = x[:, 0]", "rows.zero_()")
}


@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_differed(name: str, chunks: int) -> None:
    _check(PROGRAMS[name], chunks)


@pytest.mark.parametrize("name", COPIES)
def test_rows_of_all_ids_are_a_copy(name: str) -> None:
    _check(COPIES[name], 0)


def _check(program: Sequence[str], chunks: int) -> None:
    lines, where = list(program), Configuration(chunks=chunks)
    expected = observe(lines, 7, where)
    assert expected is not None
    outcome = run_program(lines, 7, expected, where)
    assert outcome.kind == EQUAL, outcome
