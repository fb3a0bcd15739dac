"""Fills a table with the rows that ranks bring: tensors, files behind them, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from peergraph.memory import Group, NarrowTable, RowCodec, Table
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.mapped_file import MappedFile
from peergraph.memory.region.staging import Column, Staging
from peergraph.progress import progress_bar, stage
from peergraph.store.build.machine_source import SentRows
from peergraph.store.input.schema import TableSpec
from peergraph.store.input.source import EncodedRows, RowSource

_PIECE_BYTES = 64 << 20
_LEAST_FILE_BYTES = 16 << 20  # of a mapped file that is read again


def load_rows(
    table: Table,
    what: str,
    spec: TableSpec,
    rows: Tensor | RowSource | None,
    start: int,
    staging: Staging | None,
    group: Group,
    progress: bool | None,
) -> None:
    """Writes the rows of the ranks' sources. Collective; if a source raises an error, every rank
    raises it.

    Args:
        what: the name of the table, for errors.
        spec: the spec of the table, with the rows of all machines.
        rows: this rank's rows; None: it has no rows.
        start: the position of the first of these rows in the table.
        staging: if one rank has all rows: the memory through which every rank reads a share.
    """

    def load() -> None:
        if isinstance(rows, RowSource):
            _load_pieces(table, what, rows, start, progress, spec.codec)
        elif rows is not None:
            table.load(rows, start, progress=progress)

    if staging is not None and group.broadcast(isinstance(rows, Tensor), staging.holder):
        _load_staged(table, what, spec, rows if staging.is_holder else None, staging, progress)
    else:
        # A source may fail on one rank, because of a user's function or a damaged file.
        collective_call(group, load)


def _load_staged(
    table: Table,
    what: str,
    spec: TableSpec,
    rows: Tensor | RowSource | None,
    staging: Staging,
    progress: bool | None,
) -> None:
    """Loads a table that one rank has; every rank writes a share of each piece. Collective."""
    group, columns = staging.group, [Column(spec.dtype, spec.shape[1:])]

    def describe() -> tuple[list[Tensor], MappedFile | None] | None:
        if not isinstance(rows, Tensor):
            return None
        source = plain(what, rows)
        is_large = source.nbytes >= _LEAST_FILE_BYTES
        return [source], MappedFile.of(source) if is_large and group.world_size > 1 else None

    staged = collective_call(group, describe)
    file = group.broadcast(None if staged is None else staged[1], staging.holder)
    if file is not None and all(group.all_gather(file.is_there())):
        _load_file(table, what, spec, file, group, progress)
        return
    steps = staging.steps(spec.shape[0], columns)
    tensors = None if staged is None else staged[0]
    num_bytes = columns[0].row_bytes * spec.shape[0]
    with stage(f"load {what}", num_bytes, progress, group.rank) as moved:

        def load(number: int, ranges: list[list[Tensor]]) -> None:
            piece, (begin, end) = ranges[0][0], steps[number]
            first, last = (len(piece) * r // group.world_size for r in (group.rank, group.rank + 1))
            table.load(piece[first:last], begin + first, progress=False)
            moved(columns[0].row_bytes * (end - begin))

        staging.run(tensors, columns, [[step] for step in steps], load)


def _load_file(
    table: Table,
    what: str,
    spec: TableSpec,
    file: MappedFile,
    group: Group,
    progress: bool | None,
) -> None:
    """Loads a table whose rows are a file that all ranks see; each reads its share. Collective."""
    row_bytes = Column(spec.dtype, spec.shape[1:]).row_bytes
    threads, is_cuda = threads_of_rank(group.world_size), group.device.type == "cuda"

    def read(begin: int, end: int) -> Tensor:
        memory = file.read(begin * row_bytes, end * row_bytes, threads, pinned=is_cuda)
        return memory.view(spec.dtype).view(end - begin, *spec.shape[1:])

    count = spec.shape[0]
    first, last = (count * r // group.world_size for r in (group.rank, group.rank + 1))
    mine = RowSource((last - first, *spec.shape[1:]), spec.dtype, read, ahead=True)
    with stage(f"load {what}", row_bytes * count, progress, group.rank):
        collective_call(group, lambda: _load_pieces(table, what, mine, first, progress, spec.codec))


def _load_pieces(
    table: Table,
    what: str,
    source: RowSource,
    start: int,
    progress: bool | None,
    codec: RowCodec | None,
) -> None:
    step = max(1, _PIECE_BYTES // max(1, table.row_bytes if codec is None else codec.user_bytes))
    stop = start + source.shape[0]
    pieces = [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]
    read, load = source.rows, _load_checked(table, what)
    if isinstance(source, SentRows) and isinstance(table, DistributedTable):
        read, load = _split_rows(source, table)
    elif (
        isinstance(table, (NarrowTable, DistributedTable))
        and isinstance(source, EncodedRows)
        and source.codec == codec
    ):
        read, load = source.encoded, _load_encoded(table)
    with progress_bar(what, table.row_bytes * source.shape[0], progress) as moved:
        for (begin, end), rows in _read_ahead(read, pieces, source.ahead):
            load(rows, begin, end)
            moved(table.row_bytes * (end - begin))


_Read = Callable[[int, int], Tensor]
_Load = Callable[[Tensor, int, int], None]


def _load_checked(table: Table, what: str) -> _Load:
    def load(rows: Tensor, begin: int, end: int) -> None:
        _check_piece(what, rows, begin, end, table)
        table.load(rows, begin, progress=False)

    return load


def _load_encoded(table: NarrowTable | DistributedTable) -> _Load:
    return lambda rows, begin, _: table.load_encoded(rows, begin)


def _split_rows(source: SentRows, table: DistributedTable) -> tuple[_Read, _Load]:
    """Rows that a machine sends, of which this one has some."""

    def load(rows: Tensor, begin: int, end: int) -> None:
        positions, local = table.row_set.kept_rows(begin, end - begin)
        table.load_local(local, rows, positions + begin)

    return lambda begin, end: source.own_rows(begin, end, table.row_set), load


def _read_ahead(
    read: _Read, pieces: Sequence[tuple[int, int]], ahead: bool
) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yields each piece with its rows; another thread may read the next piece meanwhile."""
    if not ahead:
        for piece in pieces:
            yield piece, read(*piece)
        return
    with ThreadPoolExecutor(1, "peergraph_ahead") as pool:
        following = [pool.submit(read, *piece) for piece in pieces[:1]]
        for number, piece in enumerate(pieces):
            rows = following.pop().result()
            if number + 1 < len(pieces):
                following.append(pool.submit(read, *pieces[number + 1]))
            yield piece, rows


def _check_piece(what: str, rows: Tensor, begin: int, end: int, table: Table) -> None:
    """Raises an error if a source returned rows of another number, shape or dtype."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{what}: rows({begin}, {end}) must be a tensor, got {type(rows).__name__}")
    shape = (end - begin, *table.shape[1:])
    if tuple(rows.shape) != shape or rows.dtype != table.dtype:
        raise ValueError(
            f"{what}: rows({begin}, {end}) must be {list(shape)} of {table.dtype}, "
            f"got {list(rows.shape)} of {rows.dtype}"
        )
