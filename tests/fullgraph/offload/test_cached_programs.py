"""Programs and dry runs that are cached between epochs belong to equal calls only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.aggregate import AttentionSum
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.functions import recording
from peergraph.fullgraph.offload.programs import program
from peergraph.fullgraph.offload.tensor.operations import UncacheableArgumentError, key_of
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.memory import Group

from .offloaded_runs import CLASSES, FEATURES, PLENTY, Data, make_graph, offload

HIDDEN = 8


class Model(nn.Module):
    """Two layers whose functions, arguments and modes the cases change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.second = nn.Linear(HIDDEN, CLASSES)
        self.p, self.factor = 0.3, 1.0
        self.activation: Callable[[Tensor], Tensor] = F.relu
        self.without_gradient = False
        self.heads = 2

    def forward(self, data: Data) -> Tensor:
        x = self.first(data.structure.spmm("copy_u", "sum", data.x))
        if self.without_gradient:
            with torch.no_grad():
                x = x * 2
        x = self.activation(x) * self.factor
        x = x.view(-1, self.heads, HIDDEN // self.heads).view(-1, HIDDEN)
        x = F.dropout(x, self.p, self.training)
        out: Tensor = self.second(data.structure.spmm("mul", "mean", x, data.weights))
        return out


def freeze(model: Model) -> None:
    model.first.weight.requires_grad_(False)


CHANGES: dict[str, Callable[[Model], Any]] = {
    "p": lambda model: setattr(model, "p", 0.6),
    "evaluation": lambda model: model.eval(),
    "function": lambda model: setattr(model, "activation", torch.tanh),
    "factor": lambda model: setattr(model, "factor", 2.0),
    "sign of zero": lambda model: setattr(model, "factor", -0.0),
    "integer factor": lambda model: setattr(model, "factor", 1),
    "view": lambda model: setattr(model, "heads", 4),
    "no_grad": lambda model: setattr(model, "without_gradient", True),
    "requires_grad": freeze,
    "dtype": lambda model: model.float(),
}


def make_model() -> Model:
    torch.manual_seed(1)
    return Model().double()


def step(model: Model, data: Data) -> list[Tensor]:
    """Returns the rows of labelled nodes and the gradients."""
    torch.manual_seed(5)
    model.zero_grad()
    if next(model.parameters()).dtype == torch.float32:
        data = Data(data.structure, data.x.float(), data.y, data.mask, data.weights.float())
    out = model(data)[data.mask]
    F.cross_entropy(out, data.y[data.mask]).backward()
    grads = [p.grad if p.grad is not None else torch.zeros(()) for p in model.parameters()]
    return [out.full_tensor().detach(), *(grad.clone() for grad in grads)]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts steps of programs that are made and functions that run on few rows."""
    counts = {"steps": 0, "dry_runs": 0}
    make, run = program.Step.__init__, recording.Call.run_on_probes

    def counting_init(self: Any, *args: Any) -> None:
        counts["steps"] += 1
        make(self, *args)

    def tried(self: Any) -> Any:
        counts["dry_runs"] += 1
        return run(self)

    with monkeypatch.context() as patch:
        patch.setattr(program.Step, "__init__", counting_init)
        patch.setattr(recording.Call, "run_on_probes", tried)
        yield counts


@pytest.mark.parametrize("change", CHANGES)
def test_changed_models_get_other_programs(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are those of rows on the device, in turn with and without a change."""
    resident, layout = make_graph(Group.current("cpu"))
    data = offload(resident, layout, Chunks.even(layout, 3), PLENTY)
    plain, changed = make_model(), make_model()
    CHANGES[change](changed)
    for _ in range(2):
        for model in (plain, changed):
            for actual, expected in zip(step(model, data), step(model, resident), strict=True):
                assert actual.dtype == expected.dtype
                tolerance = 1e-5 if actual.dtype == torch.float32 else 1e-9
                torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    with counted(monkeypatch) as counts:
        step(plain, data)
        step(changed, data)
    assert counts["steps"] == 0 or change == "dtype"  # which makes other features in each step
    assert counts["dry_runs"] <= 2 or change == "dtype"  # of dropout, which draws a seed


def test_models_of_one_shape_share_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model with the same functions needs no program and no dry run of its own."""
    resident, layout = make_graph(Group.current("cpu"))
    data = offload(resident, layout, Chunks.even(layout, 3), PLENTY)
    first, second = make_model(), make_model()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.5)
    check_parameters(tuple(second.parameters()), layout.group)
    step(first, data)
    step(first, data)
    with counted(monkeypatch) as counts:
        result = step(second, data)
    assert counts == {"steps": 0, "dry_runs": 1}
    for one, other in zip(result, step(second, resident), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def into_features(data: Data) -> Tensor:
    """An earlier result is computed after its operand has been written to."""
    x = data.x
    earlier = x * 2
    torch.add(data.x * 1.5, data.x * 2.5, out=x)
    x.sum()
    return earlier + x


@torch.no_grad()
def one_of_two_results(data: Data) -> Tensor:
    """Two results of the same cached dry run are not views of each other."""
    first, second = torch.tanh(data.x * 1.5), torch.tanh(data.x * 2.5)
    view = first.view_as(second)
    second.add_(1)
    return second + view


@pytest.mark.parametrize("compute", [into_features, one_of_two_results])
def test_changes_in_place(compute: Callable[[Data], Tensor]) -> None:
    """Functions that are known write to no other rows than those that they are given."""
    resident, layout = make_graph(Group.current("cpu"))
    data = offload(resident, layout, Chunks.even(layout, 3), PLENTY)
    for _ in range(2):
        actual, expected = compute(data).full_tensor(), compute(resident).full_tensor()
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_attention_with_another_slope() -> None:
    """The arguments of functions on edges belong to what is kept."""
    resident, layout = make_graph(Group.current("cpu"))
    data = offload(resident, layout, Chunks.even(layout, 3), PLENTY)
    weight = torch.linspace(-1, 1, 8 * FEATURES, dtype=torch.float64).view(FEATURES, 8)

    def attend(to: Data, slope: float) -> Tensor:
        x = to.x @ weight
        left, right = x[:, :2] * 1.0, x[:, 2:4] * 2.0
        out: Tensor = to.structure.attention(
            AttentionSum(x.view(-1, 2, 4), left, right, negative_slope=slope)
        )
        return out.full_tensor()

    for slope in (0.2, 0.7, -0.0, 0.2):
        torch.testing.assert_close(attend(data, slope), attend(resident, slope))


def test_keys_of_arguments() -> None:
    """Arguments that are equal to Python but not to a function differ."""
    values = [True, 1, 1.0, 0.0, -0.0, (1,), [1], {"a": 1}, None, torch.float32, slice(1), "1"]
    keys = [key_of(value) for value in values]
    assert len(set(keys)) == len(keys)
    with pytest.raises(UncacheableArgumentError):
        key_of([object()])
