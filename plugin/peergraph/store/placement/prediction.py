"""Stores and prints the predicted cost of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.json_fields import Fields

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


@dataclass(frozen=True)
class Prediction:
    """The cost of reading an item for a mini-batch, while all GPUs sample at the same time.

    Args:
        kind, name: the kind and the name of the item.
        hits: the shares of the reads that go to replicated, sharded and host rows.
        seconds: the time of these bytes on the slowest GPU's links.
        link_bytes: ``[n][n + 1]``: the bytes that GPU i reads from GPU j and, in the last column,
            from the host.
    """

    kind: str
    name: str
    hits: tuple[float, float, float]
    seconds: float
    link_bytes: tuple[tuple[float, ...], ...]

    @classmethod
    def from_fields(cls, values: Fields) -> Prediction:
        """Reads a prediction from JSON fields. Raises ``ValueError`` for invalid ones."""
        values.only("kind", "name", "hits", "seconds", "link_bytes")
        hits = values.numbers("hits")
        if len(hits) != 3:
            values.fail("hits", "three shares")
        return cls(
            values.text("kind"),
            values.text("name"),
            (hits[0], hits[1], hits[2]),
            values.number("seconds"),
            values.matrix("link_bytes"),
        )


def format_predictions(predictions: Sequence[Prediction]) -> str:
    """Formats hits and seconds of each item, and the bytes of each link."""
    lines = ["  expected of a mini-batch on every GPU at once: where reads go, time on the links"]
    table: list[tuple[str, ...]] = [("", "", "replicated", "sharded", "host", "time")]
    for p in predictions:
        hits = [format_share(share) for share in p.hits]
        table.append((p.kind, p.name, *hits, format_seconds(p.seconds)))
    total = sum(p.seconds for p in predictions)
    table.append(("total", "", "", "", "", format_seconds(total)))
    lines += columns(table, 2)
    bytes_of = total_link_bytes(predictions)
    unit, cells = format_links(bytes_of)
    gpus = range(len(bytes_of))
    links: list[tuple[str, ...]] = [(f"{unit} from", *(f"GPU {j}" for j in gpus), "host")]
    links += [(f"to GPU {i}", *row) for i, row in enumerate(cells)]
    return "\n".join(lines + columns(links, 1))


def format_share(share: float) -> str:
    """Formats a share as in ``12.3 %``; 0 as ``-``."""
    return f"{100 * share:.1f} %" if share else "-"


def format_seconds(seconds: float) -> str:
    """Formats a time as in ``1.234 ms``; below 0.1 ms, in microseconds."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} us"


def format_links(bytes_of: Sequence[Sequence[float]]) -> tuple[str, list[list[str]]]:
    """Returns a unit for the largest number, and all numbers in this unit; 0 as ``-``."""
    largest = max((value for row in bytes_of for value in row), default=0.0)
    size, unit = next((n, u) for n, u in _UNITS if largest >= n or n == 1)
    return unit, [[f"{v / size:.1f}" if v else "-" for v in row] for row in bytes_of]


def total_link_bytes(predictions: Sequence[Prediction]) -> list[list[float]]:
    """Returns the sum of all items' link bytes: ``[n][n + 1]`` as in :class:`Prediction`."""
    matrices = [p.link_bytes for p in predictions]
    return [[sum(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def columns(rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """Returns lines of text with aligned columns; the first `left` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(w) for text, w in zip(row[:left], widths, strict=False)]
        cells += [t.rjust(w) for t, w in zip(row[left:], widths[left:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
