"""Random operations on partitioned tensors give the user's rows the same numbers at any number of
ranks, and in one process within `keyed_random`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peergraph.fullgraph import PartitionedTensor, distribute, keyed_random
from peergraph.fullgraph.random import seeds
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases, make_inputs, make_layout

CPU = torch.device("cpu")


def seeded(case: Case) -> Case:
    """The case with torch's seed set; on plain tensors with the numbers of partitioned ones."""

    def run(i: Inputs) -> Any:
        torch.manual_seed(3)
        with nullcontext() if isinstance(i.x, PartitionedTensor) else keyed_random():
            return case(i)

    return run


def fill(method: str, *arguments: Any) -> Callable[[Inputs], Tensor]:
    return lambda i: getattr(torch.empty_like(i.x), method)(*arguments)


def with_checkpoint(i: Inputs) -> list[Tensor]:
    """The gradient, for which the masks are computed again from the generator's restored state."""

    def run(x: Tensor) -> Tensor:
        return F.dropout(F.rrelu(F.dropout(x, 0.3), training=True).sigmoid(), 0.5)

    results = []
    for reentrant in (False, True):
        x = i.x.detach().requires_grad_()
        checkpoint(run, x, use_reentrant=reentrant).sum().backward()
        results.append(x.grad)
    return results


def autocast_dropout(i: Inputs) -> Tensor:
    """The mask does not depend on the type."""
    return F.dropout(i.x.bfloat16(), 0.5).double()


FUNCTIONS: dict[str, Case] = {
    "dropout": lambda i: [F.dropout(i.x, 0.3), F.dropout(i.x, 0.3), F.dropout(i.h, 0.9)],
    "dropout of one column": lambda i: [F.dropout(i.s), F.dropout(i.v)],
    "dropout in place": lambda i: F.dropout(i.x * 2, 0.3, inplace=True),
    "dropout of all and of none": lambda i: [F.dropout(i.x, 1.0), F.dropout(i.x, 0.0)],
    "dropout in evaluation": lambda i: F.dropout(i.x, 0.3, training=False),
    "nn.Dropout": lambda i: [nn.Dropout(0.3)(i.x), nn.Dropout(0.3, inplace=True)(i.x * 2)],
    "torch.dropout": lambda i: [torch.dropout(i.x, 0.3, True), torch.dropout_(i.x * 2, 0.3, True)],
    "native_dropout": lambda i: torch.native_dropout(i.x, 0.3, True),
    "native_dropout in evaluation": lambda i: torch.native_dropout(i.x, 0.3, False),
    "dropout of channels": lambda i: [nn.Dropout1d(0.4)(i.h), F.dropout2d(i.h, 0.4)],
    "dropout of rows": lambda i: F.dropout1d(i.x, 0.4),
    "feature_dropout": lambda i: [
        torch.feature_dropout(i.h, 0.4, True),
        torch.feature_dropout_(i.h * 2, 0.4, True),
        F.dropout2d(i.h, 1.0),
    ],
    "alpha_dropout": lambda i: [
        nn.AlphaDropout(0.3)(i.x),
        torch.alpha_dropout_(i.x * 2, 0.3, True),
    ],
    "feature_alpha_dropout": lambda i: nn.FeatureAlphaDropout(0.3)(i.h),
    "dropout of bfloat16": autocast_dropout,
    "dropout of a selection": lambda i: [F.dropout(i.x[i.mask]), F.dropout(i.x[i.ids])],
    "dropout of merged dimensions": lambda i: F.dropout(i.h.reshape(-1, 3)),
    "dropout of dimensions exchanged": lambda i: F.dropout(i.h.transpose(1, 2)),
    "checkpoint": with_checkpoint,
    "bernoulli": lambda i: [
        torch.bernoulli(i.x.detach().sigmoid()),
        torch.bernoulli(i.x.detach(), p=0.2),
        torch.bernoulli(i.x.detach().float().sigmoid()),
    ],
    "bernoulli_": lambda i: [
        (i.x * 1).bernoulli_(0.4),
        i.mask.clone().bernoulli_(0.4),
        torch.empty_like(i.x).bernoulli_(i.s.detach().sigmoid()),
        torch.empty_like(i.x).bernoulli_(i.b.detach().sigmoid()),
    ],
    "rand_like": lambda i: [torch.rand_like(i.x), torch.rand_like(i.x, dtype=torch.float32)],
    "randn_like": lambda i: i.x + torch.randn_like(i.x) * 0.1,
    "randint_like": lambda i: [
        torch.randint_like(i.x, 5),
        torch.randint_like(i.labels, 3, 9),
        torch.randint_like(i.x, -3, 9, dtype=torch.int64),
    ],
    "uniform_": fill("uniform_", -1, 3),
    "normal_": fill("normal_", 1, 2),
    "exponential_": fill("exponential_", 2.0),
    "log_normal_": fill("log_normal_"),
    "cauchy_": fill("cauchy_"),
    "geometric_": fill("geometric_", 0.3),
    "random_": lambda i: [
        torch.empty_like(i.x).random_(7),
        torch.empty_like(i.x).random_(3, 9),
        torch.empty_like(i.labels).random_(),
    ],
    "normal": lambda i: [
        torch.normal(i.x.detach(), 2.0),
        torch.normal(0.0, i.s.detach().abs()),
        torch.normal(i.x.detach(), i.y.detach().abs()),
    ],
    "rrelu": lambda i: [
        F.rrelu(i.x, training=True),
        nn.RReLU(inplace=True)(i.x * 1),
        torch.rrelu(i.x, training=True),
        torch.rrelu_(i.x * 1),
        F.rrelu(i.x),
    ],
    "gumbel_softmax": lambda i: [F.gumbel_softmax(i.x), F.gumbel_softmax(i.x, 0.5, hard=True)],
    "own generator": lambda i: torch.empty_like(i.x).uniform_(
        generator=torch.Generator().manual_seed(8)
    ),
}
if Version(torch.__version__) >= Version("2.10"):
    FUNCTIONS["own generator of rand_like"] = lambda i: torch.rand_like(
        i.x, generator=torch.Generator().manual_seed(8)
    )
