"""A failure in a loop of cases names its case."""

from __future__ import annotations

import pytest

from tests.cases import case


def test_failures_name_the_case() -> None:
    with pytest.raises(AssertionError, match="in the case width, 7: .*0 is 1"), case("width", 7):
        raise ValueError("0 is 1")
    with (
        pytest.raises(AssertionError, match="in the case x: .*DID NOT RAISE"),
        case("x"),
        pytest.raises(ValueError, match="x"),
    ):
        pass
    with pytest.raises(pytest.skip.Exception), case("x"):
        pytest.skip("no device")
