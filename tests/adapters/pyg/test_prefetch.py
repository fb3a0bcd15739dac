"""Batches made ahead by a thread are those that the loop would have made."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NeighborSampler

import peergraph_pyg
from peergraph_pyg.loader import patches
from peergraph_pyg.prefetching import prefetcher
from peergraph_pyg.prefetching.prefetcher import PrefetchIterator, PrefetchOptions, plain_iterator
from peergraph_pyg.prefetching.thread_state import _idle_streams, record_stream
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.named_case import named_cases


@pytest.fixture(autouse=True)
def _no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PEERGRAPH_PREFETCH", raising=False)
    gc.collect()
    before = threading.active_count()
    yield
    gc.collect()
    assert threading.active_count() == before


def node_loader(device: torch.device | str, **options: Any) -> NeighborLoader:
    shared = peergraph_pyg.share(random_data(), device=device)
    return NeighborLoader(shared, [3, 2], **{"batch_size": 7, "shuffle": True, **options})


def end_workers() -> None:
    """Ends workers that persist; collected with their queues, each would be waited for 5 s."""
    for each in gc.get_objects():
        if type(each) is _MultiProcessingDataLoaderIter:
            each._shutdown_workers()


def contents(batch: Any) -> dict[str, Any]:
    """The values of a batch by name, tensors on the CPU."""
    found = {}
    for storage in batch.stores:
        for name, value in storage.items():
            found[f"{storage._key} {name}"] = value.cpu() if isinstance(value, Tensor) else value
    return found


def assert_equal(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        a, b = contents(a), contents(b)
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, Tensor):
                assert torch.equal(value, b[name]), name
            else:
                assert value == b[name], name


def epochs(loader: Any, depth: int, count: int = 2) -> tuple[list[Any], Tensor]:
    """The batches of some epochs, and a random number of afterwards."""
    torch.manual_seed(5)
    ahead = peergraph_pyg.prefetch(loader, depth)
    return [batch for _ in range(count) for batch in ahead], torch.rand(3)


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
def test_same_batches(depth: int, device: torch.device) -> None:
    loader = node_loader(device)
    expected, number = epochs(loader, 0)
    found, same_number = epochs(loader, depth)
    assert_equal(expected, found)
    assert torch.equal(number, same_number)
    data = random_data()
    for batch in found:
        check_batch(batch, data)


@pytest.mark.parametrize(("priority", "max_blocks"), [(0, 0), (-1, 1), (0, 40)])
def test_priority_and_blocks_change_no_batch(
    priority: int, max_blocks: int, device: torch.device
) -> None:
    loader = node_loader(device)
    wanted, _ = epochs(loader, 0)
    torch.manual_seed(5)
    ahead = peergraph_pyg.prefetch(loader, 2, priority=priority, max_blocks=max_blocks)
    assert_equal([batch for _ in range(2) for batch in ahead], wanted)


@named_cases(
    ("options", "error", "match"),
    [
        ({"priority": 1}, ValueError, "priority must be -1 or 0, got 1"),
        ({"priority": "low"}, TypeError, "priority must be an int"),
        ({"max_blocks": -1}, ValueError, "max_blocks must be 0 or more, got -1"),
        ({"max_blocks": 0.5}, TypeError, "max_blocks must be an int"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        peergraph_pyg.prefetch(node_loader("cpu"), 2, **options)


def test_default_options() -> None:
    options = peergraph_pyg.prefetch(node_loader("cpu"), 2).prefetch_options
    assert options == PrefetchOptions(priority=-1, max_blocks=None)
    assert options.blocks_on(torch.device("cpu")) == 0
    assert PrefetchOptions(max_blocks=5).blocks_on(torch.device("cuda", 0)) == 5


@pytest.mark.gpus(1)
def test_default_limit_of_blocks() -> None:
    device = torch.device("cuda", 0)
    count = torch.cuda.get_device_properties(device).multi_processor_count
    assert PrefetchOptions().blocks_on(device) == count > 0
    assert PrefetchOptions(max_blocks=0).blocks_on(device) == 0


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_same_links(negatives: str, device: torch.device) -> None:
    """Negative samples come from torch's generator too."""
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=data.edge_index[:, :50],
        neg_sampling=negatives,
        batch_size=9,
        shuffle=True,
    )
    assert_equal(epochs(loader, 0)[0], epochs(loader, 3)[0])


def test_same_hetero(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_hetero(), device=device)
    loader = NeighborLoader(shared, [3, 2], input_nodes="paper", batch_size=6, shuffle=True)
    assert_equal(epochs(loader, 0)[0], epochs(loader, 2)[0])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("filter_per_worker", [False, True])
