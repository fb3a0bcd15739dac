"""ReLU that keeps one bit of each element: values and gradients are torch's."""

from __future__ import annotations

import numpy as np
import torch

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.fullgraph import RowLayout, distribute
from peergraph.fullgraph.tensor.relu import apply_bitmask, relu_bitmask
from peergraph.memory import Group
from tests.named_case import named_case, named_cases

SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 6e-8)


@named_cases("dtype", FEATURE_DTYPES)
def test_values_bits_and_gradients(dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    # Fewer and more elements than a thread has; the last ones begin at no vector.
    for count, offset in ((0, 0), (1, 0), (7, 0), (8, 0), (9, 0), (4099, 0), (40_000, 0), (64, 1)):
        with named_case(count, offset):
            x = torch.randn(offset + count, generator=generator).to(dtype)
            x[: len(SPECIAL)] = torch.tensor(SPECIAL)[: offset + count]
            grad = torch.randn(offset + count, generator=generator).to(dtype).to(device)[offset:]
            rows = x.to(device)[offset:]
            plain = rows.detach().requires_grad_()
            expected = torch.relu(plain)
            expected.backward(grad)
            actual, bits = relu_bitmask(rows)
            torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=0, equal_nan=True)
            gradient = apply_bitmask(grad, bits)
            torch.testing.assert_close(gradient, plain.grad, rtol=0, atol=0)
            passed = np.unpackbits(bits.cpu().numpy(), axis=1, bitorder="little")
            # A row has one element, or as many as a byte has bits.
            columns = count // len(bits) if count else 8
            assert passed[:, :columns].ravel().tolist() == (~(rows <= 0)).cpu().int().tolist()
            assert not passed[:, columns:].any()


def test_second_derivatives_and_rows_along_another_dimension() -> None:
    layout = RowLayout(Group.current("cpu"), [5], torch.arange(5))
    full = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    results = []
    for partitioned in (False, True):
        leaf = full.clone().requires_grad_()
        x = distribute(leaf, layout, 1) if partitioned else leaf
        h = torch.relu(x * 2).relu()
        (first,) = torch.autograd.grad((h**3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), leaf)
        results.append((first.detach(), second))
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)
