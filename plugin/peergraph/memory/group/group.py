"""The node group: the ranks of this host, which share memory."""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# DistributedDataParallel imports it too. Where that is after init_process_group, its functions keep
# the process group for good, as a default value, and destroy_process_group leaves Gloo's threads
# running: one that needs the interpreter while that shuts down aborts the process.
import torch.distributed.nn.functional
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

import peergraph._C as _C
from peergraph.errors import PeerLostError
from peergraph.memory.group.channel import Channel, wait_for_keys
from peergraph.memory.group.process import host_identity

_DEFAULT_TIMEOUT_S = 300.0
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Group:
    """The ranks of one host, one process each, that share memory (WholeGraph III-B).

    Made with :meth:`current`. Across hosts training is data parallel; each host has a group of its
    own. A pickled group names the ranks but takes no part in collectives.
    """

    rank: int
    """This process among the host's ranks, from 0."""
    world_size: int
    """How many ranks the host has."""
    device: torch.device
    """Where this rank computes: the CPU or one GPU."""
    timeout: float
    """Seconds that a collective waits for the other ranks."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        timeout: float,
        channel: Channel | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.timeout = timeout
        self._channel = channel

    @classmethod
    def current(
        cls, device: str | torch.device | None = None, timeout: float | None = None
    ) -> Group:
        """Returns the group of this host's ranks, made at the first call. Collective.

        Uses torch.distributed where it is initialised; else initialises it from torchrun's
        environment variables; else the process is the only rank. Calls with the same arguments
        return the same group until the process group changes.

        Args:
            device: "cpu", "cuda" or "cuda:i". Default: the GPU of this local rank if the process
                group uses NCCL or, without a process group, if there is a GPU; else the CPU.
            timeout: seconds that collectives wait for other ranks. Default: the environment
                variable PEERGRAPH_TIMEOUT, else 300.

        Raises:
            PeerLostError: a rank died or did not call this within the timeout.
            ValueError: the device or the timeout is not one.
            RuntimeError: the device is a GPU, and this build or machine has none.
        """
        timeout = _check_timeout(timeout)
        wanted = _check_device(device)
        _initialise_from_torchrun(timeout)
        if not dist.is_initialized():
            return cls(0, 1, _resolve_device(wanted, 0), timeout)
        joined = _join(timeout)
        return cls(
            joined.rank,
            joined.world_size,
            _resolve_device(wanted, joined.rank),
            timeout,
            joined.channel,
        )

    def barrier(self) -> None:
        """Waits for all ranks, and for this rank's GPU: what was written before is seen after.

        Collective. Raises PeerLostError naming the ranks that died or did not come in time.
        """
        self.synchronize()
        self._exchange(b"")

    def all_gather(self, value: Any) -> list[Any]:
        """Returns every rank's value in order of rank. Collective; any picklable object.

        Raises PeerLostError as :meth:`barrier` does.
        """
        return [pickle.loads(data) for data in self._exchange(pickle.dumps(value))]

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Returns rank `src`'s value on every rank. Collective; any picklable object.

        Raises PeerLostError as :meth:`barrier` does, ValueError where there is no rank `src`.
        """
        if not 0 <= src < self.world_size:
            raise ValueError(f"src must be a rank of 0..{self.world_size - 1}, got {src}")
        data = pickle.dumps(value) if self.rank == src else b""
        return pickle.loads(self._exchange(data)[src])

    def await_ranks(self, missing: Callable[[float], list[int]]) -> None:
        """Waits until `missing(seconds)`, which waits so long itself, returns no rank. Collective.

        Raises PeerLostError as :meth:`barrier` does.
        """
        if self.world_size > 1:
            self._collective_channel().await_ranks(missing)

    def synchronize(self) -> None:
        """Waits until this rank's device has finished. Not collective."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _exchange(self, value: bytes) -> list[bytes]:
        if self.world_size == 1:
            return [value]
        return self._collective_channel().exchange(value)

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


@dataclass(frozen=True)
class _Joined:
    rank: int
    world_size: int
    channel: Channel | None


class _Rendezvous:
    """What this process has joined: one channel per timeout, for one process group."""

    def __init__(self) -> None:
        self.process_group: weakref.ref[Any] | None = None
        self.joined: dict[float, _Joined] = {}
        self.count = 0


_rendezvous = _Rendezvous()


def _join(timeout: float) -> _Joined:
    world = dist.group.WORLD
    if _rendezvous.process_group is None or _rendezvous.process_group() is not world:
        _rendezvous.__init__()  # type: ignore[misc]
        _rendezvous.process_group = weakref.ref(world)
    if timeout not in _rendezvous.joined:
        _rendezvous.count += 1
        try:
            _rendezvous.joined[timeout] = _meet(f"peergraph/{_rendezvous.count}", timeout)
        except PeerLostError:
            raise
        except RuntimeError as error:
            raise PeerLostError(f"the store of torch.distributed was lost: {error}") from error
    return _rendezvous.joined[timeout]


def _meet(prefix: str, timeout: float) -> _Joined:
    """Finds the ranks of this host through torch.distributed's store and opens their channel."""
    deadline = time.monotonic() + timeout
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    store.set(f"{prefix}/host/{rank}", host_identity())
    keys = [f"{prefix}/host/{r}" for r in range(size)]
    _wait(store, keys, deadline, timeout)
    hosts = [store.get(key).decode() for key in keys]
    local = [r for r in range(size) if hosts[r] == hosts[rank]]
    if len(local) == 1:
        return _Joined(0, 1, None)
    port_key = f"{prefix}/port/{local[0]}"
    if rank == local[0]:
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set(port_key, str(server.port))
        channel = Channel(server, 0, len(local), timeout)
    else:
        _wait(store, [port_key], deadline, timeout)
        client = TCPStore("127.0.0.1", int(store.get(port_key)), timeout=timedelta(seconds=timeout))
        channel = Channel(client, local.index(rank), len(local), timeout)
    return _Joined(local.index(rank), len(local), channel)


def _wait(store: Store, keys: list[str], deadline: float, timeout: float) -> None:
    missing = wait_for_keys(store, keys, deadline, lambda _: None)
    if missing:
        names = ", ".join(keys[i].rpartition("/")[2] for i in missing)
        raise PeerLostError(f"rank {names} did not join within {timeout:g} s")


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
        text = os.environ.get(source, str(_DEFAULT_TIMEOUT_S))
        try:
            timeout = float(text)
        except ValueError:
            raise ValueError(f"{source} must be a number of seconds, got {text!r}") from None
    if not 0 < timeout < float("inf"):
        raise ValueError(f"{source} must be a positive number of seconds, got {timeout}")
    return float(timeout)


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


def _resolve_device(wanted: torch.device | None, local_rank: int) -> torch.device:
    if wanted is None:
        use_gpu = _has_gpu() and (not dist.is_initialized() or "nccl" in _backends())
        wanted = torch.device("cuda" if use_gpu else "cpu")
    if wanted.type == "cuda" and wanted.index is None:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return wanted


def _backends() -> str:
    return str(dist.get_backend_config())
