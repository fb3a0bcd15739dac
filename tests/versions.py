"""Runs the tests with the oldest and with the newest versions of what Peergraph works with.

    .venv/bin/python -m tests.versions [oldest | newest | newest-dgl]... [options] [-- pytest's]

"oldest" has the lowest versions that pyproject.toml allows, of Python too; "newest" the last Python
and what pip finds newest; "newest-dgl" the same with the last Python that DGL has wheels for. Each
environment is made below --folder, if it is not there, and Peergraph is built for it without CUDA.
Prints a table and, with --record, writes it to README.md in that folder. Exit status 1 if a test
failed or an environment could not be made.

An interpreter is looked for as `python3.10` on PATH and in pyenv; --python names others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from packaging.requirements import Requirement
from release.interpreters import interpreter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
EXTRAS = ("pyg", "dgl", "test")
SHOWN = ("torch", "torch-geometric", "dgl", "numpy", "scipy", "pytest")
NEWEST_PYTHON, NEWEST_PYTHON_WITH_DGL = "3.14", "3.12"


@dataclass
class Environment:
    """Versions to test with, and what came of it."""

    name: str
    python: str
    requirements: list[str]
    versions: dict[str, str] = field(default_factory=dict)
    outcome: str = "not made"
    seconds: float = 0

    def row(self) -> str:
        """Of the table."""
        versions = ", ".join(f"{name} {self.versions[name]}" for name in self.versions)
        return f"| {self.name} | {versions} | {self.outcome} | {self.seconds:.0f} |"


def project() -> dict[str, object]:
    """The table of that name in pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(python: str, lowest: bool) -> list[str]:
    """What Peergraph and its tests need on a Python, if `lowest` in the lowest versions allowed."""
    about = project()
    texts = [*about["dependencies"]]
    for extra in EXTRAS:
        texts += about["optional-dependencies"][extra]
    names = []
    for requirement in map(Requirement, texts):
        if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
            continue
        floors = [s.version for s in requirement.specifier if s.operator == ">="]
        pin = f"=={floors[0]}" if lowest and floors else str(requirement.specifier)
        names.append(f"{requirement.name}{pin}")
    return names


def environments() -> dict[str, Environment]:
    """Those that there are, by name."""
    oldest = project()["requires-python"].removeprefix(">=")
    all_environments = [
        Environment("oldest", oldest, requirements(oldest, lowest=True)),
        Environment("newest", NEWEST_PYTHON, requirements(NEWEST_PYTHON, lowest=False)),
        Environment(
            "newest-dgl",
            NEWEST_PYTHON_WITH_DGL,
            requirements(NEWEST_PYTHON_WITH_DGL, lowest=False),
        ),
    ]
    return {environment.name: environment for environment in all_environments}


def pip(python: Path, *arguments: str) -> None:
    """Raises subprocess.CalledProcessError."""
    variables = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}
    build = {"PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"), "PEERGRAPH_CUDA": "OFF"}
    subprocess.run([python, "-m", "pip", *arguments], env=variables | build, check=True)


def prepare(environment: Environment, folder: Path, pythons: Sequence[str]) -> Path:
    """Its interpreter, with everything installed. Peergraph is built again."""
    place = folder / environment.name
    python = place / "bin" / "python"
    requirement_lines, made_of = "\n".join(environment.requirements), place / "requirements.txt"
    if not made_of.exists() or made_of.read_text() != requirement_lines:
        shutil.rmtree(place, ignore_errors=True)
        start = interpreter(environment.python, pythons)
        subprocess.run([start, "-m", "venv", place], check=True)
        pip(python, "install", "-q", "--upgrade", "pip")
        pip(python, "install", "-q", *environment.requirements)
        made_of.write_text(requirement_lines)
    pip(python, "install", "-q", "--no-deps", "--force-reinstall", str(ROOT))
    return python


def installed(python: Path) -> dict[str, str]:
    """Versions of what matters."""
    code = (
        "import platform, importlib.metadata as m\n"
        "print('Python', platform.python_version())\n"
        f"for name in {SHOWN!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def run_tests(environment: Environment, python: Path, arguments: Sequence[str]) -> None:
    """Runs them and counts."""
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    subprocess.run(command, cwd=ROOT, check=False)
    environment.seconds = time.monotonic() - start
    if not report.exists():
        environment.outcome = "no report"
        return
    suite = ElementTree.parse(report).getroot().find("testsuite")
    tests, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    environment.outcome = f"{tests - skipped - failed} passed, {failed} failed, {skipped} skipped"


def table(done: Sequence[Environment], arguments: Sequence[str]) -> str:
    """What came of it, in Markdown."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    now = datetime.now(timezone.utc)
    lines = [
        f"# Oldest and newest versions, {now:%Y-%m-%d %H:%M} UTC",
        "",
        f"Commit {commit}, {len(os.sched_getaffinity(0))} cores, no GPU."
        f" `python -m tests.versions -- {' '.join(arguments)}`",
        "",
        "| environment | versions | tests | seconds |",
        "| --- | --- | --- | --- |",
        *(environment.row() for environment in done),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    by_name = environments()
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(by_name)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH")
    own, arguments = sys.argv[1:], ["-n", "auto", "--dist", "worksteal"]
    if "--" in own:
        own, arguments = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    for name in options.names:
        if name not in by_name:
            parser.error(f"environments are {', '.join(by_name)}, got {name}")
    chosen = [by_name[name] for name in options.names or by_name]
    options.folder.mkdir(parents=True, exist_ok=True)
    for environment in chosen:
        try:
            python = prepare(environment, options.folder.resolve(), options.python)
            environment.versions = installed(python)
            run_tests(environment, python, arguments)
        except (OSError, subprocess.CalledProcessError) as error:
            environment.outcome = f"not made: {error}"
    text = table(chosen, arguments)
    print(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        (options.record / "README.md").write_text(text)
    return 0 if all(", 0 failed" in environment.outcome for environment in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
