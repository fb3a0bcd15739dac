"""A failure in a loop of cases names its case."""

from __future__ import annotations

import pytest

from tests.named_case import named_case


def test_failures_name_the_case() -> None:
    with pytest.raises(ValueError, match="0 is 1") as failure, named_case("width", 7):
        raise ValueError("0 is 1")
    assert failure.value.__notes__ == ["in the case width, 7"]
    with (
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE") as failure,
        named_case("x"),
        pytest.raises(ValueError, match="x"),
    ):
        pass
    assert failure.value.__notes__ == ["in the case x"]
    with pytest.raises(pytest.skip.Exception), named_case("x"):
        pytest.skip("no device")