def test_workers(filter_per_worker: bool, persistent: bool) -> None:
    options = {"filter_per_worker": filter_per_worker, "persistent_workers": persistent}

    def batches(depth: int) -> list[Any]:
        # Workers that persist remember their random state: new ones for each run.
        found = epochs(node_loader("cpu", num_workers=2, **options), depth)[0]
        end_workers()
        return found

    assert_equal(batches(0), batches(2))
    for batch in peergraph_pyg.prefetch(node_loader("cpu", num_workers=2, **options), 2):
        assert batch.num_nodes > 0
        break
    end_workers()


def test_persistent_workers_start_again() -> None:
    loader = peergraph_pyg.prefetch(
        node_loader("cpu", num_workers=1, persistent_workers=True, shuffle=False), 2
    )
    unfinished = iter(loader)
    next(unfinished)
    ids = torch.cat([batch.input_id for batch in loader])
    assert torch.equal(ids, torch.arange(60))
    with pytest.raises(StopIteration):
        next(unfinished)
    end_workers()


def test_random_transform(device: torch.device) -> None:
    def noise(batch: Data) -> Data:
        batch.noise = torch.rand(4) + torch.randn_like(torch.ones(4)) + torch.empty(4).uniform_()
        batch.order = torch.randperm(batch.num_nodes)
        return batch

    loader = node_loader(device, transform=noise)
    assert_equal(epochs(loader, 0)[0], epochs(loader, 2)[0])


def test_random_transform_on_the_gpu_is_reproducible(device: torch.device) -> None:
    loader = node_loader(
        device, transform=lambda batch: batch.update({"n": torch.rand_like(batch.x)})
    )
    assert_equal(epochs(loader, 2)[0], epochs(loader, 2)[0])


def test_loop_that_draws_random_numbers(device: torch.device) -> None:
    """They are the loop's own, and everything is determined by the seed."""
    loader = node_loader(device)

    def run(delay: float) -> tuple[list[Any], list[Tensor]]:
        torch.manual_seed(3)
        batches, numbers = [], []
        for _ in range(2):
            for batch in peergraph_pyg.prefetch(loader, 2):
                time.sleep(delay)
                batches.append(batch)
                numbers.append(torch.rand(2))
        return batches, numbers

    (first, numbers), (second, same_numbers) = run(0.0), run(0.003)
    assert_equal(first, second)
    assert torch.equal(torch.stack(numbers), torch.stack(same_numbers))
    assert len(torch.cat(numbers).unique()) == 2 * len(numbers)
    assert not torch.equal(first[0].e_id, first[9].e_id)


def test_random_state_after_break(device: torch.device) -> None:
    loader = node_loader(device)

    def number_after_two(depth: int) -> Tensor:
        torch.manual_seed(1)
        for i, _ in enumerate(peergraph_pyg.prefetch(loader, depth)):
            if i == 1:
                break
        return torch.rand(3)

    assert torch.equal(number_after_two(0), number_after_two(3))


def test_generator_of_the_loader(device: torch.device) -> None:
    generator = torch.Generator()
    loader = node_loader(device, generator=generator)

    def order(depth: int) -> Tensor:
        generator.manual_seed(4)
        return torch.cat([batch.input_id for batch in peergraph_pyg.prefetch(loader, depth)])

    assert torch.equal(order(0), order(2))


def test_depth_is_a_bound() -> None:
    made: list[int] = []
    loader: Any = DataLoader(range(20), batch_size=1, collate_fn=lambda ids: made.append(ids[0]))
    iterator = iter(peergraph_pyg.prefetch(loader, 3))
    for taken in range(1, 5):
        next(iterator)
        deadline = time.monotonic() + 20
        while len(made) < taken + 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert made == list(range(taken + 3))


def test_lengths(device: torch.device) -> None:
    loader = node_loader(device)
    ahead = peergraph_pyg.prefetch(loader, 2)
    assert len(ahead) == len(iter(ahead)) == len(loader) == len(list(ahead)) == 9
    assert ahead.batch_size == 7
    assert ahead([5, 6]).batch_size == 2
    assert peergraph_pyg.prefetch(loader).depth == 1
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ahead.nonsense


