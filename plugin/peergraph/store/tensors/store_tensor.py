"""Tensors whose values stay in the store and are read when an operation asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from peergraph.store.tensors.without_storage import WithoutStorage

if TYPE_CHECKING:
    from peergraph.store.store import Store

Handler = TypeVar("Handler", bound=Callable[..., Any])

_HANDLERS: dict[Any, list[Callable[..., Any]]] = {}


def implements(operation: Any) -> Callable[[Handler], Handler]:
    """Registers what an ATen operation does with store tensors.

    The function may return ``NotImplemented``; another one registered for the operation is tried
    then, and in the end it runs on whole plain tensors.
    """

    def register(handler: Handler) -> Handler:
        _HANDLERS.setdefault(operation, []).append(handler)
        return handler

    return register


class StoreTensor(WithoutStorage):
    """A ``torch.Tensor`` that holds no values: they stay in a :class:`peergraph.store.Store`.

    Shape and dtype are real; the device is where results are wanted, by default the store's. An
    operation that selects rows of a table gathers just those; any other operation reads the whole
    tensor to the device and runs on it.
    Results are ordinary tensors: a slice is a copy, not a view. ``x[ids] = values``,
    ``x.index_put_`` and ``x.copy_`` write to the store, for all ranks; every other in-place
    operation raises ``NotImplementedError``.

    ``copy.deepcopy`` and pickling give another handle of the same shared values; ``clone()``
    gives a plain tensor of one's own.
    """

    store: Store

    @classmethod
    def _wrap(
        cls,
        store: Store,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Self:
        near = store.device if device is None else device
        tensor: Self = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=near)
        tensor.store = store
        return tensor

    def handle(self) -> Self:
        """Another tensor object of the same shared values."""
        raise NotImplementedError

    def whole(self, device: torch.device | None = None) -> Tensor:
        """All values as a plain tensor on ``device`` (default: this tensor's). Synchronises."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for handler in _HANDLERS.get(func, ()):
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _refuse_writes(func, args, kwargs)
        args, kwargs = plain((args, kwargs))
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.handle()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        # Printing must not read a table that may be larger than this process's memory.
        dtype = str(self.dtype).removeprefix("torch.")
        what = f"{self._source()}, {list(self.shape)}, {dtype}, device='{self.device}'"
        return f"{type(self).__name__}({what})"

    def _source(self) -> str:
        raise NotImplementedError

    def data_ptr(self) -> int:
        """There is no single address: raises ``RuntimeError``."""
        raise RuntimeError(
            f"{type(self).__name__} has no data_ptr: its values lie in several memory regions; "
            "read them into a plain tensor with clone()"
        )

    def is_shared(self) -> bool:
        """Always true: the store is shared by the ranks and their worker processes."""
        return True

    def share_memory_(self) -> Self:
        """Nothing to do: the values are shared."""
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """Always false: as a whole the tensor is in no single allocation."""
        return False

    def pin_memory(self, device: Any = None) -> Self:
        """Nothing to do: what is gathered lands on the store's device, and can be pinned there."""
        return self


def plain(tree: Any) -> Any:
    """The same nested structure, its store tensors read whole."""
    if isinstance(tree, StoreTensor):
        return tree.whole()
    if isinstance(tree, Tensor):
        return tree
    return tree_map_only(StoreTensor, lambda tensor: tensor.whole(), tree)


def _refuse_writes(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for argument, value in _bind(func._schema.arguments, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            targets = value if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(target, StoreTensor) for target in targets):
                raise NotImplementedError(
                    f"{func} writes in place to a tensor that is shared by all ranks; "
                    "use x[ids] = values, or work on x.clone()"
                )


def _bind(arguments: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for position, argument in enumerate(arguments):
        yield argument, args[position] if position < len(args) else kwargs.get(argument.name)


@implements(torch.ops.aten.detach.default)
@implements(torch.ops.aten.alias.default)
def _detach(tensor: StoreTensor) -> StoreTensor:
    return tensor.handle()


@implements(torch.ops.aten._to_copy.default)
def _to_copy(
    tensor: StoreTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    # Read straight to the target: a table on the GPU need not fit beside itself to go to the CPU.
    whole = tensor.whole(device)
    return whole.to(dtype=dtype, memory_format=memory_format or torch.preserve_format)


@implements(torch.ops.aten.clone.default)
def _clone(tensor: StoreTensor, *, memory_format: torch.memory_format | None = None) -> Any:
    # `whole` is a fresh tensor already.
    if memory_format in (None, torch.preserve_format, torch.contiguous_format):
        return tensor.whole()
    return NotImplemented
