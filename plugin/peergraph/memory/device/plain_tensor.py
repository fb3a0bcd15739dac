"""Checks that the tensors of users are values in memory, as the compiled module takes them."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(name: str, tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory holds its values: conjugate and negative views are resolved.

    Args:
        name: the name of the argument, for errors.
        tensor: what the user passed.

    Raises:
        TypeError: not a tensor, or one without dense memory of its own: a subclass that wraps other
            tensors (DTensor), a tensor of a transform or a trace, a sparse or nested tensor.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if torch.compiler.is_compiling():
        return tensor
    if not _has_memory(tensor):
        raise TypeError(
            f"{name} must be a dense tensor with memory of its own, got {_kind(tensor)}; pass "
            f"{_way_out(tensor)}"
        )
    if tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def check_output(name: str, tensor: Tensor) -> None:
    """Raises TypeError or ValueError unless results can be written to the memory of a tensor.

    Args:
        name: the name of the argument, for errors.
        tensor: what the user passed.
    """
    if plain(name, tensor) is not tensor:
        raise ValueError(
            f"{name} must not be a conjugate or negative view: pass a tensor of its own"
        )
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")


def dense(tensor: Tensor) -> Tensor:
    """Returns a real tensor with its values side by side, as they are in memory."""
    return tensor.resolve_neg().contiguous()


def _has_memory(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    try:
        # Errors about devices name the device "meta".
        return tensor.data_ptr() != 0 or tensor.numel() == 0 or tensor.is_meta
    except RuntimeError:  # of a transform or a trace
        return False


def _is_torchs(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _way_out(tensor: Tensor) -> str:
    if not _is_torchs(tensor):
        return "the tensor that it wraps (of a DTensor to_local() or full_tensor())"
    if tensor.layout is not torch.strided:
        return "to_dense()"
    return "to_padded_tensor()" if tensor.is_nested else "a tensor that is computed"


def _kind(tensor: Tensor) -> str:
    if not _is_torchs(tensor):
        return type(tensor).__name__
    if tensor.layout is not torch.strided:
        return f"a tensor of {tensor.layout}"
    return "a nested tensor" if tensor.is_nested else f"a tensor without memory on {tensor.device}"
