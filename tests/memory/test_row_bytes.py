"""Received rows are written to positions of a gather's result."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory import Group
from peergraph.memory.distributed.row_bytes import place_rows, select_rows
from tests.memory.narrow_rows import STORAGES, narrow_table, values
from tests.memory.tables import random_rows, same_bits, split, table_of

_CHOSEN = [3, 0, 3, 19, 7]
_POSITIONS = [8, 1, 0, 5, 2]


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 3, 8, 12, 64, 260])
def test_rows_of_any_size_at_any_address(width: int, offset: int, device: torch.device) -> None:
    """Rows in a message begin at any address: rows of other tables are before them."""
    table = table_of(
        random_rows((4, width), torch.uint8), split(4, "sharded"), Group.current(device=device)
    )
    memory = random_rows((20 * width + offset,), torch.uint8, seed=1).to(device)
    rows = memory[offset:].view(20, width)
    out = random_rows((9, width), torch.uint8, seed=2).to(device)
    chosen, positions = (torch.tensor(i, device=device) for i in (_CHOSEN, _POSITIONS))
    expected = out.clone()
    expected[positions] = rows[chosen]
    place_rows(table, rows, chosen, positions, out)
    assert same_bits(out, expected)
    assert same_bits(select_rows(rows, chosen), rows[chosen])
    table.close()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float32, torch.complex128])
def test_rows_of_several_dimensions(dtype: torch.dtype, device: torch.device) -> None:
    stored = random_rows((20, 3, 2), dtype)
    table = table_of(stored, split(20, "host"), Group.current(device=device))
    rows = stored.view(20, -1).view(torch.uint8).to(device)
    out = random_rows((3, 3, 3, 2), dtype, seed=2).to(device)
    chosen, positions = (torch.tensor(i, device=device) for i in (_CHOSEN, _POSITIONS))
    expected = out.cpu().clone().view(9, 3, 2)
    expected[_POSITIONS] = stored[_CHOSEN]
    place_rows(table, rows, chosen, positions, out)
    assert same_bits(out, expected.view(3, 3, 3, 2))
    table.close()


@pytest.mark.parametrize("storage", STORAGES)
def test_narrow_rows_are_decoded(storage: str, device: torch.device) -> None:
    group = Group.current(device=device)
    x = values((20, 36), torch.float32)
    ids = torch.arange(20, device=device)
    chosen, positions = (torch.tensor(i, device=device) for i in (_CHOSEN, _POSITIONS))
    for apart in (False, True) if storage.startswith("int8") else (False,):
        table = narrow_table(x, storage, split(20, "sharded"), group, apart=apart)
        out = torch.randn(9, 36, device=device)
        expected = out.clone()
        expected[positions] = table.gather(ids)[chosen]
        place_rows(table, table.gather_stored(ids), chosen, positions, out)
        assert same_bits(out, expected)
        table.close()
