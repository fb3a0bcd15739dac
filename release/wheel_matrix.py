"""Installs each wheel into empty environments, and runs what a user without a compiler would run.

    .venv/bin/python -m release.wheel_matrix [3.10 oldest] [3.12] [newest] [options]

Of each wheel in --wheels there are two environments: "newest" has the newest torch, PyG and DGL,
"oldest" the oldest ones that pyproject.toml allows and that have wheels for this Python. uv
installs them from wheels alone; compilers are out of reach. In each environment `peergraph info`,
the demo (also on the full graph) and a script of DGL run, in an empty folder. Prints a table and,
with --record, writes it to README.md in that folder. Exit status 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from packaging.requirements import Requirement
from tests.versions import ROOT, installed, project

from release.interpreters import interpreter
from release.make_wheels import PYTHONS

RESOLUTIONS = {"newest": "highest", "oldest": "lowest-direct"}
EXTRAS = ("pyg", "dgl")
DGL_SCRIPT = """
import peergraph_dgl
import dgl, torch
import torch.nn.functional as F
from dgl.nn import SAGEConv

g = dgl.rand_graph(2000, 20000)
g.ndata["x"], g.ndata["y"] = torch.randn(2000, 16), torch.randint(0, 4, (2000,))
g = peergraph_dgl.share(g)
sampler = dgl.dataloading.NeighborSampler([5, 5], prefetch_node_feats=["x"])
loader = dgl.dataloading.DataLoader(g, torch.arange(2000), sampler, batch_size=500)
layers = torch.nn.ModuleList([SAGEConv(16, 16, "mean"), SAGEConv(16, 4, "mean")])
peergraph_dgl.accelerate(layers)
for _, seeds, blocks in loader:
    h = blocks[0].srcdata["x"]
    for layer, block in zip(layers, blocks):
        h = layer(block, h)
    F.cross_entropy(h, g.ndata["y"][seeds]).backward()
