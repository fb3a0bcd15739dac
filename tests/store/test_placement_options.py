"""Options of placement: unknown names, defaults, documentation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from peergraph.store import PlacementOptions, Store
from peergraph.store.placement.options import complete_options


@pytest.mark.parametrize("function", [Store.build, Store.load])
def test_unknown_options_are_named(function: object) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'budget'.*memory_budget"):
        function(None, budget=3)  # type: ignore[operator]


def test_every_option_has_a_default_and_a_description() -> None:
    complete = complete_options({})
    assert complete.keys() == PlacementOptions.__annotations__.keys()
    assert (complete["plan"], complete["hotness"]) == ("auto", "out_degree")
    text = inspect.getdoc(PlacementOptions) or ""
    build = inspect.getdoc(Store.build) or ""
    for name in complete:
        assert f"{name}:" in text
        assert f"``{name}``" in build


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2"])
def test_wrong_numbers_of_exchanged_batches(count: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="batches_per_exchange must be a"):
        complete_options({"machines": "shard", "batches_per_exchange": count})


def test_whole_stores_exchange_no_batches() -> None:
    with pytest.raises(ValueError, match=r'batches_per_exchange is for machines="shard"'):
        complete_options({"batches_per_exchange": 2})


def test_given_values_replace_defaults() -> None:
    assert complete_options({"plan": "host", "memory_budget": 5}) == {
        **complete_options({}),
        "plan": "host",
        "memory_budget": 5,
    }
