"""Steps as CUDA graphs: the same losses, the same random numbers, nothing read on the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.aggregate import layers
from peergraph.fullgraph import FullGraph, PartitionedTensor, capture, distribute
from peergraph.fullgraph.random.kernels import dropout_rows, fill_random, keep_rows
from peergraph.fullgraph.random.seeds import StepSeeds
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES, EDGES, WIDTH, CLASSES = 200, 1500, 12, 5
EDGE = ("_N", "_E", "_N")


class Gcn(nn.Module):
    def __init__(self, graph: FullGraph) -> None:
        super().__init__()
        self.structure = graph.structures[EDGE]
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        h = self._layer(self.first, x)
        return self._layer(self.last, F.dropout(self.norm(h).relu(), 0.5, self.training))

    def _layer(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return layers.gcn(
            self.structure, x, weight=linear.weight, bias=linear.bias, add_self_loops=True
        )


def make_step(device: torch.device, adam: bool = True) -> Callable[[], Tensor]:
    """A step of training by Adam or SGD, the same at each call of this."""
    torch.manual_seed(3)
    group = Group.current(device)
    edges = torch.randint(NODES, (2, EDGES))
    graph = FullGraph.build(group, {"_N": NODES}, {EDGE: edges})
    layout = graph.node_layouts["_N"]
    x = distribute(torch.randn(NODES, WIDTH), layout)
    y = distribute(torch.randint(CLASSES, (NODES,)), layout)
    mask = distribute(torch.rand(NODES) < 0.6, layout)
    model = Gcn(graph).to(device)
    on_gpu = device.type == "cuda"
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.02)
    if adam:
        optimizer = torch.optim.Adam(model.parameters(), 0.02, capturable=on_gpu)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x)[mask], y[mask])
        loss.backward()
        optimizer.step()
        return loss

    torch.manual_seed(4)
    return step


def test_losses_are_those_of_steps_that_are_run(device: torch.device) -> None:
    """Dropout included: warm-up, capture and replays draw the seeds that the steps would."""
    step = make_step(device)
    losses = [step().detach() for _ in range(10)]
    run = capture(make_step(device), device=device)
    captured = []
    for number in range(10):
        captured.append(run())
        assert run.is_captured == (device.type == "cuda" and number >= 3)
    assert not any(loss.requires_grad for loss in captured)
    torch.testing.assert_close(torch.stack(captured), torch.stack(losses), rtol=1e-5, atol=1e-6)
    assert len({float(loss) for loss in captured}) == 10


def test_steps_between_replays(device: torch.device) -> None:
    """Evaluation outside of the graph sees the parameters of the replays; both draw seeds."""

    def losses(captured: bool) -> list[Tensor]:
        step = make_step(device)
        run = capture(step, warmup=2, device=device) if captured else step
        results = []
        for _ in range(6):
            results += [run().detach(), step().detach()]
        return results

    torch.testing.assert_close(losses(True), losses(False), rtol=1e-5, atol=1e-6)


def _run_on_ranks() -> list[float]:
    run = capture(make_step(torch.device("cpu")), device="cpu")
    return [float(run()) for _ in range(3)]


def test_cpu_ranks_run_the_step() -> None:
    expected = torch.tensor([_run_on_ranks()] * 2)
    torch.testing.assert_close(torch.tensor(run_ranks(_run_on_ranks, 2)), expected)


def test_results_are_copies() -> None:
    x = torch.ones(3, requires_grad=True)
    result = capture(lambda: {"loss": (x * 2).sum(), "name": "a"}, device="cpu")()
    assert result["name"] == "a"
    assert not result["loss"].requires_grad


def test_warmup_must_reach_the_second_call() -> None:
    with pytest.raises(ValueError, match="warmup must be at least 2, got 1"):
        capture(lambda: None, warmup=1, device="cpu")


def _capture_on_several() -> str:
    with pytest.raises(NotImplementedError, match="capture on 2 GPUs") as error:
        capture(lambda: None)
    return str(error.value)


@pytest.mark.gpus(2)
def test_several_gpus() -> None:
    run_ranks(_capture_on_several, 2, device="cuda")


def test_later_steps_read_nothing_but_their_seed() -> None:
    """What a step reads on the host, a GPU would be waited for."""
    step = make_step(torch.device("cpu"), adam=False)
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    names = [event.name for event in profile.events()]
    assert names.count("aten::_local_scalar_dense") == 1  # of the generator of the CPU
    assert "aten::nonzero" not in names
    assert "aten::equal" not in names


@contextmanager
def count_waits() -> Iterator[list[warnings.WarningMessage]]:
    """Within the context, a warning is noted for each time that the host waits for a GPU."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            yield waits
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpus(1)
@pytest.mark.parametrize("captured", [False, True])
def test_steps_wait_for_the_gpu_to_compare_contents_only(captured: bool) -> None:
    """Of the features of a kept sum, and of the mask in each of its two uses."""
    device = torch.device("cuda", 0)
    step = make_step(device)
    run = capture(step, device=device) if captured else step
    for _ in range(5):
        run()
    with count_waits() as waits:
        losses = [run() for _ in range(2)]
    assert len(waits) <= (0 if captured else 2 * 3)
    assert losses[0].item() != losses[1].item()


def _count_waits_of_steps() -> tuple[int, list[float]]:
    step = make_step(torch.device("cuda", torch.cuda.current_device()))
    for _ in range(4):
        step()
    with count_waits() as waits:
        losses = [step() for _ in range(2)]
    return len(waits), [float(loss) for loss in losses]


