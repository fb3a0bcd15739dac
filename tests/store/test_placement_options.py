"""Options of placement: unknown names, defaults, documentation."""

from __future__ import annotations

import inspect

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


def test_given_values_replace_defaults() -> None:
    assert complete_options({"plan": "host", "memory_budget": 5}) == {
        **complete_options({}),
        "plan": "host",
        "memory_budget": 5,
    }
