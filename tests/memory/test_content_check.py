"""Writes to tensors are noticed: all of them on the CPU, on a GPU by an error that comes later."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

import peergraph
import peergraph._C as _C
from peergraph.memory import ContentCheck
from peergraph.memory.device.launching import launch_on
from tests.named_case import named_cases

GPU = torch.device("cuda", 0)
PIECE = 16384  # bytes

NOT_COUNTED = "was written in a way that torch does not count"


def changed(check: ContentCheck, tensor: Tensor, position: int = 0) -> bool:
    """Whether a write was noticed, at once or by an error."""
    if not check.is_unchanged([tensor], [position]):
        return True
    try:
        peergraph.synchronize(tensor.device)
    except RuntimeError as error:
        if NOT_COUNTED not in str(error):
            raise
        return True
    return False


VIEWS = {
    "contiguous": lambda base: base,
    "first edges": lambda base: base[:, :4000],
    "odd first edge": lambda base: base[:, 3:],
    "transposed": lambda base: base.t().contiguous().t(),
    "every second": lambda base: base[:, ::2],
    "one row": lambda base: base[1],
    "empty": lambda base: base[:, :0],
}


@named_cases("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_every_kind_of_memory(view: str, dtype: torch.dtype, device: torch.device) -> None:
    base = torch.randint(0, 200, (2, 5001), dtype=dtype, device=device)
    tensor = VIEWS[view](base)
    check = ContentCheck([tensor])
    assert not changed(check, tensor)
    base.data[:, :] = base.clone()  # the same values
    assert not changed(check, tensor)
    for place in (0, -1):
        if tensor.numel():
            check = ContentCheck([tensor])
            tensor.data[..., place] += 1
            assert changed(check, tensor)


def test_all_bytes_count(device: torch.device) -> None:
    """A change of any byte of a tensor, and of any two words of it that change places."""
    values = torch.randint(0, 256, (PIECE + 21,), dtype=torch.uint8)
    tensor = values.to(device)
    before = digest(tensor)
    places = [*range(0, PIECE + 21, 61), PIECE - 1, PIECE, PIECE + 20]
    for place in places:
        tensor.data[place] ^= 64
        assert not torch.equal(digest(tensor), before)
        tensor.data[place] ^= 64
    assert torch.equal(digest(tensor), before)
    words = torch.randint(0, 2**31, (PIECE // 8,))
    before = digest(words.to(device))
    for distance in (1, 2, 3, 4, 64, 512, 1024):
        moved = words.clone()
        moved[100], moved[100 + distance] = words[100 + distance], words[100]
        assert not torch.equal(digest(moved.to(device)), before)


def test_changes_that_cancel_in_sums(device: torch.device) -> None:
    """Pairs of edges of which one end moves up and another one down by as much."""
    edges = torch.randint(0, 1 << 20, (2, 1000), device=device)
    digests = [digest(edges)]
    for first, second in ((0, 1), (0, 2), (0, 512), (3, 998), (4, 6)):
        moved = edges.clone()
        moved[0, first] += 5
        moved[0, second] -= 5
        digests.append(digest(moved))
    digests += [digest(edges.flip(0)), digest(edges.flip(1)), digest(edges.roll(1, 1))]
    assert len({tuple(each.flatten().tolist()) for each in digests}) == len(digests)


def digest(tensor: Tensor) -> Tensor:
    digests = torch.zeros(
        (*_C.count_content_pieces([tensor]), 2), dtype=torch.int64, device=tensor.device
    )
    content = _C.Content(tensors=[tensor], are_edge_indices=[True], digests=digests)
    content.write(launch_on(tensor.device))
    return digests


def test_many_tensors(device: torch.device) -> None:
    """More than one launch takes, of which each one is compared with its own digests."""
    tensors = [torch.arange(i * 77, device=device) for i in range(260)]
    check = ContentCheck(tensors)
    assert check.is_unchanged(tensors)
    peergraph.synchronize(device)
    tensors[170].data[-1] = 0
    if device.type == "cpu":
        assert not check.is_unchanged(tensors)
        return
    assert check.is_unchanged(tensors)
    with pytest.raises(RuntimeError, match=f"^edge_type or x {NOT_COUNTED}"):
        peergraph.synchronize(device)
    assert not check.is_unchanged(tensors)


def test_some_tensors_of_a_check(device: torch.device) -> None:
    """Some tensors are compared with their own digests alone, in any order and more than once."""
    base = torch.randint(0, 200, (2, 5001), device=device)
    tensors = [view(base).clone() for view in VIEWS.values()]
    tensors += [torch.zeros((9, 4), device=device).t(), torch.arange(7, device=device)]
    for written in range(len(tensors)):
        if tensors[written].numel() == 0:
            continue
        check = ContentCheck(tensors)
        tensors[written].data[..., -1] += 1
        others = [i for i in range(len(tensors)) if i != written]
        for positions in (others, others[::-1], [*others, *others], []):
            assert check.is_unchanged([tensors[i] for i in positions], positions)
        peergraph.synchronize(device)
        assert changed(check, tensors[written], written)


def test_counted_writes_are_told_at_once(device: torch.device) -> None:
    tensor = torch.arange(6, device=device)
    check = ContentCheck([tensor])
    tensor.add_(0)
    assert not check.is_unchanged([tensor])
    check = ContentCheck([tensor])
    tensor.data = tensor.clone()
    assert not check.is_unchanged([tensor])
    peergraph.synchronize(device)


@pytest.mark.gpus(1)
def test_an_error_comes_once_and_from_any_operation_cuda() -> None:
    edge_index = torch.zeros((2, 50_000), dtype=torch.int64, device=GPU)
    ids = torch.zeros(9, dtype=torch.int64, device=GPU)
    check, other = ContentCheck([edge_index]), ContentCheck([ids])
    edge_index.data[1, 7] = 1
    assert check.is_unchanged([edge_index])
    torch.cuda.synchronize(GPU)
    with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}.*pass a new tensor"):
        other.is_unchanged([ids])
    # Which tensors had been written is not known: all are looked at anew.
    assert not other.is_unchanged([ids])
    assert not check.is_unchanged([edge_index])
    assert ContentCheck([edge_index]).is_unchanged([edge_index])
    peergraph.synchronize(GPU)


@pytest.mark.gpus(1)
def test_streams_cuda() -> None:
    """Digests of one stream are read on another one, and their memory is not used before."""
    aside = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
    edges = torch.randint(0, 99, (2, 100_000), device=GPU)
    for _ in range(50):
        aside.wait_stream(torch.cuda.current_stream(GPU))
        with torch.cuda.stream(aside):
            check = ContentCheck([edges])
        torch.cuda.current_stream(GPU).wait_stream(aside)
        torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        assert check.is_unchanged([edges])
        del check
        with torch.cuda.stream(aside):
            torch.full((7, 2), -1, device=GPU)
    peergraph.synchronize(GPU)


@pytest.mark.gpus(1)
def test_captured_comparisons_cuda() -> None:
    """A graph compares at each replay; one that also writes the digests follows the tensor."""
    edges = torch.randint(0, 99, (2, 3000), device=GPU)
    check = ContentCheck([edges])
    compares, fresh = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(compares):
        assert check.is_unchanged([edges])
    with torch.cuda.graph(fresh):
        inner = ContentCheck([edges])
        assert inner.is_unchanged([edges])
    del check
    for _ in range(2):
        compares.replay()
        fresh.replay()
    peergraph.synchronize(GPU)
    edges.copy_(edges.flip(1))
    fresh.replay()
    peergraph.synchronize(GPU)
    compares.replay()
    with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
        peergraph.synchronize(GPU)


@pytest.mark.gpus(1)
def test_a_write_before_the_last_result_is_shown_at_the_end_cuda() -> None:
    script = """
import torch
from peergraph.memory import ContentCheck

ids = torch.zeros(9, dtype=torch.int64, device="cuda:0")
check = ContentCheck([ids])
ids.data[0] = 1
assert check.is_unchanged([ids])
torch.cuda.synchronize()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert NOT_COUNTED in done.stderr
