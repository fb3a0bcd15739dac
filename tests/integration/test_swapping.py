"""Modules of a model change their class and stay the same objects."""

from __future__ import annotations

import pytest
import torch

from peergraph.integration import explain, is_explaining, layer_classes, note, swap_layers


class Fused(torch.nn.Module):
    framework_class: type[torch.nn.Module]


class FusedLinear(Fused, torch.nn.Linear):
    framework_class = torch.nn.Linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note(f"linear: {x.shape[0]} rows")
        assert is_explaining()
        return super().forward(x)


class UsersLinear(torch.nn.Linear):
    pass


CLASSES = layer_classes([FusedLinear, Fused, UsersLinear, 3], Fused, "framework_class")


def test_only_exact_classes_are_swapped() -> None:
    assert {torch.nn.Linear: FusedLinear} == CLASSES
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), UsersLinear(3, 1))
    weight = model[0].weight
    assert swap_layers(model, CLASSES) is model
    assert [type(layer) for layer in model] == [FusedLinear, torch.nn.ReLU, UsersLinear]
    assert model[0].weight is weight
    swap_layers(model, {fused: plain for plain, fused in CLASSES.items()})
    assert type(model[0]) is torch.nn.Linear


@pytest.mark.parametrize("call", [lambda model: swap_layers(model, CLASSES), explain])
def test_no_module(call: object) -> None:
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got str"):
        call("model")  # type: ignore[operator]


def test_explain_lists_the_steps_of_a_copy() -> None:
    model = swap_layers(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()), CLASSES)
    state = torch.get_rng_state()
    assert explain(model, torch.ones(5, 2)) == "linear: 5 rows"
    assert torch.equal(torch.get_rng_state(), state)
    assert not is_explaining()
    note("is dropped")
    assert explain(torch.nn.ReLU(), torch.ones(1)) == "ReLU: no layer of Peergraph ran"
