"""Messages with rows of several tables: the bytes of the buffer, and what is read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.memory.distributed.row_messages import RowMessages

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Table:
    """What messages need of a table."""

    name: str
    row_set: str
    row_bytes: int


class _Layout:
    """Stands for the layout of an exchange: it has the tables of each row set."""

    def __init__(self, *tables: _Table) -> None:
        self._tables = tables

    def named(self, row_set: str, mask: int) -> list[_Table]:
        of_set = [table for table in self._tables if table.row_set == row_set]
        return [table for bit, table in enumerate(of_set) if mask >> bit & 1]


def _messages(layout: Any, counts: Any) -> RowMessages:
    return RowMessages(layout, counts)


def _rows(table: _Table, count: int) -> Tensor:
    values = torch.arange(count * table.row_bytes) * 7 + len(table.name)
    return (values % 250 + 1).to(torch.uint8).view(count, table.row_bytes)


def _expected_messages(
    layout: _Layout, counts: dict[int, Any], rows: dict[Any, Tensor]
) -> dict[int, bytes]:
    """The message of each rank, byte by byte."""
    begin = dict.fromkeys(rows, 0)
    messages = {}
    for rank, of_rank in counts.items():
        message = b""
        for row_set, (mask, count) in of_rank.items():
            named = layout.named(row_set, mask)
            for table in [t for t in rows if t.row_set == row_set]:
                part = rows[table][begin[table] : begin[table] + count]
                begin[table] += count
                if table in named:
                    matrix = bytes(part.flatten().tolist())
                    message += matrix + bytes(-len(matrix) % 16)
        messages[rank] = message
    return messages


_X, _Y, _W = _Table("x", "node", 16), _Table("yy", "node", 5), _Table("www", "edge", 8)
_CASES = {
    "one table": ([_X], {0: {"node": (1, 3)}, 2: {"node": (1, 2)}}),
    "one table with padding": (
        [_Y],
        {1: {"node": (1, 3)}, 2: {"node": (1, 0)}, 5: {"node": (1, 1)}},
    ),
    "one rank": ([_X], {3: {"node": (1, 4)}}),
    "no rows": ([_X], {0: {"node": (1, 0)}}),
    "ranks read different tables": (
        [_X, _Y, _W],
        {
            0: {"node": (3, 2), "edge": (1, 3)},
            1: {"node": (1, 1)},
            4: {"node": (2, 2), "edge": (1, 0)},
        },
    ),
    "a rank reads nothing": ([_X, _Y], {0: {}, 1: {"node": (3, 2)}}),
    "rows for ranks that do not read the table": (
        [_X, _Y],
        {0: {"node": (2, 2)}, 1: {"node": (1, 3)}},
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_bytes_and_rows_of_messages(case: str) -> None:
    tables, counts = _CASES[case]
    layout = _Layout(*tables)
    messages = _messages(layout, counts)
    number = {
        table: sum(
            of_rank[table.row_set][1] for of_rank in counts.values() if table.row_set in of_rank
        )
        for table in tables
    }
    rows: dict[Any, Tensor] = {table: _rows(table, n) for table, n in number.items()}
    expected = _expected_messages(layout, counts, rows)
    buffer = messages.pack(rows, _CPU)
    assert messages.bytes_by_rank == {rank: len(message) for rank, message in expected.items()}
    # The bytes of the padding are arbitrary. Rows have no zeros, so that each zero is padding.
    padding = [i for i, b in enumerate(b"".join(expected.values())) if b == 0]
    without_padding = bytes(0 if i in padding else b for i, b in enumerate(buffer.tolist()))
    assert without_padding == b"".join(expected.values())
    sent = {
        table: [
            (rank, count)
            for rank, of_rank in counts.items()
            for row_set, (mask, count) in of_rank.items()
            if table in layout.named(row_set, mask)
        ]
        for table in tables
    }
    assert messages.num_rows == sum(n for of_table in sent.values() for _, n in of_table)
    assert messages.unpadded_bytes == sum(t.row_bytes * n for t, of in sent.items() for _, n in of)
    received: dict[Any, Tensor] = dict(messages.unpack(buffer))
    assert set(received) == {table for table, of_table in sent.items() if of_table}
    for table, matrix in received.items():
        of_ranks = {r: c[table.row_set][1] for r, c in counts.items() if table.row_set in c}
        parts = dict(zip(of_ranks, torch.split(rows[table], list(of_ranks.values())), strict=True))
        assert torch.equal(matrix, torch.cat([parts[rank] for rank, _ in sent[table]]))
