"""Batches that a thread of C++ makes ahead are those that the loop makes as it asks for them."""

from __future__ import annotations

import logging
import os
import random
import time
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from peergraph.sampling.neighbor import batch_thread
from peergraph_pyg import HardNegatives, InBatchNegatives
from peergraph_pyg.prefetching.native_iterator import NativeIterator
from peergraph_pyg.prefetching.prefetch_iterator import PrefetchIterator
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.adapters.pyg.prefetching.loops import assert_equal, epochs, node_loader
from tests.held_resources import check_no_growth, resident_bytes, resource_counts
from tests.memory.no_memory import functions_without_memory


def timed_data(seed: int) -> Data:
    """Times of nodes and of edges, weights, and rows of several dtypes."""
    data, random = random_data(seed=seed), torch.Generator().manual_seed(seed)
    data.time = torch.randint(0, 50, (data.num_nodes,), generator=random)
    data.edge_time = torch.randint(0, 50, (data.num_edges,), generator=random)
    data.weight = torch.rand(data.num_edges, generator=random)
    return data


def timed_hetero(seed: int) -> HeteroData:
    data, random = random_hetero(seed), torch.Generator().manual_seed(seed)
    for node_type in data.node_types:
        size = data[node_type].num_nodes
        data[node_type].time = torch.randint(0, 50, (size,), generator=random)
    for edge_type in data.edge_types:
        edges = data[edge_type].num_edges
        data[edge_type].weight = torch.rand(edges, generator=random)
    return data


def draw_loader(shared: Any, draw: random.Random) -> Any:
    """A loader with random options."""
    typed = isinstance(shared, HeteroData)
    kinds = ["directional", "directional", "induced", "bidirectional"]
    if peergraph_pyg.store_of(shared).device.type == "cuda":
        kinds.pop()  # PyG takes any of several edges between two nodes, on a GPU not the same ones
    options: dict[str, Any] = {
        "num_neighbors": draw.choice([[3, 2], [-1, 2], [2, 2, 2], [4]]),
        "batch_size": draw.choice([1, 7, 16]),
        "shuffle": draw.random() < 0.7,
        "drop_last": draw.random() < 0.3,
        "replace": draw.random() < 0.3,
        "disjoint": draw.random() < 0.4,
        "subgraph_type": draw.choice(kinds),
    }
    links = draw.random() < 0.4
    kind = draw.choice(["plain", "weighted", "temporal", "backward"])
    if kind == "weighted":
        options["weight_attr"] = "weight"
    elif kind == "temporal":
        options["time_attr"] = "time"
        options["temporal_strategy"] = draw.choice(["uniform", "last"])
    elif kind == "backward" and not links:
        options["neighbor_sampler"] = peergraph_pyg.NeighborSampler(
            shared,
            options.pop("num_neighbors"),
            sample_direction="backward",
            replace=options.pop("replace"),
            disjoint=options.pop("disjoint"),
            subgraph_type=options.pop("subgraph_type"),
        )
        options["num_neighbors"] = None
    if not links:
        size = 40 if typed else 60
        ids = torch.randint(0, size, (draw.choice([1, 30, 45]),))
        nodes = draw.choice([None, ids])
        if kind == "temporal" and draw.random() < 0.5:
            nodes = ids
            options["input_time"] = torch.randint(0, 50, (len(ids),))
        pair: Any = ("paper", nodes) if typed else nodes
        return NeighborLoader(shared, input_nodes=pair, **options)
    edge_type = ("author", "writes", "paper")
    if typed and draw.random() < 0.5:
        edge_type = ("paper", "cites", "paper")
    edges = (shared[edge_type] if typed else shared).edge_index[:, :40].cpu()
    if kind == "temporal":
        options["edge_label_time"] = torch.randint(0, 50, (40,))
    negatives = draw.choice([None, "binary", "triplet"])
    if negatives is not None:
        options["neg_sampling"] = NegativeSampling(negatives, draw.choice([1, 2]))
    if negatives != "triplet" and draw.random() < 0.5:
        options["edge_label"] = torch.randint(0, 3, (40,))
    return LinkNeighborLoader(
        shared, edge_label_index=(edge_type, edges) if typed else edges, **options
    )