def test_exception_reaches_the_loop(device: torch.device) -> None:
    def fail_at_three(batch: Data) -> Data:
        if 3 * 7 in batch.input_id:
            raise KeyError("the fourth batch")
        return batch

    loader = node_loader(device, shuffle=False, transform=fail_at_three)
    iterator = iter(peergraph_pyg.prefetch(loader, 2))
    for _ in range(3):
        next(iterator)
    with pytest.raises(KeyError, match="the fourth batch") as caught:
        next(iterator)
    trace = "".join(traceback.format_exception(caught.value))
    assert "fail_at_three" in trace
    # As without prefetching, the loop may go on.
    assert next(iterator).input_id[0] == 4 * 7
    assert len(list(iterator)) == 4
    with pytest.raises(StopIteration):
        next(iterator)


def test_wrong_seed_is_an_index_error(device: torch.device) -> None:
    loader = node_loader(device, input_nodes=torch.tensor([3, 60]))
    with pytest.raises(IndexError, match="60"):
        list(peergraph_pyg.prefetch(loader, 2))


def test_error_of_the_thread_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "_make", lambda *_: 1 / 0)
    iterator = iter(peergraph_pyg.prefetch(node_loader("cpu"), 2))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == []


def test_break_and_garbage(device: torch.device) -> None:
    """Each way to leave a loop ends its thread; the fixture counts them."""
    ahead = peergraph_pyg.prefetch(node_loader(device), 2)
    before = threading.active_count()
    for _ in range(20):
        for _ in ahead:
            break
    assert threading.active_count() == before
    iterator = iter(ahead)
    assert threading.active_count() == before + 1
    iterator.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert list(iterator) == []
    cycle: list[Any] = [iter(ahead)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="training failed"):
        _fail_in_the_loop(ahead)
    gc.collect()
    assert threading.active_count() == before


def _fail_in_the_loop(loader: Any) -> None:
    for _ in loader:
        raise RuntimeError("training failed")


def test_two_loops_at_once(device: torch.device) -> None:
    loader = node_loader(device, shuffle=False)
    ahead = peergraph_pyg.prefetch(loader, 2)
    data = random_data()
    pairs = 0
    for first, second in zip(ahead, ahead, strict=True):
        assert torch.equal(first.input_id, second.input_id)
        check_batch(first, data)
        check_batch(second, data)
        pairs += 1
    assert pairs == len(loader)
    for outer in ahead:
        assert sum(inner.batch_size for inner in ahead) == 60
        check_batch(outer, data)


def test_grad_modes_are_those_of_the_loop() -> None:
    seen = []

    def look(batch: Data) -> Data:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return batch

    ahead = peergraph_pyg.prefetch(node_loader("cpu", transform=look, batch_size=60), 1)
    list(ahead)
    with torch.no_grad():
        list(ahead)
    with torch.inference_mode():
        list(ahead)
    assert seen == [(True, False), (False, False), (False, True)]
    assert torch.is_grad_enabled()


def test_closing_the_store_is_told_to_loops(device: torch.device) -> None:
    before = threading.active_count()
    loader = node_loader(device)
    iterator = iter(peergraph_pyg.prefetch(loader, 5))
    next(iterator)
    peergraph_pyg.store_of(loader.data).close()
    assert threading.active_count() == before
    # Not as at the end of an epoch.
    with pytest.raises(RuntimeError, match="this store has been closed: there are no more batches"):
        next(iterator)
    assert list(iterator) == []


def test_a_loop_that_has_ended_stays_so_when_its_store_is_closed() -> None:
    loader = node_loader("cpu")
    iterator = iter(peergraph_pyg.prefetch(loader, 1))
    assert len(list(iterator)) == 9
    peergraph_pyg.store_of(loader.data).close()
    assert list(iterator) == []


def test_a_loop_that_waits_for_a_batch_is_told_of_closing() -> None:
    going = threading.Event()

    def wait(batch: Data) -> Data:
        going.wait()
        return batch

    loader = node_loader("cpu", transform=wait)
    iterator = iter(peergraph_pyg.prefetch(loader, 1))
    errors = []

    def loop() -> None:
        try:
            list(iterator)
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=loop)
    waiting.start()
    closing = threading.Thread(target=peergraph_pyg.store_of(loader.data).close)
    closing.start()
    going.set()
    for thread in (waiting, closing):
        thread.join()
    assert errors == ["this store has been closed: there are no more batches of it"]


def test_copied_and_pickled_prefetchers() -> None:
    ahead = peergraph_pyg.prefetch(node_loader("cpu"), 4)
    list(ahead)
    for other in (copy.copy(ahead), pickle.loads(pickle.dumps(ahead))):
        assert other.depth == 4
        assert len(list(other)) == 9