CASES = {name: seeded(case) for name, case in FUNCTIONS.items()}


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)


def _masks_and_warnings(seed_by_rank: bool) -> tuple[Tensor, Tensor, int, str]:
    layout = make_layout(Group.current(timeout=60))
    torch.manual_seed(5 + layout.group.rank * seed_by_rank)
    x = distribute(torch.ones(13, 4), layout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = F.dropout(x).full_tensor(), F.dropout(x).full_tensor()
    texts = [str(w.message) for w in caught if "generators" in str(w.message)]
    torch.manual_seed(77)
    drawn = seeds.shared_seed(layout.group)
    return first, second, drawn, " ".join(texts)


@pytest.mark.parametrize("seed_by_rank", [False, True])
def test_ranks_take_the_generator_of_rank_0(seed_by_rank: bool) -> None:
    results = run_ranks(_masks_and_warnings, 3, seed_by_rank)
    with keyed_random():
        torch.manual_seed(5)
        expected = [F.dropout(torch.ones(13, 4)), F.dropout(torch.ones(13, 4))]
    for rank, (*masks, drawn, texts) in enumerate(results):
        assert torch.equal(torch.stack(masks), torch.stack(expected))
        assert drawn == results[0][2]
        assert ("call torch.manual_seed with the same seed" in texts) == (
            seed_by_rank and rank == 0
        )


def _draws_of_short_lived_generators() -> list[int]:
    group = Group.current(timeout=60)
    first = torch.Generator().manual_seed(8)
    drawn = [seeds.shared_seed(group, first)]
    del first
    # Objects of one rank alone decide which address the next generator gets.
    generators = [torch.Generator() for _ in range(3 * group.rank)]
    for _ in range(100):
        drawn.append(seeds.shared_seed(group, torch.Generator().manual_seed(8)))
    assert len(generators) == 3 * group.rank
    return [int(seed) for seed in drawn]


def test_generators_that_do_not_live_long() -> None:
    drawn = run_ranks(_draws_of_short_lived_generators, 3)
    assert drawn == [[drawn[0][0]] * 101] * 3


def test_calls_differ_and_seeds_repeat() -> None:
    x = distribute(make_inputs(CPU).x, make_layout(Group.current(device=CPU)))
    torch.manual_seed(1)
    first, second = (F.dropout(x).full_tensor() for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(F.dropout(x).full_tensor(), first)
    assert not torch.equal(first, second)


def test_no_mask_is_kept() -> None:
    """Forward saves nothing for backward."""
    x = distribute(make_inputs(CPU).x, make_layout(Group.current(device=CPU))).requires_grad_()
    saved: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        F.dropout(x)
    assert saved == []


def test_second_derivative() -> None:
    x = distribute(make_inputs(CPU).x, make_layout(Group.current(device=CPU))).requires_grad_()
    out = F.dropout(x * x, 0.5)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second.to_local() * x.detach().to_local(), gradient.to_local())


def test_a_dropped_nan_is_zero() -> None:
    x = distribute(torch.full((13, 50), float("nan")), make_layout(Group.current(device=CPU)))
    result = F.dropout(x).to_local()
    assert bool((result[~result.isnan()] == 0).all())
    assert 200 < int(result.isnan().sum()) < 450


def test_rejects() -> None:
    x = distribute(make_inputs(CPU).x, make_layout(Group.current(device=CPU)))
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
        F.dropout(x, 1.5)
    with pytest.raises(NotImplementedError, match="rows are partitioned along dimension 1"):
        F.dropout1d(x.t(), 0.5)
    with pytest.raises(NotImplementedError, match="multinomial"):
        torch.multinomial(x.sigmoid(), 2)
