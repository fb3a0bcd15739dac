"""Random tensors and random fills, keyed by (seed, row, column)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from peergraph.fullgraph.random.rows import Rows, overloads, random_op
from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.pointwise import localize

aten = torch.ops.aten


def _like(x: Tensor, distribution: str, options: dict[str, Any]) -> Tensor:
    dtype, device = options.get("dtype"), options.get("device")
    if device is not None and torch.device(device).type != x.device.type:
        not_implemented(f"{distribution} numbers", f"device {device} is not the tensor's")
    rows = Rows(x)
    numbers = rows.draw(distribution, rows.seed(options.get("generator")), dtype)
    return rows.wrap(numbers.to(dtype or x.dtype))


@random_op(*overloads(aten.rand_like, "default", "generator"))
def _rand_like(self: Tensor, **options: Any) -> Tensor:
    return _like(self, "uniform", options)


@random_op(*overloads(aten.randn_like, "default", "generator"))
def _randn_like(self: Tensor, **options: Any) -> Tensor:
    return _like(self, "normal", options)


def _integers(rows: Rows, low: int, high: int, generator: Generator | None) -> Tensor:
    """Integers of low .. high-1, as float64: ranges above 2^53 miss some of them."""
    if high <= low:
        raise RuntimeError(f"expected low < high, got {low} and {high}")
    uniform = rows.draw("uniform", rows.seed(generator), torch.float64)
    return uniform.mul_(high - low).floor_().add_(low)


@random_op(*overloads(aten.randint_like, "default", "generator"))
def _randint_like(self: Tensor, high: int, **options: Any) -> Tensor:
    return _randint_like_from(self, 0, high, **options)


@random_op(*overloads(aten.randint_like, "low_dtype", "low_generator_dtype"))
def _randint_like_from(self: Tensor, low: int, high: int, **options: Any) -> Tensor:
    rows = Rows(self)
    integers = _integers(rows, low, high, options.get("generator"))
    return rows.wrap(integers.to(options.get("dtype") or self.dtype))


@random_op(aten.random_.to)
def _random_to(self: Tensor, to: int, generator: Generator | None = None) -> Tensor:
    return _random_from(self, 0, to, generator)


@random_op(*overloads(aten.random_, "from"))
def _random_from(
    self: Tensor, start: int, to: int | None, generator: Generator | None = None
) -> Tensor:
    rows = Rows(self)
    return _fill(
        self, rows, _integers(rows, start, _end(self.dtype) if to is None else to, generator)
    )


@random_op(aten.random_.default)
def _random(self: Tensor, generator: Generator | None = None) -> Tensor:
    return _random_from(self, 0, None, generator)


def _end(dtype: torch.dtype) -> int:
    """The numbers that `Tensor.random_` draws of a dtype are below it; at most 2^53."""
    if dtype == torch.bool:
        return 2
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return int(min(torch.iinfo(dtype).max + 1, 2**53))


def _fill(self: Tensor, rows: Rows, values: Tensor) -> Tensor:
    rows.local.copy_(values)
    return self


@random_op(aten.uniform_.default)
def _uniform(
    self: Tensor,
    start: float = 0,
    to: float = 1,
    *,
    generator: Generator | None = None,
    **names: float,
) -> Tensor:
    start = names.get("from", start)
    rows = Rows(self)
    numbers = rows.draw("uniform", rows.seed(generator))
    return _fill(self, rows, numbers if (start, to) == (0, 1) else numbers * (to - start) + start)


@random_op(aten.normal_.default)
def _normal(
    self: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None
) -> Tensor:
    rows = Rows(self)
    return _fill(self, rows, rows.draw("normal", rows.seed(generator)) * std + mean)


@random_op(aten.log_normal_.default)
def _log_normal(
    self: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None
) -> Tensor:
    rows = Rows(self)
    return _fill(self, rows, (rows.draw("normal", rows.seed(generator)) * std + mean).exp())


@random_op(aten.exponential_.default)
def _exponential(self: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    return _fill(self, rows, rows.draw("exponential", rows.seed(generator)) / lambd)


@random_op(aten.cauchy_.default)
def _cauchy(
    self: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None
) -> Tensor:
    rows = Rows(self)
    uniform = rows.draw("uniform", rows.seed(generator), torch.float64)
    return _fill(self, rows, ((uniform - 0.5) * math.pi).tan() * sigma + median)


@random_op(aten.geometric_.default)
def _geometric(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    exponential = rows.draw("exponential", rows.seed(generator), torch.float64)
    return _fill(
        self,
        rows,
        (exponential / -math.log1p(-p)).ceil() if p < 1 else torch.ones_like(exponential),
    )


@random_op(aten.normal.Tensor_float)
def _normal_of_means(mean: Tensor, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    return _like(mean, "normal", {"generator": generator}) * std + mean


@random_op(aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def _normal_of_tensors(
    mean: float | Tensor, std: Tensor, *, generator: Generator | None = None
) -> Tensor:
    return _like(std, "normal", {"generator": generator}) * std + mean


@random_op(aten.bernoulli.default)
def _bernoulli(self: Tensor, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    return rows.wrap(_below(rows, rows.local, generator).to(self.dtype))


@random_op(aten.bernoulli.p)
def _bernoulli_of(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    # The mask of dropout, so that dropout as torch composes it has the same masks.
    return rows.wrap(rows.keep(1 - p, rows.seed(generator)))


@random_op(aten.bernoulli_.float)
def _bernoulli_(self: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    return _fill(self, rows, rows.keep(1 - p, rows.seed(generator)))


@random_op(aten.bernoulli_.Tensor)
def _bernoulli_of_tensor(self: Tensor, p: Tensor, *, generator: Generator | None = None) -> Tensor:
    rows = Rows(self)
    chances = localize(aten.bernoulli_.Tensor, (self, p))[1][1]
    return _fill(self, rows, _below(rows, chances, generator))


def _below(rows: Rows, chances: Tensor, generator: Generator | None) -> Tensor:
    drawn_dtype = torch.float64 if chances.dtype == torch.float64 else torch.float32
    return rows.draw("uniform", rows.seed(generator), drawn_dtype) < chances


@random_op(aten.rrelu_with_noise.default)
def _rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Writes the slopes into `noise`: 1 for positive elements."""
    if not training:
        return F.leaky_relu(self, (lower + upper) / 2)
    rows = Rows(noise)
    slopes = rows.draw("uniform", rows.seed(generator)) * (upper - lower) + lower
    _fill(noise, rows, slopes.masked_fill_(Rows(self).local > 0, 1))
    return self * noise


@random_op(aten.rrelu_with_noise_.default)
def _rrelu_(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return self.copy_(_rrelu(self, *args, **kwargs))
