"""What follows the product of a layer: bias, ReLU and dropout."""

from __future__ import annotations

from torch import Tensor

from peergraph.aggregate.ops.activate import activate as _activate


def activate(
    x: Tensor, bias: Tensor | None = None, *, relu: bool = True, dropout: float = 0.0
) -> Tensor:
    """Computes ``dropout(relu(x + bias))``, in one pass forward and one pass backward.

    A bit of each element is kept for the gradient, and no other value. The gradient of the bias is
    summed in the same pass.

    Dropped elements are drawn with a seed from torch's default generator of the device:
    ``torch.manual_seed`` makes them reproducible. They are not the elements that
    ``torch.nn.functional.dropout`` drops with this seed. They depend on the seed, the row and the
    column only, and are the same on the CPU and on a GPU for a given seed. The probability is
    rounded to a multiple of 1/65536. A dropped element is 0, also if it was NaN.

    Args:
        x: [rows, columns] float32, float64, float16 or bfloat16. Other tensors, a bias of a wider
            dtype outside of autocast, and compiled code take torch's operations one by one.
        bias: [columns], added in the dtype of sums (float32, float64 for float64), or None.
        relu: whether negative values become 0.
        dropout: probability of dropping an element; 0 outside of training.

    Returns:
        As `x`.

    Asynchronous on a GPU. Differentiable any number of times.

    Raises:
        ValueError: a probability outside of 0..1, a bias of another shape.
    """
    return _activate(x, bias, relu=relu, dropout=dropout)