def test_exit_of_the_interpreter_with_an_open_loop() -> None:
    program = """
import torch, peergraph_pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
data = peergraph_pyg.share(Data(x=torch.rand(50, 2), edge_index=torch.randint(50, (2, 99))),
                           device="cpu")
iterator = iter(peergraph_pyg.prefetch(NeighborLoader(data, [2], batch_size=3), 2))
print(next(iterator).batch_size)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.parametrize("depth", [-1, 1.5, True, "2"])
def test_wrong_depth(depth: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="depth must be"):
        peergraph_pyg.prefetch(node_loader("cpu"), depth)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = node_loader("cpu")
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "7")
    assert peergraph_pyg.prefetch(loader).depth == 7
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "many")
    with pytest.raises(ValueError, match="PEERGRAPH_PREFETCH must be .*'many'"):
        peergraph_pyg.prefetch(loader)


def test_cpu_loaders_do_not_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(iter(node_loader("cpu")), PrefetchIterator)
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "2")
    assert not isinstance(iter(node_loader("cpu")), PrefetchIterator)


class OtherSampler(BaseSampler):
    """Stands where a sampler of the user's own would."""

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError


def test_which_loaders_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of stores on GPUs; without a GPU, only the device's name is looked at."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    store = peergraph_pyg.store_of(shared)
    sampler = NeighborSampler(shared, [2])
    own = [
        NeighborLoader(shared, [2]),
        LinkNeighborLoader(shared, [2]),
        NodeLoader(shared, sampler),
        LinkLoader(peergraph_pyg.stores(store), sampler),
    ]
    other = [NodeLoader(shared, OtherSampler()), NodeLoader(random_data(), OtherSampler())]
    assert not any(patches._prefetches(loader) for loader in own + other)
    monkeypatch.setattr(store, "device", torch.device("cuda:0"))
    assert all(patches._prefetches(loader) for loader in own)
    assert not any(patches._prefetches(loader) for loader in other)


@pytest.fixture
def all_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of stores on CPUs do as those of stores on GPUs do."""
    monkeypatch.setattr(patches, "_prefetches", lambda loader: True)


@pytest.mark.usefixtures("all_prefetch")
def test_the_ordinary_loop(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    store = peergraph_pyg.store_of(shared)
    typed = peergraph_pyg.share(random_hetero(), device=device)
    links = {"batch_size": 90, "shuffle": True, "neg_sampling": "binary"}
    loaders = [
        NeighborLoader(shared, [3, 2], batch_size=7, shuffle=True),
        NeighborLoader(peergraph_pyg.stores(store), [3, 2], batch_size=7),
        NeighborLoader(typed, [3, 2], input_nodes="paper", batch_size=6, shuffle=True),
        LinkNeighborLoader(shared, [3, 2], **links),
    ]
    for loader in loaders:
        expected, number = epochs(loader, 0)
        torch.manual_seed(5)
        assert isinstance(iter(loader), PrefetchIterator)
        torch.manual_seed(5)
        found = [batch for _ in range(2) for batch in loader]
        assert_equal(expected, found)
        assert torch.equal(number, torch.rand(3))
        monkeypatch.setenv("PEERGRAPH_PREFETCH", "0")
        assert not isinstance(iter(loader), PrefetchIterator)
        monkeypatch.delenv("PEERGRAPH_PREFETCH")


@pytest.mark.usefixtures("all_prefetch")
def test_a_first_batch_alone(device: torch.device) -> None:
    """`next(iter(loader))` leaves nothing behind."""
    loader = node_loader(device)
    before = threading.active_count()
    torch.manual_seed(2)
    first, number = next(plain_iterator(loader)), torch.rand(1)
    torch.manual_seed(2)
    assert_equal([first], [next(iter(loader))])
    assert torch.equal(number, torch.rand(1))
    assert threading.active_count() == before


@pytest.mark.gpus(1)
def test_gpu_loaders_prefetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = node_loader("cuda:0")
    assert isinstance(iter(loader), PrefetchIterator)
    torch.manual_seed(5)
    found = [batch for _ in range(2) for batch in loader]
    assert_equal(epochs(loader, 0)[0], found)
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "0")
    assert not isinstance(iter(loader), PrefetchIterator)
    assert not isinstance(iter(peergraph_pyg.prefetch(loader)), PrefetchIterator)


@pytest.mark.gpus(1)
def test_a_graph_is_captured_in_the_loop() -> None:
    """What the thread does meanwhile, allocating memory too, neither fails nor breaks it."""
    data = random_data()
    loader = peergraph_pyg.prefetch(node_loader("cuda:0"), 2)
    x = torch.zeros(4, device="cuda:0")
    for count, batch in enumerate(loader):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
            time.sleep(0.02)
        graph.replay()
        check_batch(batch, data)
        assert x.tolist() == [count + 1.0] * 4


@pytest.mark.gpus(2)
def test_no_memory_is_taken_on_the_first_gpu() -> None:
    """A thread's work is on its store's GPU alone; processes of other GPUs stay away from GPU 0."""
    program = """
