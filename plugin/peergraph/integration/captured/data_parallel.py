"""Gradients of a DistributedDataParallel model that a CUDA graph averages over ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from peergraph.memory import Group

# Gradients that are averaged by one operation: the first ones early, as in torch's module.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


class AveragedGradients:
    """Computes the gradients of a module, and averages them over ranks in the same step.

    The hooks of DistributedDataParallel run on the stream on which it was made, which no capture
    may use. A step therefore runs on parameters of its own, which share the memory of the model's.
    Their gradients are averaged bucket by bucket, beside the rest of the backward pass.

    Args:
        model: the model, whose process group has the ranks of `group`.
        group: the ranks.
    """

    def __init__(self, model: DistributedDataParallel, group: Group) -> None:
        self._model, self._group = model, group
        self._process_group = model.process_group
        # By the names of the parameters that are trained: users freeze some, and train them again.
        self._buckets: dict[frozenset[str], list[list[str]]] = {}

    def backward(self, compute: Callable[[], Tensor]) -> None:
        """Writes the mean over ranks of a loss's gradients to the parameters. Collective.

        Args:
            compute: returns the loss, computed with the model's module.

        Raises:
            NotImplementedError: a gradient is sparse.
            RuntimeError: a parameter has a gradient that had none on any rank in the first step
                in which the same parameters were trained.
        """
        parameters = dict(self._model.module.named_parameters())
        shared = {
            name: Parameter(parameter.detach(), parameter.requires_grad)
            for name, parameter in parameters.items()
        }
        self._broadcast_buffers()
        trained = frozenset(name for name, p in parameters.items() if p.requires_grad)
        names = self._buckets.get(trained)
        buckets = [] if names is None else self._watch(names, shared)
        # Hooks of a loss that uses the model and not its module do nothing.
        with self._model.no_sync():
            backward = _Backward(self._model.module, compute)
            functional_call(backward, {f"module.{name}": p for name, p in shared.items()}, ())
        gradients = {name: p.grad for name, p in shared.items() if p.grad is not None}
        if names is None:
            names = self._buckets[trained] = self._make_buckets(gradients, parameters)
            buckets = self._watch(names, shared)
        self._check(names, gradients)
        for bucket in buckets:
            bucket.start()
        for bucket in buckets:
            gradients |= bucket.wait()
        for name, gradient in gradients.items():
            parameters[name].grad = gradient

    def _broadcast_buffers(self) -> None:
        """Gives all ranks the first one's buffers, as the model does before each step."""
        if not self._model.broadcast_buffers:
            return
        first = dist.get_global_rank(self._process_group, 0)
        for name, buffer in self._model.module.named_buffers():
            if name not in self._model.parameters_to_ignore:
                dist.broadcast(buffer, first, group=self._process_group)

    def begin_epoch(self, num_steps: int, is_outdated: bool) -> bool:
        """Returns whether something is outdated on any rank. Collective.

        Raises:
            ValueError: the ranks have different numbers of steps.
        """
        of_ranks = self._group.all_gather((num_steps, is_outdated))
        steps = [each for each, _ in of_ranks]
        if len(set(steps)) > 1:
            raise ValueError(
                f"loader: its ranks have {steps} batches; with DistributedDataParallel all ranks "
                "must have the same number"
            )
        return any(each for _, each in of_ranks)

    def agree(self, is_fixed: bool, warmup: int) -> tuple[bool, int]:
        """Returns how all ranks make the next step: they capture at the same time. Collective.

        Args:
            is_fixed: whether this rank's batch has the fixed shape.
            warmup: steps before the capture on this rank.

        Returns:
            Whether all batches have it, and the most steps.
        """
        of_ranks = self._group.all_gather((is_fixed, warmup))
        return all(each for each, _ in of_ranks), max(each for _, each in of_ranks)

    def _make_buckets(
        self, gradients: dict[str, Tensor], parameters: dict[str, Parameter]
    ) -> list[list[str]]:
        """Returns the names of each bucket: of parameters with a gradient on any rank. Collective.

        In the order of the backward pass, roughly that of the last parameter first.
        """
        sparse = [name for name, gradient in gradients.items() if gradient.layout != torch.strided]
        of_ranks = self._group.all_gather(
            (set(gradients) - self._model.parameters_to_ignore, sparse)
        )
        used = set[str]().union(*(names for names, _ in of_ranks))
        for name in (name for _, names in of_ranks for name in names):
            raise NotImplementedError(
                f"model.{name}: its gradient is sparse, which capture does not average"
            )
        buckets: list[list[str]] = []
        dtype, size, most = None, 0, _FIRST_BUCKET_BYTES
        for name in reversed(parameters):
            parameter = parameters[name]
            if name not in used:
                continue
            if not buckets or parameter.dtype != dtype or size >= most:
                most = _BUCKET_BYTES if buckets else _FIRST_BUCKET_BYTES
                buckets.append([])
                dtype, size = parameter.dtype, 0
            buckets[-1].append(name)
            size += parameter.nbytes
        return buckets

    def _watch(
        self, names_by_bucket: list[list[str]], shared: dict[str, Parameter]
    ) -> list[_Bucket]:
        """Returns the buckets of a step, which start when all of their gradients are there."""
        buckets = []
        for names in names_by_bucket:
            bucket = _Bucket({name: shared[name] for name in names}, self._process_group)
            buckets.append(bucket)
            for name in names:
                hook = partial(bucket.arrived, name)
                shared[name].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return buckets

    def _check(self, names_by_bucket: list[list[str]], gradients: dict[str, Tensor]) -> None:
        averaged = self._model.parameters_to_ignore.union(*names_by_bucket)
        for name in gradients:
            if name not in averaged:
                raise RuntimeError(
                    f"model.{name}: it has a gradient in this step, and had none on any rank in "
                    "the first one; capture averages the gradients of the first step's parameters"
                )


