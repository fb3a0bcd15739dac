"""Training of graphs larger than GPU memory, beside HongTu's tables.

    python benchmarks/offload.py --parts duplication --graphs it-2004,papers100m,friendster

Graphs are synthetic, of published sizes and with published duplication factors
(`inputs/local_graphs.py`); NAME/D has 1/D of the nodes and edges.

- `duplication`: how many parts need the same row, and what deduplication saves (Tables 3 and 8);
  one rank, by counting.
"""

from __future__ import annotations

import argparse
import sys

from harness.common import main, parser, words, words_of
from harness.ranks import Session
from offloading.duplication import measure_duplication

_PARTS = {"duplication": measure_duplication}


def run(session: Session) -> None:
    for part in session.args.parts:
        for name in session.args.graphs:
            with session.section(f"{part} {name}", part=part, graph=name):
                _PARTS[part](session, name)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--parts", type=words_of(_PARTS), default="duplication")
    result.add_argument("--graphs", type=words, default="it-2004,papers100m,friendster")
    result.set_defaults(world=1, iterations=5, warmup=1)
    return result


if __name__ == "__main__":
    sys.exit(main("offload", run, arguments(), ()))
