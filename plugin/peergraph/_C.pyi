"""Typed face of the compiled module: addresses, sizes and streams are plain integers."""

from collections.abc import Sequence
from typing import overload

has_cuda: bool
compiler: str
cuda_compiler: str
cuda_architectures: str
max_shards: int

# memory

class TableView:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(
        self,
        *,
        replicated: int,
        sharded: int,
        rows: int,
        row_bytes: int,
        rank: int,
        replicas: Sequence[int],
        shards: Sequence[int],
        host: int,
        order: int = 0,
        order_bytes: int = 0,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...

# store

class CscView:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(
        self,
        *,
        replicated: int,
        sharded: int,
        rows: int,
        num_edges: int,
        index_bytes: int,
        rank: int,
        replicas: Sequence[tuple[int, int, int]],
        shards: Sequence[tuple[int, int, int]],
        host: tuple[int, int, int],
        edge_ids: TableView = ...,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...

# sampling
