"""Types of the compiled module; `make stub` writes them."""

from __future__ import annotations

import collections.abc
import typing

import torch

class Launch:
    def __init__(self, *, device: int, stream: int, num_threads: int) -> None: ...
    @property
    def device(self) -> int:
        """
        Index of the GPU; -1 is the CPU.
        """

    @property
    def num_threads(self) -> int:
        """
        For work on the CPU.
        """

    @property
    def stream(self) -> int:
        """
        Address of the CUDA stream; 0 on the CPU.
        """

class DType:
    __members__: typing.ClassVar[dict[str, DType]]
    bfloat16: typing.ClassVar[DType]
    float16: typing.ClassVar[DType]
    float32: typing.ClassVar[DType]
    float64: typing.ClassVar[DType]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Lease:
    def __init__(self) -> None: ...
    def check(self) -> None: ...
    def close(self, why: str) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def used_elsewhere(self) -> bool: ...
    @property
    def used_here(self) -> bool: ...

class IdMapView:
    def __init__(
        self, ids: torch.Tensor | None = None, leases: collections.abc.Sequence[Lease] = []
    ) -> None: ...

class TableView:
    @typing.overload
    def __init__(self) -> None: ...
    @typing.overload
    def __init__(
        self,
        *,
        replicated: int,
        sharded: int,
        rows: int,
        row_bytes: int,
        rank: int,
        replicas: collections.abc.Sequence[int],
        shards: collections.abc.Sequence[int],
        host: int,
        order: torch.Tensor | None = None,
        rows_on_disk: int = 0,
        disk: int = 0,
        block_rows: int = 0,
        leases: collections.abc.Sequence[Lease] = [],
    ) -> None: ...
    def to_bytes(self) -> bytes: ...
    @property
    def leases(self) -> list[Lease]: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def rows(self) -> int: ...

class StoredType:
    __members__: typing.ClassVar[dict[str, StoredType]]
    bfloat16: typing.ClassVar[StoredType]
    float16: typing.ClassVar[StoredType]
    float8_e4m3: typing.ClassVar[StoredType]
    float8_e5m2: typing.ClassVar[StoredType]
    int8: typing.ClassVar[StoredType]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class RowCodec:
    def __init__(
        self,
        *,
        stored: StoredType,
        dtype: DType,
        columns: int,
        group_columns: int = 0,
        scales_begin: int = 0,
    ) -> None: ...

class IdList:
    def __init__(
        self,
        *,
        ids: torch.Tensor | None = None,
        first: int = 0,
        count: int = 0,
        out_index: torch.Tensor | None = None,
        host_begin: torch.Tensor | None = None,
        padded: bool = False,
        max_blocks: int = 0,
    ) -> None: ...

class Content:
    def __init__(
        self,
        *,
        tensors: collections.abc.Sequence[torch.Tensor],
        are_edge_indices: collections.abc.Sequence[bool],
        digests: torch.Tensor,
    ) -> None: ...
    def is_unchanged(self, launch: Launch) -> bool: ...
    def write(self, launch: Launch) -> None: ...

class TorchFunctions:
    def __init__(
        self,
        *,
        empty: int,
        data_pointer: int,
        delete_tensor: int,
        set_stream: int,
        reset_stream: int,
        device_type: int,
        uint8: int,
        int32: int,
        int64: int,
    ) -> None: ...

class StoredTable:
    def __init__(
        self,
        *,
        table: TableView,
        codec: RowCodec | None,
        scales: TableView | None,
        dtype: int,
        item_bytes: int,
        row_shape: collections.abc.Sequence[int],
    ) -> None: ...

class Optimizer:
    __members__: typing.ClassVar[dict[str, Optimizer]]
    adagrad: typing.ClassVar[Optimizer]
    adam: typing.ClassVar[Optimizer]
    sgd: typing.ClassVar[Optimizer]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class UpdateRule:
    def __init__(
        self,
        *,
        optimizer: Optimizer,
        step_size: float,
        grad_scale: float = 1.0,
        eps: float = 0.0,
        beta1: float = 0.0,
        beta2: float = 0.0,
    ) -> None: ...

