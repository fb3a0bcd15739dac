"""Tensors whose values stay in the store until an operation reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from peergraph.memory.region.free_memory import free_host_memory
from peergraph.store.store import Store
from peergraph.store.tensors.storageless_tensor import StoragelessTensor, dispatch_mode

Handler = TypeVar("Handler", bound=Callable[..., Any])

_HANDLERS: dict[Any, list[Callable[..., Any]]] = {}
_CPU = torch.device("cpu")


def implements(operation: Any) -> Callable[[Handler], Handler]:
    """Registers the implementation of an ATen operation for store tensors.

    If the function returns ``NotImplemented``, the next function that is registered for the
    operation runs. If there is none, the operation runs on materialized tensors.
    """

    def register(handler: Handler) -> Handler:
        _HANDLERS.setdefault(operation, []).append(handler)
        return handler

    return register


class StoreTensor(StoragelessTensor):
    """A ``torch.Tensor`` without values: they stay in a :class:`peergraph.store.Store`.

    Its device is the device of results, by default the store's. An operation that selects rows of a
    table gathers these rows; any other operation reads the entire tensor to the device and runs on
    it.

    Results are plain tensors with copied values, even if torch would return a view: writing to
    ``x[:10]``, ``x[:]``, ``x.T`` or ``x.view(...)`` does not change the store. ``x.detach()`` and
    ``x.data`` share the values of the store.
    ``x[ids] = values``, ``x.index_put_`` and ``x.copy_`` write to the store, for all ranks; every
    other in-place operation raises ``NotImplementedError``. ``x.numpy()`` and ``np.asarray(x)`` are
    read-only copies. Storages and DLPack, through which a write would be lost, are refused.

    ========================================  ====================================================
    ``copy.copy``                             another handle of the same values
    ``copy.deepcopy``                         a read-only handle: it reads what the store has then;
                                              writing to it raises ``RuntimeError``
    ``clone()``                               a plain tensor
    ``pickle``, ``torch.save``                the values, as a plain tensor on the CPU;
                                              ``MemoryError`` where they are more than the memory
                                              that is free
    ``multiprocessing`` (processes, queues)   a handle
    ========================================  ====================================================
    """

    store: Store
    read_only: bool = False
    """Whether writing raises an error. True for copies that ``copy.deepcopy`` made."""

    @classmethod
    def _wrap(
        cls,
        store: Store,
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        device: torch.device | None = None,
        **more: Any,
    ) -> Self:
        tensor = cls._make(shape, dtype, store.device if device is None else device, **more)
        tensor.store = store
        return tensor

    def _arguments(self) -> tuple[Any, ...]:
        """Returns the arguments with which the class makes an equal tensor."""
        raise NotImplementedError

    def handle(self) -> Self:
        """Returns another tensor object of the same shared values."""
        tensor: Self = _make_handle(type(self), self._arguments(), self.read_only)
        return tensor

    def materialize(self, device: torch.device | None = None) -> Tensor:
        """Returns all values as a plain tensor on ``device``, by default this tensor's.
        Synchronises.
        """
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        with dispatch_mode(func):
            for handler in _HANDLERS.get(func, ()):
                result = handler(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            _refuse_writes(func, args, kwargs)
            args, kwargs = materialize_all((args, kwargs))
            return func(*args, **kwargs)

    def __getitem__(self, key: Any) -> Tensor:
        rows: Tensor = super().__getitem__(key)
        if not rows._is_view() or rows.requires_grad:
            return rows
        tangent = unpack_dual(rows).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            return rows
        # Autograd treats a slice as a view: writing to it would make this tensor require gradients.
        return rows.data

    def __copy__(self) -> Self:
        return self.handle()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        tensor: Self = _make_handle(type(self), self._arguments(), True)
        return tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        num_bytes, free = self._num_bytes(), free_host_memory()
        if num_bytes > free:
            raise MemoryError(
                f"pickling {self!r} reads all its values, {num_bytes} bytes, and {free} are free; "
                "Store.save writes a store to a folder piece by piece"
            )
        values = self.materialize(_CPU).requires_grad_(self.requires_grad)
        return values.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def reduce_to_process(self) -> Any:
        """Pickles a handle: another process of the machine reads the same memory."""
        return _make_handle, (type(self), self._arguments(), self.read_only)

    def _num_bytes(self) -> int:
        return self.numel() * self.element_size()

    def refuse_if_read_only(self) -> None:
        """Raises ``RuntimeError`` if ``copy.deepcopy`` made this tensor."""
        if self.read_only:
            raise RuntimeError(
                f"{self!r} is a copy by copy.deepcopy, and writing to it would change the original "
                "for all ranks: give the copy values of its own (x = x.clone()), or write to the "
                "original"
            )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        # Printing must not read a table that may be larger than this process's memory.
        dtype = str(self.dtype).removeprefix("torch.")
        what = f"{self._source()}, {list(self.shape)}, {dtype}, device='{self.device}'"
        return f"{type(self).__name__}({what})"

    def _source(self) -> str:
        raise NotImplementedError

    def numpy(self, *, force: bool = False) -> Any:
        """Returns a read-only NumPy array with a copy of the values: writes would be lost."""
        array = super().numpy(force=force)
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(f"{type(self).__name__} has no array without a copy: np.asarray(x)")
        array = super().__array__(dtype, copy)
        array.flags.writeable = bool(copy)
        return array

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise BufferError(
            f"{type(self).__name__} is not exported by DLPack: a write through it would be lost; "
            "export x.clone()"
        )

    def data_ptr(self) -> int:
        """Raises ``RuntimeError``: the values have no single address."""
        _refuse_memory(type(self).__name__, "data_ptr")

    def untyped_storage(self) -> Any:
        """Returns an object that raises ``RuntimeError``, except to make storages for results."""
        return _NoStorage(type(self).__name__)

    def _typed_storage(self) -> NoReturn:
        _refuse_memory(type(self).__name__, "storage")

    def is_shared(self) -> bool:
        """Returns True: the ranks and their worker processes share the store."""
        return True

    def share_memory_(self) -> Self:
        """Returns this tensor: its values are shared already."""
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """Returns False: the tensor is not one allocation."""
        return False

    def pin_memory(self, device: Any = None) -> Self:
        """Returns this tensor without a change. Pin gathered rows instead."""
        return self


class _NoStorage:
    """Replaces the storage of a store tensor, which has none."""

    # PyG's loaders allocate a batch in a worker process with it.
    _new_shared = torch.UntypedStorage._new_shared

    def __init__(self, of: str) -> None:
        self._of = of

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_memory(self._of, f"storage to take {name!r} of")


def _refuse_memory(kind: str, what: str) -> NoReturn:
    raise RuntimeError(
        f"{kind} has no {what}: its values lie in several memory regions; read them into a plain "
        "tensor with clone()"
    )


def _make_handle(kind: Any, arguments: tuple[Any, ...], read_only: bool) -> Any:
    tensor = kind(*arguments)
    tensor.read_only = read_only
    return tensor


def materialize_all(tree: Any) -> Any:
    """Returns the same nested structure with materialized store tensors."""
    if isinstance(tree, StoreTensor):
        return tree.materialize()
    if isinstance(tree, Tensor):
        return tree
    return tree_map_only(StoreTensor, lambda tensor: tensor.materialize(), tree)


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
    # Reads directly to the target, so that the table is not copied on the GPU first.
    values = tensor.materialize(device)
    return values.to(dtype=dtype, memory_format=memory_format or torch.preserve_format)


@implements(torch.ops.aten.clone.default)
def _clone(tensor: StoreTensor, *, memory_format: torch.memory_format | None = None) -> Any:
    # `materialize` returns a new tensor.
    if memory_format in (None, torch.preserve_format, torch.contiguous_format):
        return tensor.materialize()
    return NotImplemented
