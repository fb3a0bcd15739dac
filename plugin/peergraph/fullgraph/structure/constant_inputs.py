"""Results that are kept while the tensors that they were made from do not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

_Versions = tuple[int, ...]
_Result = TypeVar("_Result", bound=Tensor)


class ConstantInputs:
    """Recognises inputs that come again unchanged, and keeps what was made from them.

    An input is constant if it is a leaf that needs no gradient: features of nodes, weights of
    edges. What is made from it is kept from its second use on, so that results of dropout and of
    hidden layers without gradients, which come once, take no memory. Inputs are held weakly: what
    was made from an input goes with it. All ranks recognise the same inputs, since all run the same
    script.
    """

    def __init__(self) -> None:
        self._noted: dict[int, tuple[weakref.ref[Tensor], _Versions]] = {}
        self._kept: dict[tuple[int, ...], dict[Hashable, tuple[Any, int]]] = {}

    def note(self, *inputs: Tensor) -> bool:
        """Returns whether all inputs are constant and came before, as they are now."""
        noted = [self._note(tensor) for tensor in inputs]
        return all(noted)

    def keep(
        self, inputs: tuple[Tensor, ...], key: Hashable, make: Callable[[], _Result]
    ) -> _Result:
        """Returns what `make` returned at the first call for these inputs and this key.

        The result must not be changed; one that was changed all the same is made again. It is made
        without autograd and outside of inference mode, so that it can serve gradients later.

        Args:
            inputs: for which :meth:`note` returned True.
            key: what is made.
            make: called at the first time.
        """
        results = self._kept.setdefault(tuple(map(id, inputs)), {})
        found = results.get(key)
        if found is None or found[0]._version != found[1]:
            with torch.inference_mode(False), torch.no_grad():
                made = make()
            found = results[key] = made, made._version
        result: _Result = found[0]
        return result

    @property
    def num_kept(self) -> int:
        """Number of results that are kept."""
        return sum(map(len, self._kept.values()))

    def clear(self) -> None:
        """Drops all results."""
        self._noted.clear()
        self._kept.clear()

    def _note(self, tensor: Tensor) -> bool:
        if tensor.requires_grad or not tensor.is_leaf:
            return False
        local = tensor._local if type(tensor) is PartitionedTensor else tensor
        if tensor.is_inference() or local.is_inference():
            return False
        key, versions = id(tensor), (tensor._version, local._version)
        noted = self._noted.get(key)
        if noted is not None and noted[0]() is tensor and noted[1] == versions:
            return True
        self._drop(key)
        self._noted[key] = weakref.ref(tensor, lambda _: self._drop(key)), versions
        return False

    def _drop(self, key: int) -> None:
        self._noted.pop(key, None)
        for inputs in [inputs for inputs in self._kept if key in inputs]:
            del self._kept[inputs]
