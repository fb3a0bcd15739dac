"""A small graph in the files of IGBH."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_igbh(folder: Path) -> None:
    """Papers and what they are linked to, as IGBH's files; most links stay in one of 19 classes."""
    random = np.random.default_rng(0)
    nodes = {"paper": 600, "author": 400, "institute": 19, "fos": 57}
    centres = random.standard_normal((19, 1024)).astype(np.float32)
    for node_type, count in nodes.items():
        (folder / node_type).mkdir()
        rows = centres[np.arange(count) % 19]
        rows += 2 * random.standard_normal(rows.shape).astype(np.float32)
        if node_type == "paper":
            rows.tofile(folder / node_type / "node_feat.npy")  # As those of the largest sizes.
        else:
            np.save(folder / node_type / "node_feat.npy", rows)
    labels = (np.arange(nodes["paper"]) % 19).astype(np.float32)
    np.save(folder / "paper" / "node_label_19.npy", labels)
    for source, name, destination, degree in (
        ("paper", "cites", "paper", 6),
        ("paper", "written_by", "author", 3),
        ("paper", "topic", "fos", 2),
        ("author", "affiliated_to", "institute", 1),
    ):
        begin = np.arange(nodes[source]).repeat(degree)
        like = begin % 19 + 19 * random.integers(nodes[destination] // 19, size=begin.size)
        anywhere = random.integers(nodes[destination], size=begin.size)
        end = np.where(random.random(begin.size) < 0.9, like, anywhere)
        path = folder / f"{source}__{name}__{destination}"
        path.mkdir()
        np.save(path / "edge_index.npy", np.stack([begin, end], 1))
