"""Memory in huge pages, where the system has them: contents stay, whatever there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from peergraph import _C
from peergraph.memory import Group, SharedRegion
from peergraph.memory.device.launching import empty

HUGE_PAGE = 2 << 20
SIZES = [1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 4097]


@pytest.mark.parametrize("num_bytes", SIZES)
def test_shared_memory_is_zero_aligned_and_keeps_what_is_written(num_bytes: int) -> None:
    region = SharedRegion.create(num_bytes, Group.current("cpu"))
    values = region.local(torch.uint8, (num_bytes,))
    assert values.data_ptr() % HUGE_PAGE == 0
    assert not values.any()
    pattern = (torch.arange(num_bytes) % 251).to(torch.uint8)
    values.copy_(pattern)
    # As another process that maps it does, which must not lose what is there.
    _C.make_huge_pages(values.data_ptr(), num_bytes, 2)
    assert torch.equal(values, pattern)
    del values
    region.close()


def test_nothing_else_stays_mapped() -> None:
    def mapped() -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmSize:\s+(\d+) kB", status)[1])  # type: ignore[index]

    def map_and_unmap() -> None:
        for num_bytes in SIZES:
            SharedRegion.create(num_bytes, Group.current("cpu")).close()

    map_and_unmap()
    before = mapped()
    for _ in range(20):
        map_and_unmap()
    assert mapped() - before < HUGE_PAGE // 1024


@pytest.mark.parametrize("num_bytes", [0, 1, (4 << 20) - 1, 4 << 20, (9 << 20) + 5])
def test_own_memory(num_bytes: int) -> None:
    buffer = empty(num_bytes, torch.uint8, torch.device("cpu"))
    assert (buffer.numel(), buffer.dtype) == (num_bytes, torch.uint8)
    buffer.fill_(7)
    assert int(buffer.sum()) == 7 * num_bytes
