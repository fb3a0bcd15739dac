"""The predicted cost of a plan, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.json_fields import Fields

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


@dataclass(frozen=True)
class Prediction:
    """The cost of an item's reads per mini-batch, with all GPUs sampling at once.

    Args:
        kind, name: of the item.
        hits: the shares of reads that go to replicated, sharded and host rows.
        seconds: of the slowest GPU.
        link_bytes: ``[n][n + 1]`` bytes that GPU i reads from GPU j, and in the last column from
            the host.
    """

    kind: str
    name: str
    hits: tuple[float, float, float]
    seconds: float
    link_bytes: tuple[tuple[float, ...], ...]

    @classmethod
    def from_fields(cls, given: Fields) -> Prediction:
        """From plain values, as in JSON; ``ValueError`` for values of other types."""
        given.only("kind", "name", "hits", "seconds", "link_bytes")
        hits = given.numbers("hits")
        if len(hits) != 3:
            given.fail("hits", "three shares")
        return cls(
            given.text("kind"),
            given.text("name"),
            (hits[0], hits[1], hits[2]),
            given.number("seconds"),
            given.matrix("link_bytes"),
        )


def format_predictions(predictions: Sequence[Prediction]) -> str:
    """As text: hits and time of each item, bytes of each link."""
    lines = ["  predicted for a mini-batch on every GPU at once: where reads go, and their time"]
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
    """``12.3 %``, and ``-`` for nothing."""
    return f"{100 * share:.1f} %" if share else "-"


def format_seconds(seconds: float) -> str:
    """``1.234 ms``, or microseconds below a tenth of one."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} us"


def format_links(bytes_of: Sequence[Sequence[float]]) -> tuple[str, list[list[str]]]:
    """A unit that suits the largest of the numbers, and them in it, ``-`` for nothing."""
    largest = max((value for row in bytes_of for value in row), default=0.0)
    size, unit = next((n, u) for n, u in _UNITS if largest >= n or n == 1)
    return unit, [[f"{v / size:.1f}" if v else "-" for v in row] for row in bytes_of]


def total_link_bytes(predictions: Sequence[Prediction]) -> list[list[float]]:
    """``[n][n + 1]`` as in :class:`Prediction`, of all items together."""
    matrices = [p.link_bytes for p in predictions]
    return [[sum(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def columns(rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """Lines of text with aligned columns, the first `left` of them to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(w) for text, w in zip(row[:left], widths, strict=False)]
        cells += [t.rjust(w) for t, w in zip(row[left:], widths[left:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