import torch, peergraph_pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
torch.cuda.set_device(1)
data = peergraph_pyg.share(Data(x=torch.rand(50, 2), edge_index=torch.randint(50, (2, 99))),
                           device="cuda:1")
before = torch._C._cuda_hasPrimaryContext(0)
for batch in peergraph_pyg.prefetch(NeighborLoader(data, [2], batch_size=3), 2):
    pass
print(torch._C._cuda_hasPrimaryContext(0) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


class Recorded:
    """Stands for a stream: what is recorded on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tensors: list[Tensor] = []
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(Tensor, "record_stream", lambda t, stream: stream.tensors.append(t))


class Slotted:
    """An object without a dict."""

    __slots__ = ("t",)

    def __init__(self, t: Tensor) -> None:
        self.t = t


def test_all_tensors_of_a_batch_change_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a transform has put them; each of them once."""
    x = [torch.full((1,), i) for i in range(10)]
    loader = node_loader("cpu")
    batch = Data(x=x[0], own=[x[1], {"a": (x[2],)}], again=x[0])
    batch._hidden = x[3]
    batch.thing = SimpleNamespace(t=x[4], deeper=Slotted(x[5]))
    batch.thing.itself = batch.thing
    x[6].of_it = x[7]
    made = (batch, {x[6]}, defaultdict(list, a=[x[8]]), "text", 5, None, loader.data)
    stream = Recorded(monkeypatch)
    record_stream(stream, made)  # type: ignore[arg-type]
    numbers = [int(t) for t in stream.tensors if t.dtype == torch.int64 and t.numel() == 1]
    assert sorted(numbers) == list(range(9))


def test_autocast_is_that_of_the_loop() -> None:
    seen = []

    def look(batch: Data) -> Data:
        seen.append((batch.x @ batch.x.t()).dtype)
        return batch

    ahead = peergraph_pyg.prefetch(node_loader("cpu", transform=look, batch_size=60), 1)
    list(ahead)
    with torch.autocast("cpu", torch.bfloat16):
        list(ahead)
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.gpus(1)
def test_memory_of_batches_is_not_reused_too_early() -> None:
    """A slow consumer must see its batch whole, though newer ones are made all the time."""
    data = random_data(2000, 40000)
    shared = peergraph_pyg.share(data, device="cuda:0")
    loader = NeighborLoader(shared, [5, 5], batch_size=100, shuffle=True)
    x = data.x.cuda()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for depth in (1, 4):
        for _ in range(3):
            for batch in peergraph_pyg.prefetch(loader, depth):
                torch.cuda._sleep(2_000_000)
                wrong += (batch.x != x[batch.n_id]).sum()
                del batch
    assert int(wrong) == 0


@pytest.mark.gpus(1)
def test_memory_is_bounded_where_the_loop_runs_ahead() -> None:
    """The loop queues work without waiting for it; batches must not pile up behind."""
    data = Data(x=torch.rand(1000, 1 << 14), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    shared = peergraph_pyg.share(data, device="cuda:0")
    loader = NeighborLoader(shared, [2], batch_size=50)
    list(peergraph_pyg.prefetch(loader, 2))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for batch in peergraph_pyg.prefetch(loader, 2):
        torch.cuda._sleep(20_000_000)
        del batch
    # 20 batches of 3 MiB; at most 2 in the making, 1 in use, and as many not yet given back, beside
    # the sampler's scratch memory.
    assert torch.cuda.max_memory_allocated() - before < 8 * 50 * 65536 + (16 << 20)


@pytest.mark.gpus(1)
def test_streams_are_used_again() -> None:
    loader = peergraph_pyg.prefetch(node_loader("cuda:0"), 2)
    for _ in range(5):
        list(loader)
    streams = len(_idle_streams[torch.device("cuda", 0), -1])
    for _ in range(5):
        list(loader)
    assert len(_idle_streams[torch.device("cuda", 0), -1]) == streams


@pytest.mark.gpus(1)
def test_values_written_before_the_loop_are_seen() -> None:
    shared = peergraph_pyg.share(random_data(), device="cuda:0")
    loader = peergraph_pyg.prefetch(NeighborLoader(shared, [3], batch_size=60), 2)
    for value in range(1, 6):
        torch.cuda._sleep(5_000_000)
        shared.y[torch.arange(60)] = torch.full((60,), value, device="cuda:0")
        for batch in loader:
            assert bool((batch.y == value).all())
