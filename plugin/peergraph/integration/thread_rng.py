"""Random numbers of a thread, or of a batch, instead of torch's default generators."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SAMPLERS = (
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "multinomial",
    "bernoulli",
    "poisson",
)
_METHODS = (
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
    "bernoulli",
    "multinomial",
)
# Functions with an argument `generator`, by default torch's default generator.
_DRAWING = frozenset(
    [getattr(torch, name) for name in _SAMPLERS] + [getattr(Tensor, name) for name in _METHODS]
)
# Functions without an argument `generator`, and the method that does the same with a generator.
_LIKE = {torch.rand_like: Tensor.uniform_, torch.randn_like: Tensor.normal_}


class ThreadRng(TorchFunctionMode):
    """A mode in which random functions of torch draw from generators of this thread.

    The CPU generator starts at the state that torch's default generator has when this object is
    created, so that the functions return the numbers that they would have returned at that time.
    The generator of a GPU is seeded with the state of the CPU generator. If a caller passes a
    generator, it is used. Functions that accept no generator, such as dropout, draw from torch's
    default generator.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generators = {torch.device("cpu"): torch.Generator()}
        self.state = torch.get_rng_state()

    @property
    def state(self) -> Tensor:
        """The state of the CPU generator, in the form of ``torch.get_rng_state``."""
        return self._generators[torch.device("cpu")].get_state()

    @state.setter
    def state(self, state: Tensor) -> None:
        cpu = torch.device("cpu")
        self._generators = {cpu: self._generators[cpu]}
        self._generators[cpu].set_state(state)

    def reseed(self, seed: int) -> None:
        """Seeds all generators again."""
        self.state = torch.Generator().manual_seed(seed).get_state()

    def _generator(self, device: torch.device) -> torch.Generator:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._generators:
            digest = hashlib.blake2b(self.state.numpy().tobytes(), digest_size=7).digest()
            generator = torch.Generator(device)
            self._generators[device] = generator.manual_seed(int.from_bytes(digest, "little"))
        return self._generators[device]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING and kwargs.get("generator") is None:
            return func(*args, **{**kwargs, "generator": self._generator(_device(args, kwargs))})
        if func in _LIKE:
            target = torch.empty_like(*args, **kwargs)
            return _LIKE[func](target, generator=self._generator(target.device))
        return func(*args, **kwargs)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Returns the device on which a function with these arguments draws."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    return torch.device(kwargs.get("device") or "cpu")
