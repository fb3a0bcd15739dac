"""Typed face of the compiled module: addresses, sizes and streams are plain integers."""

from collections.abc import Callable, Sequence
from typing import overload

has_cuda: bool
no_cuda: str
compiler: str
cuda_compiler: str
cuda_architectures: str
max_shards: int

# memory

class Lease:
    """Is entered by all work with the memory that it is of, and closed before that is unmapped."""

    def __init__(self) -> None: ...
    def close(self, why: str) -> bool: ...
    def check(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def used_here(self) -> bool: ...
    @property
    def used_elsewhere(self) -> bool: ...

class IdMapView:
    # value_bytes: 4 or 8; 0 is the identity
    def __init__(
        self, address: int = 0, value_bytes: int = 0, leases: Sequence[Lease] = ...
    ) -> None: ...

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
        rows_on_disk: int = 0,
        disk: int = 0,
        block_rows: int = 0,
        leases: Sequence[Lease] = ...,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def leases(self) -> list[Lease]: ...
    def to_bytes(self) -> bytes: ...

class IdList:
    def __init__(
        self,
        *,
        ids: int = 0,
        id_bytes: int = 0,
        first: int = 0,
        count: int,
        out_index: int = 0,
        host_begin: int = 0,
        padded: bool = False,
        max_blocks: int = 0,
    ) -> None: ...

def map_shared(fd: int, bytes: int, on_disk: bool) -> int: ...
def unmap_shared(address: int, bytes: int) -> None: ...
def ask_for_huge_pages(address: int, bytes: int) -> None: ...
def make_huge_pages(address: int, bytes: int) -> None: ...
def bytes_as_dlpack(address: int, num_bytes: int, device: int, owner: object) -> object: ...
def check_ids(ids: IdList, limit: int, num_threads: int) -> None: ...
def gather(
    table: TableView, ids: IdList, out: int, device: int, stream: int, num_threads: int
) -> None: ...
def stage(
    table: TableView,
    ids: IdList,
    buffer: int,
    out: int,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def alignment_bits(table: TableView) -> int: ...
def row_addresses(
    table: TableView, ids: IdList, out: int, device: int, stream: int, num_threads: int
) -> None: ...
def scatter(
    table: TableView, ids: IdList, values: int, device: int, stream: int, num_threads: int
) -> None: ...

class UpdateRule:
    def __init__(
        self,
        *,
        optimizer: int,
        step_size: float,
        grad_scale: float = 1.0,
        eps: float = 0.0,
        beta1: float = 0.0,
        beta2: float = 0.0,
    ) -> None: ...

def sum_runs(
    values: int,
    dtype: int,
    width: int,
    positions: int,
    offsets: int,
    count: int,
    out: int,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def sparse_update(
    table: TableView,
    dtype: int,
    states: Sequence[TableView],
    rule: UpdateRule,
    rows: int,
    grads: int,
    count: int,
    width: int,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def post_round(address: int, round: int, lease: Lease) -> None: ...
def await_round(
    addresses: Sequence[int], round: int, seconds: float, lease: Lease
) -> list[int]: ...

# The rest of the memory area exists where has_cuda is true.
def cuda_malloc(device: int, bytes: int) -> int: ...
def cuda_free(device: int, address: int) -> None: ...
def ipc_handle(device: int, address: int) -> bytes: ...
def open_ipc(device: int, handle: bytes) -> int: ...
def close_ipc(device: int, address: int) -> None: ...
def can_access(device: int, peer: int) -> bool: ...
def enable_peer_access(device: int, peer: int) -> None: ...
def register_host(device: int, address: int, bytes: int) -> None: ...
def unregister_host(device: int, address: int) -> None: ...
def use_thread_local_capture_mode() -> None: ...
def raise_pending(device: int) -> None: ...

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
        rows_on_disk: int = 0,
        disk: tuple[int, int, int] = ...,
        order: IdMapView = ...,
        leases: Sequence[Lease] = ...,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...

class GraphView:
    def __init__(self, *, lists: CscView, destinations: IdMapView, sources: IdMapView) -> None: ...
    def to_bytes(self) -> bytes: ...

class ListChunk:
    def __init__(
        self,
        *,
        first: int,
        count: int,
        indptr: int,
        indices: int,
        index_bytes: int,
        edge_begin: int = 0,
        edge_ids: int = 0,
    ) -> None: ...

# Id maps are (address, bytes per value); 0 bytes stand for the identity.
def scatter_lists(
    view: CscView,
    chunk: ListChunk,
    destinations: IdMapView,
    sources: IdMapView,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def gather_lists(
    view: CscView,
    chunk: ListChunk,
    destinations: IdMapView,
    sources: IdMapView,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def degrees(
    view: CscView,
    first: int,
    count: int,
    destinations: IdMapView,
    out: int,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def coo_to_csc(
    source: int,
    destination: int,
    id_bytes: int,
    num_edges: int,
    num_sources: int,
    num_destinations: int,
    indptr: int,
    indices: int,
    perm: int,
) -> bool: ...
def crc32c(address: int, num_bytes: int, previous: int) -> int: ...

# sampling

_NodeResult = tuple[int, int, int, list[int]]  # ids, batch, duplicate counts; nodes per hop
_EdgeResult = tuple[int, int, int, list[int]]  # row, col, edge ids; edges per hop
_BlockResult = tuple[int, int, int]  # indptr, first target, targets
SampleResult = tuple[list[_NodeResult], list[_EdgeResult], list[_BlockResult]]
# The last is where the counts lie: by node type of each hop, then by relation of each hop.
FixedResult = tuple[list[_NodeResult], list[_EdgeResult], list[_BlockResult], int]

class Choice:
    # 0 bytes stand for no weights or no times.
    def __init__(
        self,
        *,
        replace: bool = False,
        last: bool = False,
        weights: TableView = ...,
        weight_bytes: int = 0,
        times: TableView = ...,
        time_bytes: int = 0,
        edge_time: bool = False,
        per_source: bool = False,
        layer_dependency: bool = False,
    ) -> None: ...

class NodeMap:
    # words: address of [num_nodes] int32, all -1. Changed by every sample that it is lent to.
    def __init__(self, *, words: int, num_nodes: int, least_bits: int) -> None: ...

class KHopSampler:
    def __init__(
        self,
        *,
        node_types: Sequence[tuple[str, int, IdMapView, IdMapView]],
        relations: Sequence[tuple[int, int, CscView, Sequence[int], Choice]],
        expand_all: bool,
        disjoint: bool,
        induced: bool,
        edge_ids: bool,
        duplicate_counts: bool,
        index_bytes: int,
    ) -> None: ...
    def sample(
        self,
        seeds: Sequence[tuple[int, int, int]],
        seed: int,
        seed_times: int,
        maps: Sequence[NodeMap],
        mailbox: int,
        allocate: Callable[[int], int],
        device: int,
        stream: int,
        num_threads: int,
    ) -> SampleResult: ...
    def sample_static_shape(
        self,
        seeds: Sequence[tuple[int, int, int, int]],
        seed: int,
        seed_at: int,
        seed_times: int,
        direct: Sequence[int],
        max_nodes: Sequence[Sequence[int]],
        max_edges: Sequence[Sequence[int]],
        allocate: Callable[[int], int],
        device: int,
        stream: int,
    ) -> FixedResult: ...

class Walks:
    # accept: chances of taking the node before, a neighbour of it, any other; out of 2**53.
    def __init__(
        self,
        *,
        count: int,
        length: int,
        first_step: int,
        steps: int,
        nodes: int,
        edge_ids: int,
        positions: int,
        to_internal: IdMapView,
        to_user: IdMapView,
        seed: int,
        stream: int,
        restart_below: int,
        restart_every: int,
        jump: bool,
        stay: bool,
        accept: Sequence[int],
    ) -> None: ...

# Nodes; addresses of the running sum of weights and of the times (0: none); the earliest node.
_NodeDraw = tuple[int, int, int, int]

class Negatives:
    def __init__(
        self,
        *,
        count: int,
        source: _NodeDraw,
        destination: _NodeDraw,
        draw_sources: bool,
        sources: int,
        destinations: int,
        latest: int,
        is_edge: int,
        tries: int,
        source_to_internal: IdMapView,
        destination_to_internal: IdMapView,
        seed: int,
        stream: int,
    ) -> None: ...

def random_walk(csc: CscView, walks: Walks, device: int, stream: int, num_threads: int) -> None: ...
def top_visits(
    nodes: int,
    targets: int,
    per_target: int,
    keep: int,
    top_nodes: int,
    top_counts: int,
    allocate: Callable[[int], int],
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def sample_negatives(
    csc: CscView, negatives: Negatives, device: int, stream: int, num_threads: int
) -> None: ...

# aggregate

class CsrMatrix:
    def __init__(
        self,
        *,
        indptr: int,
        indptr_bytes: int,
        indices: int,
        index_bytes: int,
        edge_ids: int,
        edge_id_bytes: int,
        num_rows: int,
        num_columns: int,
        num_edges: int,
    ) -> None: ...

class Operands:
    def __init__(
        self,
        *,
        message: int,
        x: int,
        e: int,
        columns: int,
        e_columns: int,
        x_rows: int = 0,
        leases: Sequence[Lease] = ...,
    ) -> None: ...

def transpose(rows: CsrMatrix, indptr: int, indices: int, positions: int) -> None: ...
def begins(keys: int, id_bytes: int, count: int, num_keys: int, indptr: int) -> bool: ...
def counts_up(ids: int, id_bytes: int, count: int) -> bool: ...
def spmm(
    rows: CsrMatrix,
    of: Operands,
    dtype: int,
    mean: bool,
    out: int,
    max_chunks: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...
def spread(
    rows: CsrMatrix,
    of: Operands,
    dtype: int,
    counts: int,
    out: int,
    max_chunks: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...
def extremum(
    rows: CsrMatrix,
    of: Operands,
    dtype: int,
    minimum: bool,
    out: int,
    arg: int,
    arg_bytes: int,
    max_chunks: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...
def extremum_grad(
    rows: CsrMatrix,
    of: Operands,
    dtype: int,
    arg: int,
    arg_bytes: int,
    grad: int,
    grad_x: int,
    grad_e: int,
    transpose: CsrMatrix | None,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...

# An operand is (address, 0 source | 1 destination | 2 edge, columns).
def sddmm(
    rows: CsrMatrix,
    left: tuple[int, int, int],
    right: tuple[int, int, int],
    message: int,
    dtype: int,
    heads: int,
    depth: int,
    out: int,
    device: int,
    stream: int,
    num_threads: int,
) -> None: ...
def edge_softmax(
    rows: CsrMatrix,
    dtype: int,
    heads: int,
    values: int,
    grad: int,
    out: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...

class Attention:
    def __init__(
        self,
        *,
        rows: CsrMatrix,
        dtype: int,
        dynamic: bool,
        heads: int,
        depth: int,
        loops: int,
        slope: float,
        x: int,
        left: int,
        right: int,
        att: int,
    ) -> None: ...

def attention(
    of: Attention,
    out: int,
    lse: int,
    max_chunks: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...
def attention_grad(
    of: Attention,
    grad: int,
    lse: int,
    delta: int,
    grad_x: int,
    grad_left: int,
    grad_right: int,
    grad_att: int,
    transpose: CsrMatrix | None,
    max_chunks: int,
    device: int,
    stream: int,
    num_threads: int,
    allocate: Callable[[int], int],
) -> None: ...
def attention_fits(dtype: int, heads: int, depth: int, device: int) -> bool: ...
def limit_vector_bytes(bytes: int) -> int: ...
def vector_bytes() -> int: ...