@pytest.mark.parametrize("seed", range(40))
def test_any_options(seed: int, device: torch.device) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    data = timed_hetero(seed) if draw.random() < 0.4 else timed_data(seed)
    loader = draw_loader(peergraph_pyg.share(data, device=device), draw)
    expected, number = epochs(loader, 0)
    batches, same_number = epochs(loader, draw.choice([1, 2, 5]))
    assert_equal(expected, batches)
    assert torch.equal(number, same_number)


def ahead(loader: Any, depth: int = 2) -> NativeIterator:
    iterator = iter(peergraph_pyg.prefetch(loader, depth))
    assert isinstance(iterator, NativeIterator)
    return iterator


def batches_or_errors(iterator: Any) -> list[Any]:
    """All batches, with the text of an error in the place of its batch."""
    results: list[Any] = []
    while True:
        try:
            results.append(next(iterator))
        except StopIteration:
            return results
        except IndexError as error:
            results.append(str(error))


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("window", [None, 20])
def test_negatives_of_temporal_graphs(
    is_typed: bool, mode: str, window: int | None, device: torch.device
) -> None:
    """The loop draws them, and the thread the neighbours of theirs."""
    data = timed_hetero(3) if is_typed else timed_data(3)
    shared = peergraph_pyg.share(data, device=device)
    edge_type = ("author", "writes", "paper")
    edges = (shared[edge_type] if is_typed else shared).edge_index[:, :40].cpu()
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=(edge_type, edges) if is_typed else edges,
        edge_label_time=torch.randint(10, 50, (40,)),
        time_attr="time",
        neg_sampling=NegativeSampling(mode, 2),
        batch_size=7,
        shuffle=True,
        **({} if window is None else {"time_window": window}),
    )
    expected, number = epochs(loader, 0)
    assert len(list(ahead(loader))) == 6
    batches, same_number = epochs(loader, 2)
    assert_equal(expected, batches)
    assert torch.equal(number, same_number)


@pytest.mark.parametrize("is_temporal", [False, True])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("kind", [InBatchNegatives, HardNegatives])
def test_negatives_of_the_batch(
    kind: Any, mode: str, is_temporal: bool, device: torch.device
) -> None:
    shared = peergraph_pyg.share(timed_data(4), device=device)
    drawn = InBatchNegatives(2, mode)
    if kind is HardNegatives:
        lists = torch.randint(60, (60, 8))
        drawn = HardNegatives(lists, 2, mode)
        on_gpu = HardNegatives(lists.to(device), 2, mode)
    timed = {"edge_label_time": torch.randint(10, 50, (40,)), "time_attr": "time"}

    def loader(negatives: Any) -> LinkNeighborLoader:
        return LinkNeighborLoader(
            shared,
            [3, 2],
            edge_label_index=shared.edge_index[:, :40].cpu(),
            neg_sampling=negatives,
            batch_size=7,
            shuffle=True,
            **(timed if is_temporal else {}),
        )

    expected, number = epochs(loader(drawn), 0)
    assert len(list(ahead(loader(drawn)))) == 6
    batches, same_number = epochs(loader(drawn), 2)
    assert_equal(expected, batches)
    assert torch.equal(number, same_number)
    if kind is HardNegatives and device.type == "cuda":
        text = peergraph_pyg.explain(peergraph_pyg.prefetch(loader(on_gpu), 1))
        assert text.endswith("a thread of Python makes them, 1 ahead: lists of negatives on a GPU")


@pytest.mark.parametrize("depth", [1, 3])
def test_a_wrong_seed_fails_its_batch_alone(depth: int, device: torch.device) -> None:
    nodes = torch.arange(40)
    nodes[17], nodes[30] = 60, -1
    loader = node_loader(device, input_nodes=nodes, shuffle=False)

    def run(depth: int) -> list[Any]:
        torch.manual_seed(3)
        return batches_or_errors(iter(peergraph_pyg.prefetch(loader, depth)))

    expected, results = run(0), run(depth)
    assert [isinstance(each, str) for each in expected] == [i in (2, 4) for i in range(6)]
    for one, other in zip(expected, results, strict=True):
        if isinstance(one, str):
            assert one == other
        else:
            assert_equal([one], [other])


