"""The reads of a mini-batch that a plan expects, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.json_fields import Fields
from peergraph.printing import format_share, table_lines

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


@dataclass(frozen=True)
class Prediction:
    """The reads of an item for a mini-batch of every GPU.

    Args:
        kind, name: the kind and the name of the item.
        hits: the shares of the reads that go to replicated, sharded and host rows.
        link_bytes: ``[n][n + 1]``: the bytes that GPU i reads from GPU j and, in the last column,
            from the host.
    """

    kind: str
    name: str
    hits: tuple[float, float, float]
    link_bytes: tuple[tuple[float, ...], ...]

    @classmethod
    def from_fields(cls, values: Fields) -> Prediction:
        """Reads a prediction from JSON fields. Raises ``ValueError`` for invalid ones."""
        values.only("kind", "name", "hits", "link_bytes")
        hits = values.numbers("hits")
        if len(hits) != 3:
            values.fail("hits", "three shares")
        return cls(
            values.text("kind"),
            values.text("name"),
            (hits[0], hits[1], hits[2]),
            values.matrix("link_bytes"),
        )


def format_predictions(predictions: Sequence[Prediction]) -> str:
    """Formats the hits of each item, and the bytes of each link."""
    table: list[tuple[str, ...]] = [("", "", "replicated", "sharded", "host")]
    table += [(p.kind, p.name, *map(format_share, p.hits)) for p in predictions]
    unit, cells = format_links(total_link_bytes(predictions))
    links: list[tuple[str, ...]] = [
        (f"{unit} from", *(f"GPU {j}" for j in range(len(cells))), "host")
    ]
    links += [(f"to GPU {i}", *row) for i, row in enumerate(cells)]
    head = "  expected of a mini-batch on every GPU: where reads go"
    return "\n".join([head, *table_lines(table, 2), *table_lines(links, 1)])


def format_links(bytes_of: Sequence[Sequence[float]]) -> tuple[str, list[list[str]]]:
    """Returns a unit for the largest number, and all numbers in this unit; 0 as ``-``."""
    largest = max((value for row in bytes_of for value in row), default=0.0)
    size, unit = next((n, u) for n, u in _UNITS if largest >= n or n == 1)
    return unit, [[f"{v / size:.1f}" if v else "-" for v in row] for row in bytes_of]


def total_link_bytes(predictions: Sequence[Prediction]) -> list[list[float]]:
    """Returns the sum of all items' link bytes: ``[n][n + 1]`` as in :class:`Prediction`."""
    matrices = [p.link_bytes for p in predictions]
    return [[sum(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]
