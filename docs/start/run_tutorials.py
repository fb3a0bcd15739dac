"""Runs the tutorials of this folder and writes what they print and draw into it.

    python docs/start/run_tutorials.py [PAGE...]

A tutorial is a page; its Python blocks, one after the other, are the script. The block that follows
a Python block and is marked ``text`` holds what that block prints. A block that imports matplotlib
draws the page's picture, and is left out where there is no matplotlib.
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

FOLDER = Path(__file__).parent
PAGES = ("pyg", "dgl", "full_batch", "larger_than_memory", "machines", "files")
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
class Tutorial:
    """A page, the script that its blocks make, and the number of ranks to run it on, if any."""

    page: Path
    script: str
    ranks: int | None

    @classmethod
    def read(cls, name: str, *, draw: bool) -> Tutorial:
        page = FOLDER / f"{name}.md"
        text = page.read_text()
        pieces = []
        for kind, code in _BLOCK.findall(text):
            if kind == "python":
                pieces.append(code if draw or "matplotlib" not in code else _without_picture(code))
                pieces.append(_PRINT_END)
        ranks = _RANKS.search(text)
        script = (_STYLE if draw else "") + "".join(pieces)
        return cls(page, script, int(ranks[1]) if ranks else None)

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

        text = _BLOCK.sub(fill, self.page.read_text())
        self._expect_nothing(last)
        return text

    def _expect_nothing(self, printed: str) -> None:
        if printed.strip():
            raise ValueError(f"{self.page.name}: no text block for {printed!r}")


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
        tutorial = Tutorial.read(name, draw=True)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(tutorial.script)
            launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={tutorial.ranks}"]
            command = [sys.executable, *(launcher if tutorial.ranks else []), str(script)]
            # The tutorials say which lines change on GPUs; their output is that of a CPU.
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "SOURCE_DATE_EPOCH": "0"}
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            tutorial.page.write_text(tutorial.filled(done.stdout))
            shutil.copy(Path(folder, f"{name}.svg"), FOLDER)
        print(f"docs/start/{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