def test_batches_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no memory for the thread, the loop makes the batches."""
    loader = node_loader("cpu")
    expected, _ = epochs(loader, 0)
    monkeypatch.setattr(batch_thread, "torch_functions", lambda _: functions_without_memory())
    assert_equal(epochs(loader, 3)[0], expected)


def test_other_fanouts_between_batches(device: torch.device) -> None:
    loader = node_loader(device, batch_size=5)
    sampler, data = loader.node_sampler, random_data()
    iterator = ahead(loader)
    hops = []
    for number, batch in enumerate(iterator):
        check_batch(batch, data)
        hops.append(len(batch.num_sampled_edges))
        sampler.num_neighbors = [[2], [3, 2, 1]][number % 2]
    assert hops[:3] == [2, 2, 2]
    assert hops[3:] == [[1, 3][number % 2] for number in range(9)]


def test_other_attributes_between_batches(device: torch.device) -> None:
    loader = node_loader(device)
    iterator, data = ahead(loader), random_data()
    next(iterator)
    del loader.data.y
    loader.data.again = loader.data.x
    for batch in iterator:
        assert "y" not in batch
        assert torch.equal(batch.again, batch.x)
        assert batch.again.data_ptr() != batch.x.data_ptr()
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])


def test_reads_that_are_counted_from_a_batch_on(device: torch.device) -> None:
    loader = node_loader(device, batch_size=5)
    expected, _ = epochs(loader, 0, count=1)
    torch.manual_seed(5)
    iterator = ahead(loader)
    batches = [next(iterator) for _ in range(4)]
    with peergraph_pyg.store_of(loader.data).measure() as measured:
        batches += list(iterator)
    assert_equal(batches, expected)
    # Two were being made.
    assert measured.result().batches == (len(expected) - 4 - 2,)


def test_writes_of_the_loop_are_seen_two_batches_later() -> None:
    loader = node_loader("cpu", batch_size=5)
    iterator = ahead(loader, 1)
    values = []
    for number, batch in enumerate(iterator):
        values.append(set(batch.y.tolist()))
        time.sleep(0.01)
        loader.data.y[:] = torch.full((60,), 100 + number)
    assert all(values[i] <= {100 + i - 1, 100 + i - 2} for i in range(2, 12))


def test_a_forked_child_begins_its_own_iterations() -> None:
    loader = node_loader("cpu")
    iterator = ahead(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="forked"):
                next(iterator)
            iterator.close()
            del iterator
            if len(list(ahead(loader))) == 9:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(iterator)) == 8


def test_interrupts(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """A loop that goes on after an interrupt at any place gets right batches, each once."""
    loader, data = node_loader(device, shuffle=False, batch_size=3), random_data()
    places = [
        (NativeIterator, "_begin_output"),
        (NativeIterator, "_submit"),
        (batch_thread.BatchThread, "take"),
        (peergraph_pyg.NeighborSampler, "finished"),
    ]
    for owner, name in places:
        for when in ("before", "after"):
            iterator = ahead(loader, 2)
            batches = [next(iterator) for _ in range(3)]
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, interrupted(getattr(owner, name), when))
                with pytest.raises(KeyboardInterrupt):
                    next(iterator)
            batches += iterator
            for batch in batches:
                check_batch(batch, data)
                assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size].cpu())
            first = [int(batch.input_id[0]) for batch in batches]
            assert first == sorted(set(first))
            assert len(first) >= 20 - 2


def interrupted(function: Any, when: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            function(*args, **kwargs)
        raise KeyboardInterrupt

    return call


def test_closing_at_any_time(device: torch.device) -> None:
    loader = node_loader(device)
    for depth in (1, 4):
        for count in range(10):
            iterator = ahead(loader, depth)
            for _ in range(min(count, 9)):
                next(iterator)
            iterator.close()
            assert list(iterator) == []
    # Work spaces come back whole.
    expected, _ = epochs(loader, 0)
    assert_equal(epochs(loader, 4)[0], expected)


def test_many_batches_hold_no_more(device: torch.device) -> None:
    loader = node_loader(device, batch_size=2)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            for number, _ in enumerate(ahead(loader)):
                if number == 25:
                    break

    run(5)
    before, memory = resource_counts(), resident_bytes()
    run(60)
    check_no_growth(before)
    assert resident_bytes() - memory < 16 << 20


def test_loaders_whose_batches_need_python(device: torch.device) -> None:
    """Their batches are made ahead by a thread of Python."""
    shared = peergraph_pyg.share(random_data(), device=device)
    others = [
        node_loader(device, transform=lambda batch: batch),
        node_loader(device, transform_sampler_output=lambda output: output),
        NeighborLoader(peergraph_pyg.stores(peergraph_pyg.store_of(shared)), [2], batch_size=7),
    ]
    for loader in others:
        assert isinstance(iter(peergraph_pyg.prefetch(loader, 1)), PrefetchIterator)
    lazily = NeighborLoader(peergraph_pyg.lazy(shared), [2], batch_size=7)
    assert isinstance(iter(peergraph_pyg.prefetch(lazily, 1)), NativeIterator)


@pytest.mark.gpus(1)
def test_errors_that_kernels_reported_before_reach_the_loop() -> None:
    loader = node_loader("cuda")
    iterator = ahead(loader, 1)
    next(iterator)
    loader.data.x[torch.tensor([60], device="cuda")]  # reported, not raised
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match="60"):
        list(iterator)


class OwnIterator(NeighborLoader):  # type: ignore[misc]
    def __iter__(self) -> Any:
        yield from super().__iter__()


def test_explanations(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a loader is what its iterator is; no batch is made, no number is drawn."""
    monkeypatch.delenv("PEERGRAPH_PREFETCH", raising=False)
    shared = peergraph_pyg.share(random_data(), device=device)
    state = torch.get_rng_state()
    plain = NeighborLoader(shared, [2], batch_size=16)
    transformed = NeighborLoader(shared, [2], batch_size=16, transform=lambda batch: batch)
    turns = ", or the loop where its steps are shorter then" if device.type == "cuda" else ""
    by_loop = "batches: the loop makes them as it asks for them"
    texts = {
        peergraph_pyg.prefetch(plain, 3): "batches: a thread of C++ makes them, 3 ahead",
        peergraph_pyg.prefetch(plain, 0): f"{by_loop}: the depth is 0",
        peergraph_pyg.prefetch(transformed): (
            f"batches: a thread of Python makes them, 1 ahead{turns}: a transform"
        ),
        peergraph_pyg.prefetch(transformed, 2): (
            "batches: a thread of Python makes them, 2 ahead: a transform"
        ),
        peergraph_pyg.prefetch(OwnIterator(shared, [2])): (
            f"batches: a thread of Python makes them, 1 ahead{turns}: an iterator of its own"
        ),
        NeighborLoader(random_data(), [2]): f"{by_loop}: PyG's own code, the data is not shared",
        NeighborLoader(random_data(), [2], num_workers=2): (
            "batches: 2 workers of torch make them"
        ),
    }
    on_cpu = f"{by_loop}: the store is on the CPU; prefetch(loader) makes them ahead"
    on_gpu = "batches: a thread of C++ makes them, 1 ahead"
    texts[plain] = on_cpu if device.type == "cpu" else on_gpu
    kinds = {"a thread of C++": NativeIterator, "a thread of Python": PrefetchIterator}
    for loader, text in texts.items():
        assert peergraph_pyg.explain(loader) == text
        assert torch.equal(torch.get_rng_state(), state)
    for loader, text in texts.items():
        kind = next((kinds[who] for who in kinds if who in text), None)
        assert kind is None or isinstance(iter(loader), kind)
    of_stateful = peergraph_pyg.explain(peergraph_pyg.stateful(plain))
    if device.type == "cpu":
        assert of_stateful == on_cpu
    else:
        assert of_stateful.startswith("batches: a thread of Python makes them, 1 ahead")
    monkeypatch.setenv("PEERGRAPH_PREFETCH", "0")
    if device.type == "cuda":
        assert peergraph_pyg.explain(plain) == f"{by_loop}: the depth is 0"
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got list"):
        peergraph_pyg.explain([1, 2])


class LoggedLoader(NeighborLoader):  # type: ignore[misc]
    """A loader of this name is logged by no other test."""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"transform": lambda batch: batch}, "a transform"),
        ({"subgraph_type": "bidirectional"}, "subgraph_type='bidirectional'"),
        ({"pin_memory": True}, "pin_memory"),
        ({}, None),
    ],
)
def test_the_log_says_why_a_loader_needs_python(
    options: dict[str, Any], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    caplog.set_level(logging.INFO, "peergraph")
    list(peergraph_pyg.prefetch(LoggedLoader(shared, [2], batch_size=16, **options)))
    lines = [r.getMessage() for r in caplog.records if r.name.endswith("explain_log")]
    line = f"LoggedLoader: a thread of Python makes the batches: {reason}"
    assert lines == ([] if reason is None else [line])
