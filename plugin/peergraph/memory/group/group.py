"""The node group: the ranks of this host, which share memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Imported early, before init_process_group: DistributedDataParallel imports this module too. If it
# is imported after init_process_group, its functions keep the process group as a default value for
# ever, and destroy_process_group leaves Gloo's threads running. A thread that needs the interpreter
# while that shuts down aborts the process.
import torch.distributed.nn.functional

import peergraph._C as _C
from peergraph.environment import read_variable
from peergraph.errors import PeerLostError
from peergraph.memory.group.calls import Calls
from peergraph.memory.group.channel import Channel
from peergraph.memory.group.machines import MachineFailedError, Machines
from peergraph.memory.group.rank_names import RankNames
from peergraph.memory.group.rendezvous import join
from peergraph.memory.group.values import disagreement, pack, unpack
from peergraph.number_arguments import check_seconds

_DEFAULT_TIMEOUT_S = 300.0
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Group:
    """The ranks of one host, one process each, that share memory (WholeGraph III-B).

    :meth:`current` returns it. Training over several hosts is data parallel, with one group for
    each host. A pickled group names the ranks but takes no part in collectives.
    """

    rank: int
    """The number of this process among the host's ranks, from 0."""
    world_size: int
    """The number of ranks of the host."""
    device: torch.device
    """The device on which this rank computes: the CPU or one GPU."""
    timeout: float
    """Seconds that a collective waits for the other ranks."""
    names: RankNames
    """Names the ranks of the group in errors."""
    machines: Machines
    """All machines of the process group, and the ranks of each."""
    shared: dict[Any, Any]
    """Objects that are made once for these ranks, by key. All groups that :meth:`current` returns
    for a process group have the same dictionary."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        timeout: float,
        channel: Channel | None = None,
        calls: Calls | None = None,
        machines: Machines | None = None,
        shared: dict[Any, Any] | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.timeout = timeout
        self.machines = machines or Machines.alone(rank, world_size)
        self.names = self.machines.rank_names()
        self._channel = channel
        self._calls = calls or Calls()
        self.shared = {} if shared is None else shared

    @classmethod
    def current(
        cls,
        device: str | torch.device | None = None,
        timeout: float | None = None,
        watch: bool | None = None,
    ) -> Group:
        """Returns the group of this host's ranks. The first call for a process group is collective.

        Uses torch.distributed if it is initialised; otherwise initialises it from torchrun's
        environment variables if they are set; otherwise this process is the only rank.

        Args:
            device: "cpu", "cuda" or "cuda:i". Default: the GPU of this local rank if the process
                group uses NCCL or, without a process group, if there is a GPU; else the CPU.
            timeout: seconds that collectives wait for other ranks. Default: the environment
                variable PEERGRAPH_TIMEOUT, else 300.
            watch: whether a thread watches the other ranks' processes. When one dies, the thread
                ends this rank's waits, also those in torch.distributed (it aborts NCCL's
                communicators), and the main thread raises PeerLostError, at any line, like
                KeyboardInterrupt. A process that ends without an exception has not died. The first
                call for a process group decides. Default: the environment variable PEERGRAPH_WATCH,
                else True.

        Raises:
            PeerLostError: a rank died or did not call this within the timeout.
            ValueError: the device or the timeout is not valid.
            RuntimeError: the device is a GPU, and the machine has no GPU or the build no CUDA.
        """
        timeout = _check_timeout(timeout)
        watches = _check_watch(watch)
        checked = _check_device(device)
        _initialise_from_torchrun(timeout)
        if not dist.is_initialized():
            return cls(0, 1, _resolve_device(checked, 0), timeout)
        joined = join(timeout, watches)
        return cls(
            joined.rank,
            joined.world_size,
            _resolve_device(checked, joined.rank),
            timeout,
            joined.channel,
            joined.calls,
            joined.machines,
            joined.shared,
        )

    @property
    def node_group(self) -> Group:
        """The ranks of this machine, which share memory: this group."""
        return self

    @property
    def torch_ranks(self) -> tuple[int, ...]:
        """The number of each rank in torch.distributed."""
        return self.machines.local_ranks

    def barrier(self) -> None:
        """Waits for all ranks, and for this rank's GPU: then every rank sees all earlier writes.

        Collective. Raises PeerLostError naming the ranks that died or did not join in time, and its
        subclass CollectiveMismatchError if ranks called another collective.
        """
        self.synchronize()
        self._exchange("Group.barrier", b"")

    def all_gather(self, value: Any) -> list[Any]:
        """Returns every rank's value in order of rank. Collective; any picklable object.

        Raises PeerLostError as :meth:`barrier` does. If a value cannot be pickled, the rank that
        passed it raises pickle's error, and the others raise RuntimeError.
        """
        data, error = pack(value)
        parts = self._exchange("Group.all_gather", data)
        if error is not None:
            raise error
        return [unpack(part, self.names([rank])) for rank, part in enumerate(parts)]

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Returns rank `src`'s value on every rank. Collective; any picklable object.

        Raises as :meth:`all_gather` does, and ValueError if there is no rank `src`.
        """
        if not 0 <= src < self.world_size:
            raise ValueError(f"src must be a rank of 0..{self.world_size - 1}, got {src}")
        data, error = pack(value) if self.rank == src else (b"", None)
        parts = self._exchange(f"Group.broadcast from rank {src}", data)
        if error is not None:
            raise error
        return unpack(parts[src], self.names([src]))

    def all_gather_machines(self, value: Any) -> list[Any]:
        """Returns the value of rank 0 of each machine's node group, in order of the machines.
        Collective over all ranks of all machines.

        Args:
            value: a small value of JSON (numbers, texts, lists, dicts with texts as keys): it goes
                through torch.distributed's store.

        Raises PeerLostError naming the machines that did not join in time, or as :meth:`barrier`;
        within collective_call_machines also MachineFailedError, if a machine has failed before.
        """
        values = self.all_gather_results(value)
        failed = MachineFailedError.find(values)
        if failed is not None:
            raise failed
        return values

    def all_gather_results(self, value: Any) -> list[Any]:
        """Does the same as :meth:`all_gather_machines`, but returns the errors of failed machines
        in the list instead of raising them.
        """
        if self.machines.count == 1:
            return [self.broadcast(value)]
        with self.collective("Group.all_gather_machines"), self._calls.enter("machines") as call:
            values = None
            if self.rank == 0:
                values = self.machines.exchange(value, call.in_full(), self.timeout)
            return list(self.broadcast(values))

    def agree(self, **arguments: object) -> None:
        """Raises ValueError on every rank if the ranks' arguments differ, compared by their `repr`.

        Collective. The error names the first argument that differs, and its values by rank.
        """
        with self.collective("Group.agree"):
            texts = {name: repr(value) for name, value in arguments.items()}
            message = disagreement(self.all_gather(texts), self.names)
        if message is not None:
            raise ValueError(message)

    @contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """Returns a context in which this rank is in a collective of that name, for errors.

        If a signal ends it (KeyboardInterrupt, SystemExit), the waits of the other ranks end too.
        """
        with self._calls.enter(name) as call:
            try:
                yield
            except Exception as error:
                first = error if self._channel is None else self._channel.end_of(call, error)
                if first is not error:
                    raise first from None
                raise
            except BaseException as error:
                if self._channel is not None:
                    self._channel.break_off(call, error)
                raise

    def await_ranks(self, missing: Callable[[float], list[int]]) -> None:
        """Waits until no rank is missing. Collective.

        `missing(seconds)` waits for at most that time and returns the missing ranks. Raises
        PeerLostError as :meth:`barrier` does.
        """
        if self.world_size > 1:
            with self._calls.enter("Group.await_ranks") as call:
                self._collective_channel().await_ranks(call, missing, self.timeout)

    def announce(self, name: str) -> None:
        """Tells the other ranks of this machine that this one joins an exchange over
        torch.distributed or shared memory. Returns at once; every rank calls it before it joins.

        Args:
            name: the exchange, for errors; equal on all ranks.

        Raises:
            CollectiveMismatchError: a rank has joined another exchange or collective instead.
            PeerLostError: a rank has died. While ranks wait in the exchange, the watcher raises it
                for ranks that leave or do not join within the timeout.
        """
        if self._channel is not None:
            with self._calls.enter(name) as call:
                self._channel.announce(call, self.timeout)

    def synchronize(self) -> None:
        """Waits until this rank's device has finished. Not collective."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _exchange(self, name: str, value: bytes) -> Sequence[bytes | memoryview]:
        if self.world_size == 1:
            return [value]
        with self._calls.enter(name) as call:
            return self._collective_channel().exchange(call, value, self.timeout)

    def _collective_channel(self) -> Channel:
        if self._channel is None:
            raise RuntimeError(
                "collectives are for the ranks themselves: this group came by pickle from one"
            )
        return self._channel

    def __reduce__(self) -> tuple[Any, ...]:
        return (Group, (self.rank, self.world_size, self.device, self.timeout))

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, world_size={self.world_size}, device={self.device})"


def _initialise_from_torchrun(timeout: float) -> None:
    if dist.is_initialized() or not all(name in os.environ for name in _TORCHRUN_VARIABLES):
        return
    backend = "gloo"
    if _has_gpu():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        raise PeerLostError(
            f"the {os.environ['WORLD_SIZE']} ranks that the environment announces did not all "
            f"join within {timeout:g} s: {error}"
        ) from error


def _has_gpu() -> bool:
    return bool(_C.has_cuda) and torch.cuda.is_available()


def _check_timeout(timeout: float | None) -> float:
    source = "timeout"
    if timeout is None:
        source = "PEERGRAPH_TIMEOUT"
        timeout = read_variable(source, float, "a number of seconds", _DEFAULT_TIMEOUT_S)
    check_seconds(source, timeout)
    return float(timeout)


def _check_watch(watch: bool | None) -> bool:
    if watch is not None:
        return watch
    values = {"0": False, "1": True}
    return read_variable("PEERGRAPH_WATCH", values.__getitem__, "0 or 1", True)


def _check_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be "cpu", "cuda" or "cuda:i", got {device!r}') from error
    if checked.type not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu", "cuda" or "cuda:i", got {device!r}')
    if checked.type == "cuda" and not _C.has_cuda:
        raise RuntimeError(f"device is {checked}, but peergraph was built without CUDA")
    if checked.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device is {checked}, but torch finds no usable GPU")
    if checked.index is not None and checked.type == "cuda":
        count = torch.cuda.device_count()
        if checked.index >= count:
            raise ValueError(f"device is {checked}, but there are {count} GPUs")
    return torch.device("cpu") if checked.type == "cpu" else checked


def _resolve_device(device: torch.device | None, local_rank: int) -> torch.device:
    if device is None:
        use_gpu = _has_gpu() and (not dist.is_initialized() or "nccl" in _backends())
        device = torch.device("cuda" if use_gpu else "cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return device


def _backends() -> str:
    return str(dist.get_backend_config())