class MachineSplit:
    def __init__(self, *, rows: int, hot: int, machines: int, index: int) -> None: ...

class RowRoutes:
    def __init__(self, first_keys: torch.Tensor, count: int) -> None: ...

class CscView:
    @typing.overload
    def __init__(self) -> None: ...
    @typing.overload
    def __init__(
        self,
        *,
        replicated: int,
        sharded: int,
        rows: int,
        num_edges: int,
        index_bytes: int,
        rank: int,
        replicas: collections.abc.Sequence[collections.abc.Sequence[int]],
        shards: collections.abc.Sequence[collections.abc.Sequence[int]],
        host: collections.abc.Sequence[int],
        edge_ids: TableView = ...,
        rows_on_disk: int = 0,
        disk: collections.abc.Sequence[int] = [0, 0, 0],
        order: IdMapView = ...,
        leases: collections.abc.Sequence[Lease] = [],
    ) -> None: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def rows(self) -> int: ...

class GraphView:
    def __init__(self, *, lists: CscView, destinations: IdMapView, sources: IdMapView) -> None: ...
    def to_bytes(self) -> bytes: ...

class ListChunk:
    def __init__(
        self,
        *,
        first: int,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        edge_begin: int = 0,
        edge_ids: torch.Tensor | None = None,
    ) -> None: ...

class ProductKind:
    __members__: typing.ClassVar[dict[str, ProductKind]]
    bfloat16: typing.ClassVar[ProductKind]
    float16: typing.ClassVar[ProductKind]
    int8: typing.ClassVar[ProductKind]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Choice:
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
        window: int = -1,
        per_source: bool = False,
        layer_dependency: bool = False,
        skip_zero_weights: bool = False,
    ) -> None: ...

class NodeMap:
    def __init__(self, *, words: torch.Tensor, least_bits: int) -> None: ...

class KHopSampler:
    @staticmethod
    def of_walks(
        *,
        node_type: tuple[str, int, IdMapView, IdMapView],
        metapath: collections.abc.Sequence[CscView],
        num_walks: int,
        walk_length: int,
        num_neighbors: int,
        num_layers: int,
        restart_below: int,
        stream: int,
    ) -> KHopSampler: ...
    def __init__(
        self,
        *,
        node_types: collections.abc.Sequence[tuple[str, int, IdMapView, IdMapView]],
        relations: collections.abc.Sequence[
            tuple[int, int, CscView, collections.abc.Sequence[int], Choice]
        ],
        expand_all: bool,
        disjoint: bool,
        induced: bool,
        edge_ids: bool,
        duplicate_counts: bool,
        index_bytes: int,
    ) -> None: ...
    def lists_in_order(self, relation: int, word: torch.Tensor, launch: Launch) -> bool: ...
    def sample(
        self,
        seeds: collections.abc.Sequence[tuple[int, torch.Tensor]],
        seed: int,
        seed_times: torch.Tensor | None,
        seed_starts: torch.Tensor | None,
        maps: collections.abc.Sequence[NodeMap],
        mailbox: torch.Tensor | None,
        scratch: torch.Tensor | None,
        allocate: collections.abc.Callable[[int], int],
        allocate_result: collections.abc.Callable[[int, int, int], tuple[int, ...]],
        launch: Launch,
    ) -> tuple[typing.Any, ...]: ...
    def set_in_order(self, relation: int) -> None: ...
    @property
    def mailbox_words(self) -> int: ...
    @property
    def relation_bytes(self) -> int: ...
    def place_relations(self, memory: torch.Tensor, launch: Launch) -> None: ...
    def sample_static_shape(
        self,
        seeds: collections.abc.Sequence[tuple[int, torch.Tensor, torch.Tensor | None]],
        seed: int,
        seed_on_device: torch.Tensor | None,
        seed_times: torch.Tensor | None,
        seed_starts: torch.Tensor | None,
        direct: collections.abc.Sequence[torch.Tensor],
        max_nodes: collections.abc.Sequence[collections.abc.Sequence[int]],
        max_edges: collections.abc.Sequence[collections.abc.Sequence[int]],
        reported: bool,
        valid_padding: bool,
        allocate: collections.abc.Callable[[int], int],
        launch: Launch,
    ) -> tuple[typing.Any, ...]: ...

