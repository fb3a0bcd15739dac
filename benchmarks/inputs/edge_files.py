"""Files of random edges and features, the same for any number of threads that write them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

_ROWS_PER_FILE = 1 << 23
_ROWS_PER_STEP = 1 << 20  # of a row group, too
_STEP_BYTES = 64 << 20
_REPORT_SECONDS = 5.0

Task = Callable[[], object]


def write_edges(folder: Path, ending: str, num_nodes: int, num_edges: int, threads: int) -> None:
    """Writes random edges, a fifth of them into a hundredth of the nodes.

    Args:
        folder: an empty folder; the files' names are in the order of the edges.
        ending: the format: ``parquet``, ``csv`` or ``npy``.
        num_nodes, num_edges: the size of the graph.
        threads: the number of threads that write.
    """
    write = _write_array if ending == "npy" else _write_table

    def task(part: int) -> Task:
        rows = min(_ROWS_PER_FILE, num_edges - part * _ROWS_PER_FILE)
        path = folder / f"part-{part:05d}.{ending}"
        return lambda: write(path, _steps(part, num_nodes, rows), rows)

    _run("files", map(task, range(-(-num_edges // _ROWS_PER_FILE))), threads)


def write_features(path: Path, num_nodes: int, columns: int, threads: int) -> None:
    """Writes random floats, ``[nodes, columns]``, to an ``.npy`` file."""
    np.lib.format.open_memmap(path, "w+", np.float32, (num_nodes, columns)).flush()
    rows = max(1, _STEP_BYTES // (4 * columns))

    def task(step: int) -> Task:
        begin, end = step * rows, min(num_nodes, (step + 1) * rows)

        def write() -> None:
            values = np.random.default_rng([1, step]).random((end - begin, columns), np.float32)
            with path.open("r+b", buffering=0) as file:
                offset = path.stat().st_size - 4 * columns * (num_nodes - begin)
                _write_at(file.fileno(), values, offset)

        return write

    _run("pieces of features", map(task, range(-(-num_nodes // rows))), threads)
    forget(path)


def forget(path: Path) -> None:
    """Drops a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _steps(part: int, num_nodes: int, rows: int) -> Iterator[np.ndarray]:
    """Yields the edges of a file, ``[2, n]`` int64 at a time."""
    random = np.random.default_rng([0, part])
    for begin in range(0, rows, _ROWS_PER_STEP):
        edges = random.integers(num_nodes, size=(2, min(_ROWS_PER_STEP, rows - begin)))
        edges[1, ::5] %= max(1, num_nodes // 100)
        yield edges


def _write_table(path: Path, steps: Iterable[np.ndarray], rows: int) -> None:
    import pyarrow

    schema = pyarrow.schema([("source", pyarrow.int64()), ("destination", pyarrow.int64())])
    options: dict[str, Any] = {}
    if path.suffix == ".parquet":
        from pyarrow.parquet import ParquetWriter as Writer

        # Random ids do not fit into a dictionary: to try takes eight times as long.
        options = {"use_dictionary": False}
    else:
        from pyarrow.csv import CSVWriter as Writer
    with Writer(path, schema, **options) as writer:
        for edges in steps:
            writer.write_table(pyarrow.table([*edges], schema=schema))
    forget(path)


def _write_array(path: Path, steps: Iterable[np.ndarray], rows: int) -> None:
    np.lib.format.open_memmap(path, "w+", np.int64, (2, rows)).flush()
    first, begin = path.stat().st_size - 16 * rows, 0
    with path.open("r+b", buffering=0) as file:
        for edges in steps:
            for row, values in enumerate(edges):
                _write_at(file.fileno(), values, first + 8 * (row * rows + begin))
            begin += edges.shape[1]
    forget(path)


def _write_at(fd: int, values: np.ndarray, offset: int) -> None:
    left = values.reshape(-1).view(np.uint8).data
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done


def _run(what: str, tasks: Iterable[Task], threads: int) -> None:
    """Runs the tasks in threads; NumPy and Arrow release the interpreter's lock."""
    start = reported = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(task) for task in tasks]
        for done, future in enumerate(as_completed(waiting), 1):
            future.result()
            now = time.perf_counter()
            if now - reported > _REPORT_SECONDS or done == len(waiting):
                reported = now
                print(f"{done} of {len(waiting)} {what} in {now - start:.1f} s", flush=True)
