"""Runs the scripts of tutorials and guides, and writes what they print and draw into their pages.

    python docs/run_pages.py [PAGE...]                      # as in start/pyg

The Python blocks of a page, one after the other, are its script. The block that follows a Python
block and is marked ``text`` holds what that block prints. A block that imports matplotlib draws the
page's picture, and is left out where there is no matplotlib.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

DOCS = Path(__file__).parent
TUTORIALS = ("pyg", "dgl", "full_batch", "larger_than_memory", "machines", "files")
GUIDES = (
    "link_prediction",
    "heterogeneous",
    "temporal",
    "own_messages",
    "inference",
    "pagerank",
    "captured_steps",
    "samplers",
    "batches_ahead",
)
PAGES = (*(f"start/{name}" for name in TUTORIALS), *(f"guides/{name}" for name in GUIDES))
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RANKS = re.compile(r"^torchrun --nproc-per-node (\d+)", re.MULTILINE)
_END_OF_BLOCK = "--- end of block ---"
_PRINT_END = f"""
if __import__("os").environ.get("RANK", "0") == "0":
    print({_END_OF_BLOCK!r}, flush=True)
"""
_STYLE = """
import matplotlib
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "peergraph", "font.size": 9, "axes.spines.top": False})
matplotlib.rcParams.update({"axes.spines.right": False, "figure.facecolor": "white"})
"""
# Different processors round in different ways, and training makes more of it.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Page:
    """A page, the script that its blocks make, and the number of ranks to run it on, if any."""

    path: Path
    script: str
    ranks: int | None

    @classmethod
    def read(cls, name: str, *, draw: bool) -> Page:
        path = DOCS / f"{name}.md"
        text = path.read_text()
        pieces = []
        for kind, code in _BLOCK.findall(text):
            if kind == "python":
                pieces.append(code if draw or "matplotlib" not in code else _without_picture(code))
                pieces.append(_PRINT_END)
        ranks = _RANKS.search(text)
        script = (_STYLE if draw and "matplotlib" in text else "") + "".join(pieces)
        return cls(path, script, int(ranks[1]) if ranks else None)

    @property
    def picture(self) -> Path | None:
        """The picture that the script draws, beside the page."""
        return self.path.with_suffix(".svg") if "matplotlib" in self.path.read_text() else None

    def filled(self, output: str) -> str:
        """The page, with the printed output in its text blocks.

        Raises:
            ValueError: a block printed something, and the page has no place for it.
        """
        printed = iter(output.split(_END_OF_BLOCK + "\n"))
        last = ""

        def fill(block: re.Match[str]) -> str:
            nonlocal last
            if block[1] == "text":
                text, last = last, ""
                return f"```text\n{text}```"
            self._expect_nothing(last)
            last = "".join(line.rstrip() + "\n" for line in next(printed).splitlines())
            return block[0]

        text = _BLOCK.sub(fill, self.path.read_text())
        self._expect_nothing(last)
        return text

    def _expect_nothing(self, printed: str) -> None:
        if printed.strip():
            raise ValueError(f"{self.path.name}: no text block for {printed!r}")


def _without_picture(code: str) -> str:
    """The block's other lines: those after the picture, where it is an indented part of a block."""
    if code.startswith("if "):
        return "".join(line for line in code.splitlines(True)[1:] if line[:1] not in (" ", "\n"))
    return ""


def differences(page: str, run: str) -> list[str]:
    """Lines of two texts that differ in more than the last digits of numbers."""
    pairs = zip_longest(page.splitlines(), run.splitlines(), fillvalue="")
    return [f"- {a}\n+ {b}" for a, b in pairs if not _similar(a, b)]


def _similar(line: str, other: str) -> bool:
    number = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
    if number.sub("", line).split() != number.sub("", other).split():
        return False
    values = [[float(n.replace(",", "")) for n in number.findall(t)] for t in (line, other)]
    return all(
        math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        for a, b in zip(*values, strict=True)
    )


def main(names: list[str]) -> None:
    for name in names or PAGES:
        page = Page.read(name, draw=True)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(page.script)
            launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={page.ranks}"]
            command = [sys.executable, *(launcher if page.ranks else []), str(script)]
            # The pages say which lines change on GPUs; their output is that of a CPU.
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "SOURCE_DATE_EPOCH": "0"}
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            page.path.write_text(page.filled(done.stdout))
            if page.picture:
                shutil.copy(Path(folder, page.picture.name), page.picture)
        print(f"docs/{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
