"""Messages of the exchange of rows: what a rank gets whose connections were closed by another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory import Group
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from tests.machines.hosts import run_on_hosts


def _closed_connection() -> None:
    network = ExchangeNetwork(Group.current("cpu", timeout=60), "test", "the test")
    message = torch.ones(8, dtype=torch.uint8)
    nothing = message[:0]
    dist.barrier()
    if dist.get_rank() == 0:
        network.close()
        with pytest.raises(RuntimeError, match="has been closed"):
            network.transfer(message, {1: 8}, {}, 0, "batch 3")
    else:
        lost = r"rank 0 of machine 0 \(a\) is lost or has left batch 3"
        with pytest.raises(PeerLostError, match=lost):
            network.transfer(nothing, {}, {0: 8}, 0, "batch 3").wait()
        # From here on Gloo knows that the connection is closed, and refuses messages at once.
        with pytest.raises(PeerLostError, match=lost):
            network.transfer(message, {0: 8}, {}, 1, "batch 3")
        with pytest.raises(PeerLostError, match=lost):
            network.transfer(nothing, {}, {0: 8}, 1, "batch 3")
        with pytest.raises(PeerLostError, match=lost):
            network.swap({0: np.array([1])}, 2, "batch 3")
    dist.barrier()


def test_a_connection_that_another_rank_has_closed() -> None:
    run_on_hosts(_closed_connection, "ab")
