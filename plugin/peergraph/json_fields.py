"""Reads JSON from unknown sources; checks the name and the kind of each value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

_MAX_INT = 2**63 - 1


def parse_json(text: str | bytes, where: str) -> Any:
    """Parses JSON.

    Args:
        text: the JSON text.
        where: the name of the text, for errors.

    Raises:
        ValueError: the text is not JSON, is not UTF-8, is nested too deeply, or has an object with
            a key that occurs twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} occurs twice in one object")
        return members

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError(f"{where} is not valid: its JSON is nested too deeply") from None
    except ValueError as error:  # includes JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"{where} is not valid JSON: {error}") from error


class Fields:
    """The values of a JSON object. Every method raises a ValueError that names the value, what was
    expected and what was found.

    Args:
        value: the value, which must be an object.
        where: the name of the object in errors, such as ``"manifest.json: nodes[0]"``.
    """

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        if not isinstance(value, dict):
            what = where.removesuffix(": ")
            raise ValueError(f"{what} must be an object, got {_short(value)}")
        self._values: dict[str, Any] = value

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raises ValueError: the value of `key` is not what was expected."""
        raise ValueError(f"{self._at(key)} must be {expected}, got {_short(self._values.get(key))}")

    def only(self, *keys: str) -> None:
        """Raises ValueError if the object has other keys."""
        unknown = [key for key in self._values if key not in keys]
        if unknown:
            raise ValueError(f"{self.where} has an unknown key {unknown[0]!r}")

    def get(self, key: str) -> Any:
        """Returns the value, of any kind."""
        if key not in self._values:
            raise ValueError(f"{self.where} has no key {key!r}")
        return self._values[key]

    def has(self, key: str) -> bool:
        """Returns whether the object has the key, with a value that is not null."""
        return self._values.get(key) is not None

    def names(self) -> list[str]:
        """Returns all keys."""
        return list(self._values)

    def text(self, key: str) -> str:
        """Returns a string."""
        value = self.get(key)
        if not isinstance(value, str):
            self.fail(key, "a string")
        return value

    def one_of(self, key: str, names: Iterable[str]) -> str:
        """Returns a string that is one of `names`."""
        value, choices = self.text(key), list(names)
        if value not in choices:
            self.fail(key, f"one of {', '.join(choices)}")
        return value

    def flag(self, key: str) -> bool:
        """Returns true or false."""
        value = self.get(key)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def integer(self, key: str) -> int:
        """Returns an integer from 0 to 2**63 - 1."""
        value = self.get(key)
        if not _is_count(value):
            self.fail(key, "an integer from 0 to 2**63 - 1")
        return int(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """Returns a list of integers from 0 to 2**63 - 1."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or not all(map(_is_count, value)):
            self.fail(key, "a list of integers from 0 to 2**63 - 1")
        return tuple(value)

    def number(self, key: str) -> float:
        """Returns a finite number."""
        value = self.get(key)
        if not _is_number(value):
            self.fail(key, "a finite number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Returns a list of finite numbers."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or not all(map(_is_number, value)):
            self.fail(key, "a list of finite numbers")
        return tuple(value)

    def matrix(self, key: str) -> tuple[tuple[float, ...], ...]:
        """Returns a list of lists of finite numbers."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(row, (list, tuple)) and all(map(_is_number, row)) for row in value
        ):
            self.fail(key, "a list of lists of finite numbers")
        return tuple(map(tuple, value))

    def integer_lists(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Returns a list of lists of integers from 0 to 2**63 - 1."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(row, (list, tuple)) and all(map(_is_count, row)) for row in value
        ):
            self.fail(key, "a list of lists of integers from 0 to 2**63 - 1")
        return tuple(map(tuple, value))

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns a list of strings."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
            self.fail(key, "a list of strings")
        return tuple(value)

    def object(self, key: str) -> Fields:
        """Returns an object."""
        return Fields(self.get(key), self._at(key))

    def objects(self, key: str) -> list[Fields]:
        """Returns a list of objects."""
        return [Fields(value, f"{self._at(key)}[{i}]") for i, value in enumerate(self.items(key))]

    def entries(self, key: str, length: int) -> list[Fields]:
        """Returns a list of lists of `length` values, with the keys ``"0"``, ``"1"`` and so on."""
        entries = self.items(key)
        if not all(isinstance(e, (list, tuple)) and len(e) == length for e in entries):
            self.fail(key, f"a list of lists of {length}")
        return [
            Fields({str(at): value for at, value in enumerate(entry)}, f"{self._at(key)}[{i}]")
            for i, entry in enumerate(entries)
        ]

    def items(self, key: str) -> list[Any]:
        """Returns a list of any values."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)):
            self.fail(key, "a list")
        return list(value)

    def _at(self, key: str) -> str:
        return f"{self.where}{'' if self.where.endswith(': ') else '.'}{key}"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INT


def _is_number(value: Any) -> bool:
    return _is_count(abs(value)) if type(value) is int else _is_finite(value)


def _is_finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _short(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