class TablesOfBatch:
    def __init__(
        self, tables: collections.abc.Sequence[tuple[StoredTable, StoredTable | None, bool, int]]
    ) -> None: ...

class BatchThread:
    def __init__(
        self,
        *,
        torch: TorchFunctions,
        launch: Launch,
        most_scratch: int,
        adopt: collections.abc.Callable[[list[typing.Any]], list[typing.Any]],
    ) -> None: ...
    def close(self) -> None: ...
    def submit(
        self,
        *,
        number: int,
        sampler: KHopSampler,
        seeds: collections.abc.Sequence[tuple[int, torch.Tensor]],
        seed: int,
        seed_times: torch.Tensor | None,
        seed_starts: torch.Tensor | None,
        maps: collections.abc.Sequence[NodeMap],
        mailbox: torch.Tensor | None,
        work_space: int,
        tables: TablesOfBatch,
        list_sizes: torch.Tensor | None,
        max_blocks: int,
        num_threads: int,
        after: int | None,
        memory: typing.Any,
    ) -> None: ...
    def take(self, reader: int) -> typing.Any: ...
    def wait(self, seconds: float) -> bool: ...
    @property
    def has_failed(self) -> bool: ...
    @property
    def oldest(self) -> int | None: ...

class Walks:
    def __init__(
        self,
        *,
        first_step: int,
        steps: int,
        nodes: torch.Tensor,
        edge_ids: torch.Tensor | None,
        positions: torch.Tensor,
        to_internal: IdMapView,
        to_user: IdMapView,
        seed: int,
        stream: int,
        restart_below: int,
        restart_every: int,
        jump: bool,
        stay: bool,
        accept: collections.abc.Sequence[int],
    ) -> None: ...

class Negatives:
    def __init__(
        self,
        *,
        source: tuple[int, torch.Tensor | None, torch.Tensor | None, int],
        destination: tuple[int, torch.Tensor | None, torch.Tensor | None, int],
        draw_sources: bool,
        sources: torch.Tensor,
        destinations: torch.Tensor,
        latest: torch.Tensor | None,
        is_edge: torch.Tensor | None,
        tries: int,
        source_to_internal: IdMapView,
        destination_to_internal: IdMapView,
        seed: int,
        stream: int,
    ) -> None: ...

class Message:
    __members__: typing.ClassVar[dict[str, Message]]
    add: typing.ClassVar[Message]
    copy_e: typing.ClassVar[Message]
    copy_u: typing.ClassVar[Message]
    div: typing.ClassVar[Message]
    mul: typing.ClassVar[Message]
    sub: typing.ClassVar[Message]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Target:
    __members__: typing.ClassVar[dict[str, Target]]
    e: typing.ClassVar[Target]
    u: typing.ClassVar[Target]
    v: typing.ClassVar[Target]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Schedule:
    def __init__(
        self, *, chunk: int = 256, long_row: int = 512, warps_per_block: int = 2
    ) -> None: ...
    @property
    def chunk(self) -> int: ...
    @property
    def long_row(self) -> int: ...
    @property
    def warps_per_block(self) -> int: ...

