"""Every argument of PyG's four loaders and of its sampler: each does what it says, or is refused.

A new version's new argument has no check, so that its test fails until there is one.
"""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import NeighborSampler

import peergraph_pyg
from tests.adapters.pyg.argument_checks import CHECKS, Case

LOADERS = [NodeLoader, LinkLoader, NeighborLoader, LinkNeighborLoader]


def arguments(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]


# The sampler's own arguments that loaders do not have are tried with one loader.
WALK = [(kind, name) for kind in LOADERS for name in arguments(kind)]
WALK += [(NodeLoader, name) for name in ("share_memory", "sample_direction")]


@pytest.mark.parametrize(
    ("kind", "name"), WALK, ids=[f"{kind.__name__}-{name}" for kind, name in WALK]
)
def test_argument(kind: type, name: str, device: torch.device) -> None:
    assert name in CHECKS, f"{name} is new in {kind.__name__}: honour it or refuse it, and check it"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|max number of worker)")
        CHECKS[name](Case(kind, device))


def test_sampler_has_no_other_arguments() -> None:
    """Ours takes what PyG's takes, with the same defaults, and the table lists all."""
    ours = inspect.signature(peergraph_pyg.NeighborSampler.__init__).parameters
    for name, theirs in inspect.signature(NeighborSampler.__init__).parameters.items():
        assert name == "self" or name in CHECKS
        assert ours[name].default == theirs.default
    page = Path(__file__).parents[3] / "docs" / "pyg.md"
    listed = set(re.findall(r"`(\w+)`", page.read_text()))
    assert {name for name in CHECKS if name != "kwargs"} <= listed