@pytest.mark.gpus(2)
def test_steps_of_ranks_wait_to_compare_contents_only() -> None:
    (waits, first), (_, second) = run_ranks(_count_waits_of_steps, 2, device="cuda")
    assert waits <= 2 * 3
    assert first == second


def test_a_captured_step_sees_writes_that_raise_no_version(device: torch.device) -> None:
    """A mask and features that are changed through ``.data`` between calls."""

    def losses(is_captured: bool) -> list[float]:
        torch.manual_seed(3)
        group = Group.current(device)
        graph = FullGraph.build(group, {"_N": NODES}, {EDGE: torch.randint(NODES, (2, EDGES))})
        layout = graph.node_layouts["_N"]
        x = distribute(torch.randn(NODES, WIDTH), layout)
        mask = distribute(torch.rand(NODES) < 0.6, layout)
        structure = graph.structures[EDGE]

        def step() -> Tensor:
            return layers.gcn(structure, x)[mask].square().mean()

        run = capture(step, device=device) if is_captured else step
        results = []
        for number in range(12):
            if number in (6, 7):
                mask.data.logical_not_()
            if number in (5, 9):
                x.data.mul_(1.5)
            results.append(float(run()))
        return results

    assert losses(True) == pytest.approx(losses(False), rel=1e-5)


@pytest.mark.gpus(1)
def test_what_cannot_be_captured() -> None:
    device = torch.device("cuda", 0)
    step = make_step(device)
    run = capture(lambda: step().item(), device=device)
    for _ in range(3):
        run()
    with pytest.raises(RuntimeError, match="could not be captured"):
        run()
    assert torch.rand(3, device=device).sum() < 3
    again = capture(make_step(device), device=device)
    assert len({float(again()) for _ in range(6)}) == 6


def seed_tensor(seed: int, device: torch.device) -> Tensor:
    return torch.tensor([seed], device=device)


def test_kernels_read_the_seed_from_memory(device: torch.device) -> None:
    ids, x, seed = torch.arange(40, device=device), torch.randn(40, 7, device=device), 2**63 - 2
    placed = seed_tensor(seed, device)
    for dtype in (torch.float32, torch.float64):
        rows = x.to(dtype)
        assert torch.equal(
            dropout_rows(rows, 0.4, 0, ids, placed), dropout_rows(rows, 0.4, seed, ids)
        )
        assert torch.equal(
            keep_rows(0.4, 0, ids, 7, dtype, placed), keep_rows(0.4, seed, ids, 7, dtype)
        )
        assert torch.equal(
            fill_random("normal", 0, ids, 7, dtype, placed),
            fill_random("normal", seed, ids, 7, dtype),
        )
    with pytest.raises(ValueError, match="device_seed must be one int64"):
        dropout_rows(x, 0.4, 0, ids, torch.zeros(2, dtype=torch.int64, device=device))


def random_steps(device: torch.device) -> tuple[PartitionedTensor, Callable[[], list[Tensor]]]:
    group = Group.current(device)
    graph = FullGraph.build(group, {"_N": NODES}, {EDGE: torch.randint(NODES, (2, EDGES))})
    x = distribute(torch.ones(NODES, 6), graph.node_layouts["_N"])
    own = torch.Generator().manual_seed(9)

    def step() -> list[Tensor]:
        drawn = [F.dropout(x, 0.5), torch.rand_like(x, generator=own), F.dropout1d(x)]
        return [rows.full_tensor() for rows in drawn]

    return x, step


def test_seeds_are_drawn_in_the_order_of_the_step(device: torch.device) -> None:
    """From the generators that the step draws from, once for each replay."""
    torch.manual_seed(1)
    _, step = random_steps(device)
    torch.manual_seed(2)
    expected = [step() for _ in range(3)]
    torch.manual_seed(1)
    _, step = random_steps(device)
    torch.manual_seed(2)
    seeds = StepSeeds(device)
    with seeds.count_draws():
        results = [step()]
    state = torch.get_rng_state()
    with seeds.capture_draws():
        step()
    assert torch.equal(torch.get_rng_state(), state)
    seeds.draw_again()
    assert seeds.values is not None
    values = seeds.values.tolist()
    assert len(set(values)) == 3
    torch.set_rng_state(state)
    assert values[0] == int(torch.randint(0, 2**63 - 1, ()))
    assert all(torch.equal(a, b) for a, b in zip(results[0], expected[0], strict=True))


def test_a_step_that_draws_more_than_before() -> None:
    _, step = random_steps(torch.device("cpu"))
    seeds = StepSeeds(torch.device("cpu"))
    with seeds.count_draws():
        step()
    with seeds.capture_draws():
        step()
        with pytest.raises(RuntimeError, match="more random operations than the 3"):
            step()


def test_random_operations_in_backward() -> None:
    """Such as torch.utils.checkpoint makes: their seed would be that of another place."""
    x, _ = random_steps(torch.device("cpu"))
    leaf = x.detach().requires_grad_()
    seeds = StepSeeds(torch.device("cpu"))
    with seeds.count_draws():
        F.dropout(leaf, 0.5)
    with pytest.raises(RuntimeError, match="checkpoint"), seeds.capture_draws():
        torch.utils.checkpoint.checkpoint(
            lambda rows: F.dropout(rows, 0.5).relu(), leaf, use_reentrant=False
        ).sum().backward()