class Interleaving:
    def __init__(
        self, *, partition: int = 16, distance: int = 4, warps_per_block: int = 4
    ) -> None: ...
    @property
    def distance(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def warps_per_block(self) -> int: ...

class CsrMatrix:
    def __init__(
        self,
        *,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        edge_ids: torch.Tensor | None,
        num_columns: int,
        max_chunks: int,
        schedule: Schedule,
    ) -> None: ...

class Operands:
    @typing.overload
    def __init__(
        self,
        *,
        message: Message,
        x: torch.Tensor | None,
        e: torch.Tensor | None,
        columns: int,
        e_columns: int,
    ) -> None: ...
    @typing.overload
    def __init__(
        self,
        *,
        message: Message,
        addresses: torch.Tensor,
        address_bits: int,
        e: torch.Tensor | None,
        columns: int,
        e_columns: int,
        leases: collections.abc.Sequence[Lease],
        codec: RowCodec | None = None,
        scale_addresses: torch.Tensor | None = None,
    ) -> None: ...

class Attention:
    def __init__(
        self,
        *,
        matrix: CsrMatrix,
        x: torch.Tensor,
        left: torch.Tensor | None,
        right: torch.Tensor | None,
        att: torch.Tensor | None,
        row_cuts: torch.Tensor | None,
        column_cuts: torch.Tensor | None,
        loops: int,
        slope: float,
    ) -> None: ...

class KeyNumbering:
    __members__: typing.ClassVar[dict[str, KeyNumbering]]
    all: typing.ClassVar[KeyNumbering]
    fixed: typing.ClassVar[KeyNumbering]
    used: typing.ClassVar[KeyNumbering]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Distribution:
    __members__: typing.ClassVar[dict[str, Distribution]]
    exponential: typing.ClassVar[Distribution]
    normal: typing.ClassVar[Distribution]
    uniform: typing.ClassVar[Distribution]

    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

def activate(
    *,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    relu: bool,
    p: float,
    seed: torch.Tensor | None,
    bits: torch.Tensor | None,
    out: torch.Tensor,
    launch: Launch,
) -> None: ...
def activate_backward(
    *,
    grad: torch.Tensor,
    bits: torch.Tensor,
    p: float,
    out: torch.Tensor,
    partial: torch.Tensor | None,
    launch: Launch,
) -> None: ...
def activation_parts(num_rows: int) -> int: ...
def alignment_bits(table: TableView) -> int: ...
def ask_for_huge_pages(address: int, bytes: int) -> None: ...
def attention(
    inputs: Attention,
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def attention_backward(
    inputs: Attention,
    *,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    grad_x: torch.Tensor,
    grad_left: torch.Tensor,
    grad_right: torch.Tensor,
    grad_att: torch.Tensor,
    transpose: CsrMatrix | None,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def attention_fits(dtype: DType, heads: int, depth: int, device: int) -> bool: ...
def await_round(
    addresses: collections.abc.Sequence[int], round: int, seconds: float, lease: Lease
) -> list[int]: ...
def bytes_as_dlpack(address: int, num_bytes: int, device: int, owner: typing.Any) -> typing.Any: ...
def call_in_main_thread(function: typing.Any) -> bool: ...
def check_ids(ids: IdList, limit: int, num_threads: int) -> None: ...
def coo_to_csc(
    source: torch.Tensor,
    destination: torch.Tensor,
    num_sources: int,
    num_destinations: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    perm: torch.Tensor,
) -> bool: ...
def copy_rows(
    operands: Operands, *, dtype: DType, first_column: int, out: torch.Tensor, launch: Launch
) -> None: ...
def count_content_pieces(tensors: collections.abc.Sequence[torch.Tensor]) -> list[int]: ...
def count_ids(
    ids: torch.Tensor, *, limit: int, counts: torch.Tensor | None, is_shared: bool, num_threads: int
) -> tuple[bool, bool]: ...
def crc32c(values: torch.Tensor, previous: int = 0) -> int: ...
def decode_gather(
    table: TableView,
    codec: RowCodec,
    ids: IdList,
    out: torch.Tensor,
    launch: Launch,
    scales: TableView | None = None,
) -> None: ...
def degrees(
    view: CscView, first: int, destinations: IdMapView, out: torch.Tensor, launch: Launch
) -> None: ...
def distinct_nodes(
    nodes: torch.Tensor,
    num_nodes: int,
    distinct: torch.Tensor,
    allocate: collections.abc.Callable[[int], int],
    launch: Launch,
) -> int: ...
def draw_nodes(
    num_nodes: int,
    ends: torch.Tensor | None,
    nodes: torch.Tensor,
    seed: int,
    stream: int,
    launch: Launch,
) -> None: ...
def dropout_rows(
    *,
    seed: int,
    device_seed: torch.Tensor | None,
    row_ids: torch.Tensor,
    p: float,
    scale: float,
    x: torch.Tensor | None,
    out: torch.Tensor,
    launch: Launch,
) -> None: ...
def edge_softmax(
    matrix: CsrMatrix,
    *,
    values: torch.Tensor,
    grad: torch.Tensor | None,
    out: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def exact_products(
    *,
    table: TableView,
    dtype: DType,
    codec: RowCodec | None,
    scales: TableView | None,
    queries: torch.Tensor,
    ids: torch.Tensor,
    products: torch.Tensor,
    launch: Launch,
) -> None: ...
def fill_random(
    *,
    seed: int,
    device_seed: torch.Tensor | None,
    row_ids: torch.Tensor,
    distribution: Distribution,
    out: torch.Tensor,
    launch: Launch,
) -> None: ...
def find_large_products(
    *,
    kind: ProductKind,
    rows: int,
    num_rows: int,
    row_bytes: int,
    scales: int,
    scale_bytes: int,
    stages: collections.abc.Sequence[tuple[int, bool, bool, int, bool]],
    place: tuple[int, int],
    queries: torch.Tensor,
    query_scales: torch.Tensor,
    errors: torch.Tensor,
    exact_errors: torch.Tensor,
    norms: torch.Tensor,
    underflow: float,
    excluded: torch.Tensor,
    num_places: int,
    above: torch.Tensor,
    bounds: torch.Tensor,
    guesses: bool,
    products: torch.Tensor,
    places: torch.Tensor,
    counts: torch.Tensor,
    kept: torch.Tensor,
    largest_norm: torch.Tensor,
    failed: torch.Tensor,
    state: torch.Tensor,
    launch: Launch,
) -> None: ...
def find_remote_rows(
    ids: IdList,
    order: TableView | None,
    split: MachineSplit,
    routes: RowRoutes,
    found: torch.Tensor,
    launch: Launch,
    host_keys: torch.Tensor | None = None,
    scratch: torch.Tensor | None = None,
) -> tuple[int, int]: ...
def forward_push(
    csc: CscView,
    seeds: torch.Tensor,
    nodes: torch.Tensor,
    weights: torch.Tensor,
    to_internal: IdMapView,
    to_user: IdMapView,
    alpha: int,
    epsilon: int,
    most_nodes: int,
    allocate: collections.abc.Callable[[int], int],
    launch: Launch,
) -> None: ...
def gather(table: TableView, ids: IdList, out: torch.Tensor, launch: Launch) -> None: ...
def gather_lists(
    view: CscView, chunk: ListChunk, destinations: IdMapView, sources: IdMapView, launch: Launch
) -> None: ...
def gather_tables(
    reads: collections.abc.Sequence[tuple[StoredTable, StoredTable | None, IdList]],
    torch: TorchFunctions,
    adopt: collections.abc.Callable[[list[typing.Any]], list[typing.Any]],
    sizes: torch.Tensor | None,
    launch: Launch,
) -> list[typing.Any]: ...
def group_rows(
    keys: torch.Tensor,
    row_indptr: torch.Tensor,
    *,
    row_cuts: collections.abc.Sequence[int],
    groups: collections.abc.Sequence[int],
    strides: collections.abc.Sequence[int],
    place_starts: collections.abc.Sequence[int],
    sizes: collections.abc.Sequence[int],
    owners: torch.Tensor,
    places: torch.Tensor | None,
    indptr: torch.Tensor,
    rows: torch.Tensor,
    edge_indptr: torch.Tensor | None,
    edges: torch.Tensor | None,
    num_edges: int,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def indptr_from_sorted(keys: torch.Tensor, *, num_keys: int, indptr: torch.Tensor) -> bool: ...
def interleaved_spmm(
    local: CsrMatrix,
    local_operands: Operands,
    remote: CsrMatrix,
    remote_operands: Operands,
    *,
    mean: bool,
    interleaving: Interleaving,
    out: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def is_arange(ids: torch.Tensor) -> bool: ...
def join_edges(
    relations: collections.abc.Sequence[tuple[torch.Tensor | None, int, int, int, int, int]],
    *,
    num_rows: int,
    row_starts: collections.abc.Sequence[int],
    num_columns: int,
    column_starts: collections.abc.Sequence[int],
    row_keys: torch.Tensor | None,
    row_segments: torch.Tensor | None,
    column_keys: torch.Tensor | None,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    edge_ids: torch.Tensor | None,
    by_column: torch.Tensor | None,
    rows_of: torch.Tensor | None,
    positions: torch.Tensor | None,
    numbering: KeyNumbering,
    schedule: Schedule,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> tuple[list[int], list[int], int, list[int], int, int]: ...
def limit_vector_bytes(bytes: int) -> int: ...
def list_places(
    lists: collections.abc.Sequence[tuple[torch.Tensor, torch.Tensor, int]],
    sizes: torch.Tensor | None,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> tuple[int, list[int]]: ...
def make_huge_pages(address: int, bytes: int, num_threads: int) -> None: ...
def map_shared(fd: int, bytes: int, on_disk: bool) -> int: ...
def partition_edges(
    *,
    source: torch.Tensor,
    destination: torch.Tensor,
    num_sources: int,
    first_destination: int,
    num_destinations: int,
    shift: int,
    source_bytes: int,
    records: torch.Tensor,
    counts: torch.Tensor,
    num_threads: int,
) -> tuple[int, bool]: ...
def place_edges(
    matrix: CsrMatrix,
    *,
    indptr: torch.Tensor,
    ranks: torch.Tensor,
    rows: torch.Tensor,
    edge_ids: torch.Tensor,
    launch: Launch,
) -> None: ...
def populate_pages(address: int, bytes: int, num_threads: int) -> None: ...
def post_round(address: int, round: int, lease: Lease) -> None: ...
def random_walk(csc: CscView, walks: Walks, launch: Launch) -> None: ...
def rank_edges(
    matrix: CsrMatrix, *, counts: torch.Tensor, ranks: torch.Tensor, launch: Launch
) -> None: ...
def rank_products(
    *,
    table: TableView,
    dtype: DType,
    codec: RowCodec | None,
    scales: TableView | None,
    queries: torch.Tensor,
    places: torch.Tensor,
    counts: torch.Tensor,
    most: int,
    user_ids: torch.Tensor | None,
    products: torch.Tensor,
    ids: torch.Tensor,
    launch: Launch,
) -> None: ...
def remote_rows_scratch(
    ids: IdList, split: MachineSplit, routes: RowRoutes, device: int
) -> int: ...
def round_queries(
    *,
    kind: ProductKind,
    queries: torch.Tensor,
    relative: float,
    values: torch.Tensor,
    scales: torch.Tensor,
    norms: torch.Tensor,
    errors: torch.Tensor,
    rounded_up: torch.Tensor,
    launch: Launch,
) -> None: ...
def row_addresses(table: TableView, ids: IdList, out: torch.Tensor, launch: Launch) -> None: ...
def sample_negatives(csc: CscView, negatives: Negatives, launch: Launch) -> None: ...
def scatter(table: TableView, ids: IdList, values: torch.Tensor, launch: Launch) -> None: ...
def scatter_lists(
    view: CscView, chunk: ListChunk, destinations: IdMapView, sources: IdMapView, launch: Launch
) -> None: ...
def sddmm(
    matrix: CsrMatrix,
    *,
    left: torch.Tensor | None,
    left_target: Target,
    right: torch.Tensor | None,
    right_target: Target,
    message: Message,
    depth: int,
    out: torch.Tensor,
    launch: Launch,
) -> None: ...
def signal_flag(flag: int, value: int, launch: Launch) -> None: ...
def sort_bucket(
    *,
    runs: collections.abc.Sequence[tuple[torch.Tensor, int, int, int]],
    degrees: torch.Tensor,
    indices: torch.Tensor,
    edge_ids: torch.Tensor | None,
) -> None: ...
def sparse_update(
    table: TableView,
    dtype: DType,
    states: collections.abc.Sequence[TableView],
    rule: UpdateRule,
    rows: torch.Tensor,
    grads: torch.Tensor,
    launch: Launch,
) -> None: ...
def spmm(
    matrix: CsrMatrix,
    operands: Operands,
    *,
    mean: bool,
    accumulate: bool,
    out: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
    dtype: DType | None = None,
    first_column: int = 0,
) -> None: ...
def spmm_minmax(
    matrix: CsrMatrix,
    operands: Operands,
    *,
    minimum: bool,
    out: torch.Tensor,
    arg: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def spmm_minmax_backward(
    matrix: CsrMatrix,
    operands: Operands,
    *,
    arg: torch.Tensor,
    grad: torch.Tensor,
    grad_x: torch.Tensor | None,
    grad_e: torch.Tensor | None,
    transpose: CsrMatrix | None,
    launch: Launch,
) -> None: ...
def spmm_transposed(
    matrix: CsrMatrix,
    operands: Operands,
    *,
    dtype: DType,
    counts: torch.Tensor | None,
    out: torch.Tensor,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> None: ...
def square_keys(
    nodes: torch.Tensor,
    weights: torch.Tensor,
    seed: int,
    stream: int,
    keys: torch.Tensor,
    launch: Launch,
) -> None: ...
def stage(
    table: TableView, ids: IdList, buffer: torch.Tensor, out: torch.Tensor, launch: Launch
) -> None: ...
def sum_runs(
    values: torch.Tensor,
    positions: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    launch: Launch,
) -> None: ...
def transpose(
    matrix: CsrMatrix, *, indptr: torch.Tensor, indices: torch.Tensor, positions: torch.Tensor
) -> None: ...
def unmap_shared(address: int, bytes: int) -> None: ...
def vector_bytes() -> int: ...
def wait_for_flag(flag: int, value: int, timeout: float, given_up: int, launch: Launch) -> None: ...

compiler: str = "GNU 12.2.0"
cuda_architectures: str = ""
cuda_compiler: str = ""
has_cuda: bool = False
max_shards: int = 32
most_ranked: int = 4096
no_cuda: str = "PEERGRAPH_CUDA was OFF"
row_number_bits: int = 40

def cuda_malloc(device: int, bytes: int) -> int: ...
def cuda_free(device: int, address: int) -> None: ...
def ipc_handle(device: int, address: int) -> bytes: ...
def open_ipc(device: int, handle: bytes) -> int: ...
def close_ipc(device: int, address: int) -> None: ...
def enable_peer_access(device: int, peer: int) -> None: ...
def register_host(device: int, address: int, bytes: int) -> None: ...
def unregister_host(device: int, address: int) -> None: ...
def use_thread_local_capture_mode() -> None: ...
def multiply_rows(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    is_transposed: bool,
    sums_rows: bool,
    adds: bool,
    launch: Launch,
    allocate: collections.abc.Callable[[int], int],
) -> bool: ...
def num_raised_writes() -> int: ...
def raise_pending(device: int) -> None: ...
