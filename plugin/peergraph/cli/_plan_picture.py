"""The picture of `peergraph plan`: the rows on each tier, and the bytes on each link."""

from __future__ import annotations

from os import PathLike
from typing import Any

from peergraph.memory.topology.topology import Topology
from peergraph.printing import format_bytes
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.prediction import format_links, total_link_bytes

_TIERS = {"replicated": "#4c78a8", "sharded": "#54a24b", "host": "#e4c580"}
# The smallest share of a bar that has room for its number.
_LEAST_NAMED = 0.08


def draw(path: str | PathLike[str], plan: Plan, topology: Topology) -> None:
    """Writes a picture. The file name's ending is the format (png, svg, pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: a format that matplotlib does not know.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    _draw_tiers(left, plan)
    _draw_links(right, plan)
    figure.suptitle(
        f"{plan.name} on {topology.name}: {format_bytes(plan.bytes_per_rank())} a GPU, "
        f"{format_bytes(plan.bytes_host())} on the host"
    )
    figure.savefig(path)


def _draw_tiers(axes: Any, plan: Plan) -> None:
    """Draws the rows of each item on each tier, and next to them the share of their reads."""
    items = [
        (f"{p.kind} {p.name}", p.tiers, q)
        for p, q in zip(plan.placements, plan.predictions, strict=True)
    ]
    names: list[str] = []
    for name, tiers, predicted in reversed(items):
        total = max(1, tiers.rows)
        rows = (tiers.replicated / total, tiers.sharded / total, tiers.host / total)
        for shares, what in ((predicted.hits, "reads"), (rows, "rows")):
            start = 0.0
            for share, color in zip(shares, _TIERS.values(), strict=True):
                axes.barh(len(names), 100 * share, left=start, color=color)
                if share >= _LEAST_NAMED:
                    middle = start + 50 * share
                    axes.text(middle, len(names), f"{100 * share:.0f} %", ha="center", va="center")
                start += 100 * share
            names.append(f"{name}\n{what}")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("%")
    axes.set_title("Rows and reads by tier")
    handles = [axes.barh(0, 0, color=color) for color in _TIERS.values()]
    axes.legend(handles, list(_TIERS), loc="lower center", bbox_to_anchor=(0.5, -0.28), ncols=3)


def _draw_links(axes: Any, plan: Plan) -> None:
    """Draws the bytes of a mini-batch as a map: a row for each reader, a column for each source."""
    moved = total_link_bytes(plan.predictions)
    count = plan.world_size
    unit, cells = format_links(moved)
    # Reads of a GPU's own memory are left out: they are much larger than reads over links.
    links = [[0.0 if i == j else v for j, v in enumerate(row)] for i, row in enumerate(moved)]
    axes.imshow(links, cmap="Greens", aspect="auto", vmax=1.3 * max(1e-9, *map(max, links)))
    for i, row in enumerate(cells):
        for j, text in enumerate(row):
            axes.text(j, i, text, ha="center", va="center")
    parts_by_gpu = plan.partitions.stored if plan.partitions else [(g,) for g in range(count)]
    axes.set_xticks(range(count + 1), [*map(str, range(count)), "host"])
    stored = [
        f"GPU {g}, holds {', '.join(map(str, parts))}" for g, parts in enumerate(parts_by_gpu)
    ]
    axes.set_yticks(range(count), stored)
    axes.set_xlabel("read from GPU")
    axes.set_title(f"{unit} of a mini-batch to each GPU; partitions that it holds")
