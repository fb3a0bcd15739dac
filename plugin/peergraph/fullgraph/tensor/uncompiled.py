"""Keeps `torch.compile` out of functions that work on partitioned tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._dynamo import symbolic_convert  # every optimizer of torch imports it
from torch._dynamo.exc import Unsupported
from torch.autograd import Function

from peergraph.without_memory import WithoutMemory

_SKIP: Any = None
"""Runs a function, and what it calls, without the compiler; None in versions without it."""
if hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):
    _SKIP = torch._C._dynamo.eval_frame._FrameExecStrategy(
        torch._C._dynamo.eval_frame._FrameAction.SKIP,
        torch._C._dynamo.eval_frame._FrameAction.SKIP,
    )


def _skip(function: Any) -> None:
    """Makes the compiler skip a function and all that it calls, at no cost for its calls."""
    torch._C._dynamo.eval_frame.set_code_exec_strategy(function.__code__, _SKIP)


class Uncompiled(WithoutMemory):
    """A tensor whose operations `torch.compile` cannot trace: they exchange rows.

    A function that reads one, and all that it calls, runs as without a compiler. With
    ``fullgraph=True``, and in `torch.export`, an error says so.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Functions that the compiler does not trace call these, and it would begin to trace here.
        for name in ("__torch_function__", "__torch_dispatch__"):
            method = cls.__dict__.get(name)
            if _SKIP is not None and isinstance(method, classmethod):  # not torch's own
                _skip(method.__func__)

    def __tensor_flatten__(self) -> NoReturn:
        """Called where a compiler meets the tensor."""
        message = (
            f"torch.compile and torch.export cannot trace a {type(self).__name__}: its operations "
            "exchange rows of a full graph. Call the model without them, or without fullgraph=True "
            "(the function then runs as it is)"
        )
        translator = getattr(symbolic_convert.tls, "current_tx", None)
        if translator is None:
            raise NotImplementedError(message)
        raise _Untraceable(message, translator.output.root_tx.f_code.co_filename)

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> NoReturn:
        """Never called; torch asks for both."""
        raise NotImplementedError("there are no parts of a partitioned tensor to make one of")


class _Untraceable(Unsupported, NotImplementedError):
    """Makes the compiler run the whole function, and not only the rest of it, as it is."""

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        # What torch's own functions call, such as a module's `forward`, and in old versions what
        # any function calls, is skipped when it is called.
        if _SKIP is not None and not file.startswith(str(Path(torch.__file__).parent)):
            self.frame_exec_strategy = _SKIP

    @property
    def skip_frame(self) -> bool:
        """Stays true when a function that was inlined passes the error on."""
        return True

    @skip_frame.setter
    def skip_frame(self, _: bool) -> None:
        pass


def run_uncompiled(package: str) -> None:
    """Keeps the compiler out of a package's autograd functions.

    Their backward runs under the compiler where a compiled function calls ``loss.backward()``.
    """
    for function in _subclasses(Function):
        if not function.__module__.startswith(f"{package}."):
            continue
        for name in ("forward", "backward"):
            method = getattr(function, name)
            if _SKIP is None:
                disabled: Any = torch._dynamo.disable(method)  # type: ignore[no-untyped-call]
                setattr(function, name, staticmethod(disabled))
            else:
                _skip(method)


def _subclasses(cls: type) -> Iterator[type]:
    subclass: type
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
