"""Several cases within one of pytest: all of them run, and a failure names its case."""

from __future__ import annotations

import pytest

from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

pytest_plugins = ["pytester"]
RAN: list[tuple[int, str]] = []


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


@named_cases(("number", "letter"), pairwise([1, 2], ["a", "b"]))
def add(number: int, letter: str, more: str) -> None:
    RAN.append((number, letter + more))


@named_cases(("number", "word"), [(1, "one"), (4, "four")])
def only_odd(number: int, word: str) -> None:
    if number % 2 == 0:
        pytest.fail(f"even {word}")


def test_all_values_run_with_the_fixtures() -> None:
    RAN.clear()
    add(more="c")
    assert sorted(RAN) == [(1, "ac"), (1, "bc"), (2, "ac"), (2, "bc")]


def test_a_failure_names_the_values() -> None:
    with pytest.raises(pytest.fail.Exception, match="even four") as failure:
        only_odd()
    assert failure.value.__notes__ == ["in the case number=4, word='four'"]


@named_cases("word", ["a", "b"])
@pytest.mark.parametrize("number", [1, 2])
def test_with_parameters_and_fixtures(
    word: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert word in "ab"
    assert number in (1, 2)
    monkeypatch.setenv("PEERGRAPH_WORD", word)


def test_subtests_run_all_values(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from tests.named_case import named_cases

        @named_cases("number", [1, 2, 3, 4])
        def test_odd(number, tmp_path):
            assert number % 2 and tmp_path.exists()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly")
    result.stdout.fnmatch_lines(["*[[]number=2[]]*", "*[[]number=4[]]*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_wrong_arguments() -> None:
    with pytest.raises(AssertionError, match="has no argument"):
        named_cases("other", [1])(only_odd)
    with pytest.raises(AssertionError, match="expected at least one value"):
        named_cases("number", [])
    with pytest.raises(AssertionError, match="marks"):
        named_cases("number", [pytest.param(1, marks=pytest.mark.gpus(1))])
