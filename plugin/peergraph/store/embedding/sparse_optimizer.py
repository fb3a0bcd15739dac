"""The base class of the embeddings' optimizers: gradients, their exchange between ranks, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

import peergraph._C as _C
from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.training.coalesce import SparseRows
from peergraph.memory.training.exchange import Exchange, Outgoing
from peergraph.memory.training.machine_exchange import MachineExchange
from peergraph.profiling import UPDATE, profiled
from peergraph.store.embedding.embedding import Embedding, RowState, load_rows


class SparseOptimizer(torch.optim.Optimizer, Joinable):
    """Updates the rows of embeddings that have gradients, on the ranks that store the rows.

    It is a :class:`torch.optim.Optimizer`, so learning-rate schedulers accept it, with one
    `param_groups` entry for each group of embeddings. Its state belongs to the embeddings, and is
    saved with their store.

    It works over ranks like DistributedDataParallel: gradients of all ranks are summed, and every
    rank must call :meth:`step` equally often, with or without gradients. If ranks have different
    numbers of batches, use :class:`torch.distributed.algorithms.Join` with the model before its
    optimizer: ``with Join([model, optimizer]):``. The result equals that of one process that trains
    on the batches of all ranks.
    """

    _state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        embeddings: Embedding | Iterable[Embedding] | Iterable[dict[str, Any]],
        defaults: dict[str, Any],
        reduce: str,
    ) -> None:
        if reduce not in ("mean", "sum"):
            raise ValueError(f'reduce must be "mean" or "sum", got {reduce!r}')
        self._reduce = reduce
        self._of_anchor: dict[Tensor, Embedding] = {}
        self._states: dict[Tensor, RowState] = {}
        self._exchange: Exchange | None = None
        self._machine_exchange: MachineExchange | None = None
        tables = [embeddings] if isinstance(embeddings, Embedding) else list(embeddings)
        torch.optim.Optimizer.__init__(self, tables, defaults)  # type: ignore[arg-type]
        Joinable.__init__(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of embeddings: ``{"params": [...]}`` and its options. Collective."""
        params = param_group["params"]
        added = [params] if isinstance(params, Embedding) else list(params)
        for embedding in added:
            if not isinstance(embedding, Embedding):
                raise TypeError(
                    f"embeddings must be of peergraph.Embedding, got {type(embedding).__name__}"
                )
        if len({*self._of_anchor.values(), *added}) < len(self._of_anchor) + len(added):
            raise ValueError("an embedding was given to the optimizer more than once")
        devices = {e.table.device for e in (*self._of_anchor.values(), *added)}
        if len(devices) > 1:
            raise ValueError(f"embeddings of one optimizer must be on one device, got {devices}")
        super().add_param_group({**param_group, "params": [e.anchor for e in added]})
        group = self.param_groups[-1]
        self._check(group)
        for embedding in added:
            self._of_anchor[embedding.anchor] = embedding
            self._states[embedding.anchor] = self._take_state(embedding, group)
        self._close_exchange()

    @profiled(UPDATE)
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the rows that have gradients on any rank. Collective; synchronises.

        Gradients stay until :meth:`zero_grad`, as in torch. The sum for a row is deterministic: it
        is summed over each rank's backward passes in order, then over the ranks in order.

        Args:
            closure: evaluates the model again and returns the loss; `step` returns this loss.

        Raises:
            IndexError: an id that was looked up is out of range.
            RuntimeError: another rank failed, or an embedding has a newer optimizer.
            PeerLostError: a rank is missing.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        Join.notify_join_context(self)
        with self._group.collective("SparseOptimizer.step"):
            self._check_states()
            for anchor, incoming in zip(self._of_anchor, self._collect(), strict=True):
                if incoming is not None:
                    self._states[anchor].step += 1
                    self._update(anchor, incoming)
            if self._exchange is not None:
                self._exchange.wait()
        return loss

    @property
    def embeddings(self) -> list[Embedding]:
        """The embeddings that the optimizer trains."""
        return list(self._of_anchor.values())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops this rank's gradients of the embeddings."""
        for embedding in self._of_anchor.values():
            embedding.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Returns steps and state of all rows, as tensors on the CPU in order of users' ids.

        For large tables save the store instead. One-sided; synchronises.
        """
        states = {
            index: {"step": state.step, **{n: t.read() for n, t in state.tables.items()}}
            for index, state in enumerate(self._states.values())
        }
        return {**super().state_dict(), "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of :meth:`state_dict`, or of torch's optimizer of the kind. Collective.

        Raises ValueError for state of embeddings with other shapes.
        """
        states = state_dict["state"]
        collective_call(self._group, lambda: self._check_loaded(states))
        super().load_state_dict({**state_dict, "state": {}})
        for index, state in enumerate(self._states.values()):
            loaded = states.get(index)
            if loaded is None:  # Before the first step, torch's optimizer has no state.
                continue
            state.step = int(loaded["step"])
            for name, table in state.tables.items():
                load_rows(table, loaded[name].to(table.dtype))

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Returns a hook that takes part in the steps of ranks with more batches."""
        return _StepAlong(self)

    @property
    def join_device(self) -> torch.device:
        """The device on which Join counts the ranks with more batches."""
        return self._group.device

    @property
    def join_process_group(self) -> Any:
        """The process group of all ranks."""
        return dist.group.WORLD

    @abstractmethod
    def _check(self, group: dict[str, Any]) -> None:
        """Raises NotImplementedError for values that are not supported."""

    @abstractmethod
    def _rule(self, group: dict[str, Any], step: int, grad_scale: float) -> _C.UpdateRule:
        """Returns the update rule of a step; the first step is 1."""

    def _first_value(self, group: dict[str, Any]) -> float:
        """Returns the initial value of the state."""
        return 0.0

    @property
    def _group(self) -> Group:
        return next(iter(self._of_anchor.values())).trained.group

    def _take_state(self, embedding: Embedding, group: dict[str, Any]) -> RowState:
        """Returns the state from disk if it is for this kind of optimizer, else new state.
        Collective.
        """
        kind = type(self).__name__
        row_state = embedding.row_state
        if row_state is not None and row_state.restored and row_state.optimizer == kind:
            row_state.restored, row_state.release = False, self._close_exchange
            return row_state
        if row_state is not None:
            row_state.close()
        first = self._first_value(group)
        tables = {name: embedding.trained.new_state(first) for name in self._state_names}
        embedding.trained.group.barrier()
        embedding.row_state = RowState(kind, tables=tables, release=self._close_exchange)
        return embedding.row_state

    def _check_states(self) -> None:
        for group in self.param_groups:
            self._check(group)
        for anchor, embedding in self._of_anchor.items():
            if embedding.row_state is not self._states[anchor]:
                raise RuntimeError(
                    f"embedding {embedding.name!r} has another optimizer, made after this one"
                )

    def _collect(self) -> list[Any]:
        """Returns, for each embedding, the gradients of the rows that this rank owns, or None.
        Collective.
        """
        if self._group.machines.count > 1:
            return self._collect_from_machines()
        if self._group.world_size == 1:
            alone = [self._outgoing(e) for e in self._of_anchor.values()]
            return [None if sent is None else [sent.rows] for sent in alone]
        if self._exchange is None:
            trained = [e.trained for e in self._of_anchor.values()]
            tables = [(t.width, t.accumulator) for t in trained]
            self._exchange = Exchange(self._group, tables)
        try:
            outgoing = [self._outgoing(e) for e in self._of_anchor.values()]
        except Exception:
            with suppress(RuntimeError):  # Raise this rank's error, not the error of the exchange.
                self._exchange.send(None)
            raise
        return self._exchange.send(outgoing)

    def _collect_from_machines(self) -> list[Any]:
        """Does the same as :meth:`_collect` over the ranks of all machines, in order of rank."""
        trained = [e.trained for e in self._of_anchor.values()]
        tables = [(t.width, t.accumulator) for t in trained]
        if self._machine_exchange is None:
            self._machine_exchange = MachineExchange(self._group, tables)
        network = self._machine_exchange
        try:
            summed = [self._summed(e) for e in self._of_anchor.values()]
        except Exception:
            with suppress(RuntimeError):
                network.send(None)
            raise
        by_machine = [summed, *network.send(summed)]
        outgoing = [
            None if rows is None else t.outgoing([rows.keys], [rows.values])
            for slot in by_machine
            for t, rows in zip(trained, slot, strict=True)
        ]
        by_rank: list[Any]
        if self._group.world_size == 1:
            by_rank = [None if sent is None else [sent.rows] for sent in outgoing]
        else:
            if self._exchange is None:
                self._exchange = Exchange(self._group, tables * len(by_machine))
            by_rank = self._exchange.send(outgoing)
        by_source: list[dict[int, SparseRows]] = [{} for _ in trained]
        for at, rows_by_rank in enumerate(by_rank):
            slot, table = divmod(at, len(trained))
            for rank, rows in enumerate(rows_by_rank or ()):
                source = (
                    self._group.machines.local_ranks[rank]
                    if slot == 0
                    else network.source(slot - 1, rank)
                )
                if source is not None:
                    by_source[table][source] = rows
        return [[rows[rank] for rank in sorted(rows)] if rows else None for rows in by_source]

    def _summed(self, embedding: Embedding) -> SparseRows | None:
        if not embedding.pending:
            return None
        return embedding.trained.summed(*zip(*embedding.pending, strict=True))

    def _outgoing(self, embedding: Embedding) -> Outgoing | None:
        if not embedding.pending:
            return None
        ids, grads = zip(*embedding.pending, strict=True)
        return embedding.trained.outgoing(ids, grads)

    def _update(self, anchor: Tensor, incoming: list[Any]) -> None:
        trained, row_state = self._of_anchor[anchor].trained, self._states[anchor]
        group = next(g for g in self.param_groups if any(p is anchor for p in g["params"]))
        scale = 1.0 / trained.group.machines.world_size if self._reduce == "mean" else 1.0
        rule = self._rule(group, row_state.step, -scale if group["maximize"] else scale)
        trained.update(incoming, rule, list(row_state.tables.values()))

    def _check_loaded(self, states: dict[int, Any]) -> None:
        for index, (anchor, row_state) in enumerate(self._states.items()):
            table = self._of_anchor[anchor].table
            for name in row_state.tables if index in states else ():
                shape = tuple(states[index][name].shape) if name in states[index] else None
                if shape != table.shape:
                    raise ValueError(
                        f"state {name!r} of embedding {index} must have shape {table.shape}, "
                        f"got {shape}"
                    )

    def _close_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._machine_exchange = None


class _StepAlong(JoinHook):
    def __init__(self, optimizer: SparseOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        self._optimizer.zero_grad()
        self._optimizer.step()


def not_supported(**arguments: Any) -> None:
    """Raises NotImplementedError for arguments that are not zero or False."""
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(f"{name}={value!r} is not supported for embeddings")


def non_negative(**arguments: float) -> None:
    """Raises ValueError for values below 0."""
    for name, value in arguments.items():
        if not value >= 0.0:
            raise ValueError(f"{name} must not be negative, got {value}")
