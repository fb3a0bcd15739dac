"""Functions of another package are replaced, and put back as they were."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.integration import Patches


class Base:
    def double(self, value: int) -> int:
        """Twice the value."""
        return 2 * value


class Inheriting(Base):
    pass


def add_one(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) + 1


@pytest.mark.parametrize("owner", [Base, Inheriting])
def test_a_method_is_replaced_and_restored(owner: type[Base]) -> None:
    before, own = owner.double, "double" in vars(owner)
    patches = Patches("torch", "2.13")
    assert not patches
    patches.replace(owner, "double", add_one)
    assert patches
    assert owner().double(3) == 7
    assert owner.double.__doc__ == "Twice the value."
    assert inspect.signature(owner.double) == inspect.signature(before)
    patches.undo()
    assert not patches
    assert owner.double is before
    assert ("double" in vars(owner)) == own


def _size(x: Tensor) -> int:
    return x.numel()


def doubled_size(x: Tensor) -> int:
    return 2 * _size(x)


def _script(x: Tensor) -> int:
    return doubled_size(x)


def test_torchscript_compiles_the_original() -> None:
    patches = Patches("torch", "2.13")
    patches.replace(sys.modules[__name__], "doubled_size", add_one)
    try:
        assert _script(torch.zeros(3)) == 7
        assert torch.jit.script(_script)(torch.zeros(3)) == 6
    finally:
        patches.undo()


def test_an_attribute_of_a_module_is_set_and_restored() -> None:
    module = ModuleType("module")
    module.limit = 3
    patches = Patches("torch", "2.13")
    patches.set(module, "limit", 4)
    patches.set(module, "limit", 5)
    assert module.limit == 5
    patches.undo()
    assert module.limit == 3


def test_a_missing_function_names_both_versions() -> None:
    patches = Patches("torch", "1.2.3")
    with pytest.raises(AttributeError, match=r"torch 2\S+ has no Base\.gone.*written for 1\.2\.3"):
        patches.replace(Base, "gone", add_one)
    with pytest.raises(AttributeError, match=r"has no tests.*\.gone"):
        patches.set(inspect.getmodule(Base), "gone", 1)
    with pytest.raises(AttributeError, match="unknown version"):
        Patches("no_such_package", "1").set(Base, "gone", 1)
    assert not patches
