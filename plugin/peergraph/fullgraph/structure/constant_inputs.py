"""Results that are kept while the tensors that they were made from do not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.fullgraph.layout.content_digest import current_digest
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

_Result = TypeVar("_Result", bound=Tensor)


class _Input:
    """A tensor that came before, and what it held when it came last."""

    def __init__(self, tensor: Tensor, on_death: Callable[[Any], None]) -> None:
        self.reference = weakref.ref(tensor, on_death)
        self.content: object = None


class ConstantInputs:
    """Recognises inputs that come again unchanged, and keeps what was made from them.

    An input is constant if it is a leaf that needs no gradient: features of nodes, weights of
    edges. What is made from it is kept from its second use on, so that results of dropout and of
    hidden layers without gradients, which come once, take no memory and are not read. Whether it
    has changed since, by whatever means, is told by a digest of its content, which reads it once.
    Inputs are held weakly: what was made from an input goes with it. All ranks recognise the same
    inputs, since all run the same script, and agree on which have changed.

    Args:
        group: the ranks.
    """

    def __init__(self, group: Ranks) -> None:
        self._group = group
        self._noted: dict[int, _Input] = {}
        self._results: dict[tuple[int, ...], dict[Hashable, tuple[Any, int]]] = {}

    def note(self, *inputs: Tensor) -> bool:
        """Returns whether all inputs are constant and came before. Collective if they are.

        What was made from inputs that have changed since is dropped.
        """
        noted = [self._note(tensor) for tensor in inputs]
        if not all(noted):
            return False
        changed = [tensor for tensor in inputs if self._has_changed(tensor)]
        with self._group.collective("comparison of features of which sums are kept"):
            has_changed = any(self._group.all_gather(bool(changed)))
        if has_changed:
            self._drop_results(*map(id, inputs))
        return True

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
        results = self._results.setdefault(tuple(map(id, inputs)), {})
        entry = results.get(key)
        if entry is None or entry[0]._version != entry[1]:
            with torch.inference_mode(False), torch.no_grad():
                tensor = make()
            entry = results[key] = tensor, tensor._version
        result: _Result = entry[0]
        return result

    @property
    def num_kept(self) -> int:
        """Number of results that are kept."""
        return sum(map(len, self._results.values()))

    def _note(self, tensor: Tensor) -> bool:
        if tensor.requires_grad or not tensor.is_leaf or tensor.is_inference():
            return False
        key = id(tensor)
        noted = self._noted.get(key)
        if noted is not None and noted.reference() is tensor:
            return True
        self._drop(key)
        self._noted[key] = _Input(tensor, lambda _: self._drop(key))
        return False

    def _has_changed(self, tensor: Tensor) -> bool:
        """Returns whether a noted input is not what it was when this was last called for it."""
        noted, content = self._noted[id(tensor)], _content_of(tensor)
        last, noted.content = noted.content, content
        return last is not None and last != content

    def _drop(self, key: int) -> None:
        self._noted.pop(key, None)
        self._drop_results(key)

    def _drop_results(self, *keys: int) -> None:
        for inputs in [inputs for inputs in self._results if not set(keys).isdisjoint(inputs)]:
            del self._results[inputs]


def _content_of(tensor: Tensor) -> object:
    """Returns what is equal as long as a tensor holds the same: a digest of what is on the device.

    The content of rows that are not on the device is an object that does not change: other rows
    are another object. Rows that are read where the user has them are compared by a digest as well.
    """
    if isinstance(tensor, PartitionedTensor) and hasattr(tensor, "_content"):
        store = tensor._content.store
        is_users = store is not None and store.is_users
        return tensor._content, store.digest() if is_users else None
    return current_digest(tensor._local if type(tensor) is PartitionedTensor else tensor)
