"""Linear maps of PyG's layers: checks which can be fused with a sum over neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from peergraph.integration import require

from ..compat import has_hooks
from ..data.lazy_features import is_plain

CAST_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
"""What autocast casts."""


def product_dtype(device: torch.device, *dtypes: torch.dtype) -> torch.dtype | None:
    """Returns the dtype in which tensors of some dtypes are multiplied.

    Under autocast it is autocast's; otherwise the one that all have. Returns None if there is none.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type) if {*dtypes} <= CAST_DTYPES else None
    return dtypes[0] if len({*dtypes}) == 1 else None


class ProductDtypes:
    """The dtypes of products of the layers of one call, each of which is found once."""

    def __init__(self) -> None:
        self._by_operands: dict[tuple[Any, ...], torch.dtype | None] = {}

    def of(self, device: torch.device, *dtypes: torch.dtype) -> torch.dtype | None:
        """As :func:`product_dtype`."""
        key = device, *dtypes
        if key not in self._by_operands:
            self._by_operands[key] = product_dtype(device, *dtypes)
        return self._by_operands[key]


def as_in_float32(rows: Tensor) -> Tensor:
    """Returns rows in the dtype of what autocast runs in float32 on a GPU, as it does with
    ``torch.sum`` and ``1 / degrees``.
    """
    if rows.is_cuda and torch.is_autocast_enabled("cuda"):
        return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    return rows


def require_weight(weight: Any, x: Tensor, width: int) -> None:
    """Raises Unsupported unless `weight` is a plain tensor that multiplies rows of `x`.

    Under autocast both may be float32, float16 or bfloat16.
    """
    goes = weight.dtype == x.dtype or product_dtype(x.device, weight.dtype, x.dtype) is not None
    require(goes and is_plain(weight), "weights are of another kind")
    fits = weight.device == x.device and weight.shape[width] == x.shape[1]
    require(fits, "weights do not fit")


def is_plain_map(linear: Any) -> bool:
    """Returns whether a map is PyG's own linear map, without hooks."""
    plain = type(linear) is Linear and "forward" not in linear.__dict__
    return plain and not has_hooks(linear)


def weight_and_bias(linear: Any) -> tuple[Any, Any]:
    """Returns the parameters of a map. To ask a module for an attribute that is no attribute of the
    Python object takes as long as a launch.
    """
    own = {} if torch.compiler.is_compiling() else linear._parameters
    if "weight" in own and "bias" in own:
        return own["weight"], own["bias"]
    return linear.weight, linear.bias


def parameters_of(linear: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns weight and bias of a map of rows of `x`.

    Raises:
        Unsupported: the map is not PyG's own, or its parameters do not go with the rows.
    """
    require(is_plain_map(linear), "a map is the user's, or there are hooks of a map")
    weight, bias = weight_and_bias(linear)
    require_weight(weight, x, 1)
    require(bias is None or is_plain(bias), "a bias is of another kind")
    return weight, bias


def weight_to_reorder(linear: Any, x: Tensor) -> Tensor | None:
    """Returns the weight of a map that may also run after the sum over neighbours, else None."""
    if not is_plain_map(linear) or linear.bias is not None or x.ndim != 2:
        return None
    weight = linear.weight
    fits = is_plain(weight) and weight.dtype == x.dtype and weight.shape[1:] == x.shape[1:]
    return weight if fits and not torch.is_autocast_enabled(x.device.type) else None