print("trained on", len(loader), "batches")
"""
GRAPH = ("--data", "products", "--scale", "0.001")
DEMO = ("peergraph", "demo", *GRAPH, "--epochs", "1", "--hidden", "32")
CHECKS: dict[str, tuple[str, ...]] = {
    "demo": DEMO,
    "demo, full graph": (*DEMO, "--full-graph"),
    "DGL": ("python", "-c", DGL_SCRIPT),
}
TIMEOUT_S = 900


@dataclass
class Cell:
    """A wheel and the versions that it is installed with."""

    wheel: Path
    python: str
    versions: str
    installed: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return bool(self.outcomes) and all(o.startswith("passed") for o in self.outcomes.values())

    def row(self) -> str:
        """Of the table."""
        installed = ", ".join(f"{name} {version}" for name, version in self.installed.items())
        outcomes = "; ".join(f"{name}: {outcome}" for name, outcome in self.outcomes.items())
        return (
            f"| {self.python} | {self.versions} | {installed} | {outcomes} | {self.seconds:.0f} |"
        )


def requirements(cell: Cell) -> list[str]:
    """What is installed: the wheel, and for "oldest" also what it needs, whose oldest are taken."""
    version = cell.wheel.name.split("-")[1]
    packages = [f"peergraph[{','.join(EXTRAS)}]=={version}"]
    if cell.versions == "newest":
        return packages
    about = project()
    texts = [*about["dependencies"]]
    for extra in EXTRAS:
        texts += about["optional-dependencies"][extra]
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        has_floor = any(specifier.operator == ">=" for specifier in requirement.specifier)
        if has_floor and (marker is None or marker.evaluate({"python_version": cell.python})):
            packages.append(f"{requirement.name}{requirement.specifier}")
    return packages


def install(cell: Cell, place: Path, python: str) -> Path:
    """An environment with the wheel; returns its interpreter."""
    uv = str(Path(sys.executable).parent / "uv")
    if not Path(uv).exists():
        uv = "uv"
    subprocess.run([uv, "venv", "-q", "--clear", "--python", python, place], check=True)
    subprocess.run(
        [
            *(uv, "pip", "install", "-q", "--python", place / "bin" / "python"),
            *("--only-binary", ":all:", "--resolution", RESOLUTIONS[cell.versions]),
            *("--find-links", cell.wheel.parent, *requirements(cell)),
            *("--refresh-package", "peergraph"),  # uv knows files by their name
        ],
        check=True,
    )
    return place / "bin" / "python"


def bare_environment(place: Path) -> dict[str, str]:
    """Variables of a user without compilers, of whose tools only those of the system are found."""
    same = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    none = dict.fromkeys(("CC", "CXX", "CUDACXX", "CUDA_HOME"), "/nonexistent")
    return {**same, **none, "PATH": f"{place / 'bin'}", "OMP_NUM_THREADS": "1"}


def check(cell: Cell, place: Path) -> None:
    """Runs all checks in an empty folder."""
    environment = bare_environment(place)
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> subprocess.CompletedProcess[str]:
            program = str(place / "bin" / command[0])
            return subprocess.run(
                [program, *command[1:]],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        done = run("peergraph", "info", "--json")
        if done.returncode:
            cell.outcomes["info"] = f"failed: {last_line(done.stderr)}"
            return
        compiled = json.loads(done.stdout)["compiled"]
        parts = f"CUDA for {compiled['architectures']}" if compiled["cuda"] else "no CUDA part"
        cell.outcomes["info"] = f"passed ({parts})"
        for name, command in CHECKS.items():
            if name == "DGL" and "dgl" not in cell.installed:
                continue
            start = time.monotonic()
            try:
                done = run(*command)
            except subprocess.TimeoutExpired:
                cell.outcomes[name] = f"failed: took more than {TIMEOUT_S} s"
                continue
            if done.returncode:
                print(done.stdout, done.stderr, file=sys.stderr)
                cell.outcomes[name] = f"failed: {last_line(done.stderr)}"
            else:
                cell.outcomes[name] = f"passed in {time.monotonic() - start:.0f} s"


def last_line(text: str) -> str:
    """Of what a program said, as a cell of the table."""
    return (text.strip().splitlines() or ["no output"])[-1].replace("|", "\\|")[:200]


def cells(wheels: Path, names: Sequence[str]) -> list[Cell]:
    """The chosen ones: of the named Pythons and versions; where none is named, all."""
    all_cells = []
    for wheel in sorted(wheels.glob(f"peergraph-*{platform.machine()}.whl")):
        tag = re.search(r"-cp3(\d+)-", wheel.name)
        assert tag is not None
        python = f"3.{tag[1]}"
        all_cells += [Cell(wheel, python, versions) for versions in RESOLUTIONS]
    pythons, versions = set(names) & set(PYTHONS), set(names) & set(RESOLUTIONS)
    chosen = [
        cell
        for cell in all_cells
        if cell.python in (pythons or PYTHONS) and cell.versions in (versions or RESOLUTIONS)
    ]
    return sorted(chosen, key=lambda cell: int(cell.python.split(".")[1]))


def table(done: Sequence[Cell]) -> str:
    """What came of it, in Markdown."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    wheels = {cell.wheel.name: cell.wheel.stat().st_size for cell in done}
    lines = [
        f"# Wheels in empty environments, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "",
        f"Commit {commit}, {len(os.sched_getaffinity(0))} cores, no GPU:"
        " `python -m release.wheel_matrix`. Installed by uv from wheels alone; no compiler was on"
        " PATH. Seconds are of installing and running.",
        "",
        *(f"- `{name}`, {size / 1e6:.1f} MB" for name, size in wheels.items()),
        "",
        "| Python | versions | installed | checks | seconds |",
        "| --- | --- | --- | --- | ---: |",
        *(cell.row() for cell in done),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.wheel_matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [*PYTHONS, *RESOLUTIONS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheel_matrix")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH")
    options = parser.parse_args()
    for name in options.names:
        if name not in names:
            parser.error(f"names are {', '.join(names)}, got {name}")
    chosen = cells(options.wheels.resolve(), options.names)
    if not chosen:
        parser.error(f"there is no such wheel in {options.wheels}: make wheels")
    done: list[Cell] = []
    for cell in chosen:
        start = time.monotonic()
        place = options.folder.resolve() / f"{cell.python}-{cell.versions}"
        try:
            python = install(cell, place, interpreter(cell.python, options.python))
            cell.installed = installed(python)
            check(cell, place)
        except (OSError, subprocess.CalledProcessError) as error:
            cell.outcomes["install"] = f"failed: {error}".replace("|", "\\|")[:300]
        cell.seconds = time.monotonic() - start
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
        done.append(cell)
        print(cell.row(), flush=True)
        if options.record:
            options.record.mkdir(parents=True, exist_ok=True)
            (options.record / "README.md").write_text(table(done))
    print(table(done))
    return 0 if all(cell.passed for cell in done) else 1


if __name__ == "__main__":
    sys.exit(main())