class _Backward(torch.nn.Module):
    """A module whose forward pass is the backward pass of a loss of another module.

    Both passes run on the parameters of a functional call: recomputed layers read them again.
    """

    def __init__(self, module: torch.nn.Module, compute: Callable[[], Tensor]) -> None:
        super().__init__()
        self.module = module
        self._compute = compute

    def forward(self) -> None:
        self._compute().backward()  # type: ignore[no-untyped-call]


class _Bucket:
    """Gradients that are averaged by one operation.

    Args:
        parameters: by name.
        process_group: of the ranks.
    """

    def __init__(self, parameters: dict[str, Parameter], process_group: Any) -> None:
        self._parameters, self._process_group = parameters, process_group
        self._missing = set(parameters)
        self._work: tuple[Tensor, Any] | None = None

    def arrived(self, name: str, _: Tensor) -> None:
        """Is called when the gradient of a parameter is there; the last one starts the bucket."""
        self._missing.discard(name)
        if not self._missing:
            self.start()

    def start(self) -> None:
        """Starts to average, if nobody has. Gradients that are missing on this rank are zeros."""
        if self._work is not None:
            return
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in self._parameters.values()
        ]
        # As torch's module computes the mean: parts, then their sum.
        flat = torch.cat(parts).mul_(1 / dist.get_world_size(self._process_group))
        work = dist.all_reduce(flat, group=self._process_group, async_op=True)
        self._work = flat, work

    def wait(self) -> dict[str, Tensor]:
        """Returns the averages. The current stream of a GPU waits for them, not the host."""
        assert self._work is not None
        flat, work = self._work
        work.wait()
        sizes = [p.numel() for p in self._parameters.values()]
        parts = zip(self._parameters.items(), torch.split(flat, sizes), strict=True)
        return {name: part.view_as(parameter) for (name, parameter), part in parts}
