"""`CapturedTraining`: epochs over a loader's batches, with steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from peergraph.integration.captured.batch_bounds import find_bounds, raise_bounds
from peergraph.integration.captured.data_parallel import AveragedGradients
from peergraph.integration.captured.model_checks import check_model, check_modules
from peergraph.integration.captured.optimizer import (
    check_optimizer,
    check_scaler,
    make_capturable,
    scaler_settings,
    settings_of,
)
from peergraph.integration.captured.padding import check_padding
from peergraph.integration.captured.slots import GpuSlot, Slot
from peergraph.integration.captured.static_shapes import static_shapes
from peergraph.integration.captured.training_batches import (
    BatchRequest,
    SampleCounts,
    TrainingBatches,
)
from peergraph.memory import record_cuda_graph
from peergraph.sampling import StaticShape, StaticShapeSampler

Loss = Callable[[Any, Any], Any]

# Steps before the capture. The first uses of features and of an optimizer allocate what later uses
# find; a capture must not.
_MIN_WARMUP = 2


@dataclass
class _Batch:
    """A batch that will be trained on."""

    request: BatchRequest
    slot: Slot | None  # None: the batch is not full


class CapturedTraining:
    """The training that an adapter's ``capture`` returns. Iterating it trains for an epoch.

    Attributes:
        num_captured: steps that were replays of a CUDA graph.
        num_eager: steps on batches as the loader makes them: those that are not full or exceed the
            fixed shape, on any rank.
    """

    def __init__(
        self,
        batches: TrainingBatches,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        warmup: int,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._batches, self._optimizer, self._loss = batches, optimizer, loss
        self._scaler = torch.amp.GradScaler(enabled=False) if scaler is None else scaler
        self._gradients: AveragedGradients | None = None
        self._model = model
        if isinstance(model, DistributedDataParallel):
            self._model = model.module
            if batches.store.group is not None:
                self._gradients = AveragedGradients(model, batches.store.group)
        self._warmup = warmup
        self._device = batches.store.device
        self._on_gpu = self._device.type == "cuda"
        self.num_captured = 0
        self.num_eager = 0
        self._loader_settings: tuple[Any, ...] | None = None
        self._bounds: SampleCounts | None = None
        self._example: BatchRequest | None = None  # of a full batch
        self._exceeding: list[SampleCounts] = []
        self._slots: list[Slot] = []
        self._shape: StaticShape | None = None
        self._graphs: dict[Slot, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._settings: tuple[tuple[Hashable, ...], tuple[Hashable, ...]] | None = None
        self._is_iterated = False
        self._modules: list[torch.nn.Module] = []
        self._tensors: list[Tensor] = []
        if self._on_gpu:
            # Kernels of sampling go before those of the training that have not begun.
            self._sampling_stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Returns the number of steps of an epoch."""
        return len(self._batches)

    @property
    def shape(self) -> StaticShape | None:
        """The capacities of full batches; None before the first epoch, or without full batches."""
        return self._shape

    def __iter__(self) -> Iterator[Any]:
        """Trains for an epoch, a step for each item.

        Yields:
            What `loss` returned. Tensors are copies without autograd's history; on a GPU nothing
            waits for them.

        Raises:
            RuntimeError: another iteration has not ended, or the store is closed.
        """
        if self._is_iterated:
            raise RuntimeError("an epoch of this training is being iterated already")
        self._is_iterated = True
        try:
            self._prepare()
            for batch in self._epoch():
                yield self._train(batch)
        finally:
            self._is_iterated = False

    def _epoch(self) -> Iterator[_Batch]:
        """Yields the batches of an epoch. On a GPU, the one after has been started by then."""
        batches = (self._begin(i, number) for number, i in enumerate(self._batches.indices()))
        if not self._on_gpu:
            yield from batches
            return
        batch = next(batches, None)
        while batch is not None:
            before, ahead = torch.get_rng_state(), next(batches, None)
            state = torch.get_rng_state()
            try:
                yield batch
            except GeneratorExit:
                # A loop that ends early takes back the random numbers of the batch made ahead.
                if torch.equal(state, torch.get_rng_state()):
                    torch.set_rng_state(before)
                raise
            batch = ahead

    def _begin(self, index: Any, number: int) -> _Batch:
        if self._batches.store.closed:
            raise RuntimeError("this store has been closed: there are no more batches of it")
        batch = _Batch(self._batches.begin(index), None)
        if self._slots and batch.request.is_full:
            batch.slot = self._slots[number % len(self._slots)]
            batch.slot.start(batch.request)
        return batch

    def _prepare(self) -> None:
        """Finds the fixed shape, and makes the memory of the samples."""
        # Listed once an epoch: it takes longer than the rest of a step's work on the host.
        self._modules = list(self._model.modules())
        self._tensors = [*self._model.parameters(), *self._model.buffers()]
        settings = self._batches.settings
        is_outdated = self._loader_settings != settings or bool(self._exceeding)
        if self._gradients is not None:
            is_outdated = self._gradients.begin_epoch(len(self), is_outdated)
        if not is_outdated:
            return
        core = self._batches.core
        if self._loader_settings != settings or self._bounds is None:
            requests = self._batches.try_batches()
            if not requests:
                return
            self._bounds, self._example = find_bounds(core, requests), requests[0]
        self._bounds = raise_bounds(self._bounds, self._exceeding)
        self._exceeding, self._loader_settings = [], settings
        self._drop_graphs()
        self._slots.clear()
        sampler = StaticShapeSampler(
            core,
            # Behind the seeds is a row of padding.
            {t: rows[0] - 1 for t, rows in self._bounds.nodes.items()},
            max_nodes={t: rows[1:] for t, rows in self._bounds.nodes.items()},
            max_edges=self._bounds.edges,
            reports_overflow=False,
            valid_padding=True,
        )
        self._shape = sampler.shape
        assert self._example is not None
        if not self._on_gpu:
            self._slots.append(Slot(sampler, self._example))
            return
        stream = self._sampling_stream
        self._slots += [GpuSlot(sampler, self._example, stream) for _ in range(2)]

    def _train(self, batch: _Batch) -> Any:
        slot = batch.slot
        exceeds = slot is not None and not slot.fits()
        is_fixed = slot is not None and not exceeds
        if slot is not None and is_fixed:
            self._drop_outdated_graphs(batch.request, slot)
        if self._gradients is not None:
            is_fixed, self._warmup = self._gradients.agree(is_fixed, self._warmup)
        if slot is None or not is_fixed:
            return self._train_eagerly(batch, exceeds)
        if not self._on_gpu:
            return self._static_step(slot)
        if self._warmup > 0:
            self._warmup -= 1
            result = self._train_before_capture(slot)
        else:
            result = self._replay(slot)
        slot.release()
        return result

    def _train_eagerly(self, batch: _Batch, exceeds: bool) -> Any:
        """Trains on a batch as the loader makes it."""
        loader_batch, counts = self._batches.draw(batch.request)
        if exceeds:
            self._exceeding.append(counts)
        self.num_eager += 1
        with self._autocast():
            return self._step(loader_batch)

    def _static_step(self, slot: Slot) -> Any:
        with static_shapes():
            return self._step(self._batches.make(slot.sample, slot.extras))

    def _step(self, batch: Any) -> Any:
        result = None

        def compute() -> Tensor:
            nonlocal result
            result = self._loss(self._model, batch)
            return self._scaler.scale(_loss_of(result))

        self._optimizer.zero_grad(set_to_none=True)
        if self._gradients is None:
            compute().backward()  # type: ignore[no-untyped-call]
        else:
            self._gradients.backward(compute)
        if self._scaler.is_enabled():
            self._scaler.unscale_(self._optimizer)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return tree_map(_detached, result)

    def _train_before_capture(self, slot: Slot) -> Any:
        """Trains without a graph, on the stream of the later capture."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._autocast():
            result = self._static_step(slot)
        current.wait_stream(self._stream)
        return tree_map(_copied, result)  # it belongs to the other stream

    def _replay(self, slot: Slot) -> Any:
        if slot not in self._graphs:
            pool = next((graph.pool() for graph, _ in self._graphs.values()), None)
            with torch.cuda.device(self._device), self._autocast():
                self._graphs[slot] = record_cuda_graph(
                    lambda: self._static_step(slot), self._stream, pool
                )
            # Gradients of a replay are in memory that the other graph writes to.
            self._optimizer.zero_grad(set_to_none=True)
        graph, result = self._graphs[slot]
        graph.replay()
        self.num_captured += 1
        return tree_map(_copied, result)  # the next replay writes another one

    def _drop_outdated_graphs(self, request: BatchRequest, slot: Slot) -> None:
        """Drops the graphs if settings have changed since they were captured."""
        of_optimizer, modes = tuple(settings_of(self._optimizer)), self._modes()
        if self._settings == (of_optimizer, modes):
            return
        self._drop_graphs()
        if self._settings is not None and self._settings[1] != modes:
            self._warmup = max(self._warmup, 1)  # other kernels, which libraries prepare
        if self._on_gpu:
            # The settings may be those of a loaded state, or a number in place of a tensor.
            make_capturable(self._optimizer, self._device)
            check_scaler(self._scaler, self._optimizer, self._device)
        check_modules(self._model, self._batches)
        with self._autocast():
            check_padding(
                self._model,
                lambda model, batch: _loss_of(self._loss(model, batch), wants_gradient=False),
                self._batches,
                request,
                slot.sample,
                slot.extras,
            )
        self._settings = tuple(settings_of(self._optimizer)), modes

    def _drop_graphs(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)  # replays may still be running
        self._graphs.clear()

    def _modes(self) -> tuple[Hashable, ...]:
        """Returns the settings that a graph fixes, but for those of the optimizer."""
        return (
            *(module.training for module in self._modules),
            *((tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors),
            self._autocast_dtype(),
            *scaler_settings(self._scaler),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        )

    def _autocast_dtype(self) -> torch.dtype | None:
        kind = self._device.type
        if not torch.is_autocast_enabled(kind):
            return None
        dtype = torch.get_autocast_dtype(kind)
        if dtype is torch.float16 and not self._scaler.is_enabled():
            raise NotImplementedError(
                "autocast to float16 needs scaled gradients: pass scaler=torch.amp.GradScaler(), "
                "or use torch.bfloat16"
            )
        return dtype

    def _autocast(self) -> torch.autocast:
        """Autocast as it is set, without its cache: a replay would read weights of the capture."""
        dtype = self._autocast_dtype()
        return torch.autocast(
            self._device.type, dtype, enabled=dtype is not None, cache_enabled=False
        )


def capture_training(
    batches: TrainingBatches,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    warmup: int,
    scaler: torch.amp.GradScaler | None,
) -> CapturedTraining:
    """Returns the training of a model on batches, after checks of all arguments.

    Args:
        batches: of a loader.
        model: on the store's device, or a ``DistributedDataParallel`` of such a model.
        optimizer: of the model's parameters: SGD, or one with the option `capturable`, which is
            set.
        loss: called with the model's module and a batch; returns the loss, or a tuple that begins
            with it.
        warmup: steps of fixed shapes that run step by step before the capture.
        scaler: for autocast to float16.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """
    if warmup < _MIN_WARMUP:
        raise ValueError(f"warmup must be at least {_MIN_WARMUP} steps, got {warmup}")
    device = batches.store.device
    check_model(model, batches)
    check_optimizer(optimizer, model)
    if device.type == "cuda":
        make_capturable(optimizer, device)
    if scaler is not None:
        check_scaler(scaler, optimizer, device)
    return CapturedTraining(batches, model, optimizer, loss, warmup, scaler)


def _loss_of(result: Any, wants_gradient: bool = True) -> Tensor:
    value = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(
            "loss must return a tensor of one number, or a tuple that begins with it, got "
            f"{list(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        )
    if wants_gradient and not value.requires_grad:
        raise ValueError("loss: the loss that it returned does not depend on a parameter")
    return value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
