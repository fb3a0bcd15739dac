"""Loads the CUDA kernels of an exchange of rows before its threads need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_session import ExchangeSession
from peergraph.memory.distributed.exchange_streams import in_stream

# Numbers of rows: torch and CUB have kernels for few items and for many, and for some alignments.
_COUNTS = (1, 8, 9_999, 10_000)
# The dtypes of the tensors that the exchange allocates.
_DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64)


def load_kernels(
    open_session: Callable[[str], ExchangeSession],
    tables: Sequence[DistributedTable],
    stream: torch.cuda.Stream | None,
) -> None:
    """Exchanges rows of all tables and gathers them, which loads the kernels; the rows are not
    used. Collective over all ranks of all machines.

    CUDA loads a kernel when it is launched for the first time, and waits until the GPU has finished
    its running kernels. If one of them is NCCL's, it may wait for a rank that waits for rows of
    this rank. A thread of the exchange that loads a kernel then would wait forever.

    Args:
        open_session: opens a session of the exchange.
        tables: the tables of the exchange, in the same order on all ranks.
        stream: the stream of the rows that are sent and received; None on the CPU.
    """
    device = tables[0].device
    for dtype in _DTYPES:
        # `torch.use_deterministic_algorithms` has torch fill new memory.
        torch.empty(8, dtype=dtype, device=device).fill_(0)
    with open_session("the first exchange of rows") as session, in_stream(stream):
        for count in _COUNTS:
            lists = {table.row_set: _spread_ids(count, table) for table in tables}
            requests = [(table, lists[table.row_set]) for table in tables]
            copies = {rows: ids.clone() for rows, ids in lists.items()}
            again = [(table, copies[table.row_set]) for table in tables]
            # Rounds with one batch and with several: other kernels tell lists of ids apart.
            for batches in ([requests], [requests, again]):
                with session.fetch(*batches).reading():
                    for table, ids in chain(*batches):
                        table.gather(ids)


def _spread_ids(count: int, table: DistributedTable) -> torch.Tensor:
    """Returns ids from the whole range: the first ids may all have hot rows, which no machine
    sends.
    """
    numbers = torch.arange(min(count, table.rows), device=table.device)
    step = max(1, table.rows // count)
    # Multiples of the step might all have rows of one machine.
    return numbers * step + numbers % step
