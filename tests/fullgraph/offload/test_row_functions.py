"""Functions on the plain rows of a chunk that save memory: the results of torch's."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph import RowLayout
from peergraph.fullgraph.tensor import recurrent
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.registry import CHUNK_RULES
from peergraph.memory import Group
from tests.named_case import named_case


def test_gates_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and all gradients of gated recurrent units, with and without biases."""
    monkeypatch.setattr(recurrent, "_LEAST_PART_ROWS", 2)
    group = Group(0, 1, torch.device("cpu"), 60.0)
    run = CHUNK_RULES[torch.gru_cell]
    for rows in (0, 1, 5, 37):
        layout = RowLayout.contiguous(group, rows)
        for bias in (True, False):
            for frozen in (True, False):
                with named_case(rows, bias, frozen):
                    torch.manual_seed(rows)
                    cell = torch.nn.GRUCell(3, 4, bias=bias).double()
                    cell.weight_hh.requires_grad_(not frozen)
                    x, h = (torch.randn(rows, n, dtype=torch.float64) for n in (3, 4))
                    x.requires_grad_()
                    h.requires_grad_(not frozen)
                    parameters = [cell.weight_ih, cell.weight_hh, *([cell.bias_ih, cell.bias_hh]
                                  if bias else [None, None])]  # fmt: skip
                    leaves = [t for t in (x, h, *parameters) if t is not None and t.requires_grad]
                    actual = run(ChunkRows(x, layout), ChunkRows(h, layout), *parameters)
                    assert actual is not None
                    expected = cell(x, h)
                    torch.testing.assert_close(actual.rows, expected)
                    scale = torch.randn_like(expected)
                    torch.testing.assert_close(
                        torch.autograd.grad(actual.rows, leaves, scale),
                        torch.autograd.grad(expected, leaves, scale),
                    )
    assert run(ChunkRows(x, layout), h, *parameters) is None
