"""Views that are made in `no_grad` or in inference mode of tensors that need gradients.

torch lets such a view need gradients, too, as long as it shares memory with its tensor, but none
flow from it to the tensor. Rows that are a copy here, or a record, get the same properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

_AnyTensor = TypeVar("_AnyTensor", bound=Tensor)


@contextmanager
def memory_of_view(x: Tensor) -> Iterator[None]:
    """Within the context, a copy of rows of `x` is a tensor that may be returned as their view.

    In inference mode, a view of a tensor that was made outside is none of inference mode.
    """
    if torch.is_inference_mode_enabled() and not x.is_inference():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


def view_without_gradients(rows: _AnyTensor) -> _AnyTensor:
    """Returns rows as torch's view, made without gradients, of a tensor that needs them.

    What is computed from it needs gradients, which end here. A change in place with gradients
    raises torch's error.

    Args:
        rows: a leaf, no view, that nothing else refers to.
    """
    with torch._C.DisableTorchFunctionSubclass():
        view: _AnyTensor = torch.ops.aten.alias.default(rows.requires_grad_())
    return view
