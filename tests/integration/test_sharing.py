"""`share_graph`: the outline of rank 0 and a store over its graph, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.integration import SplitGraph, share_graph
from peergraph.memory import Group
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks


def split() -> SplitGraph[dict[str, str]]:
    assert Group.current(device="cpu").rank == 0
    edges = EdgeSource(coo=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    return SplitGraph({"title": "three"}, GraphSource({NODE: 3}, {EDGE: edges}, {}, {}))


def join(outline: dict[str, str], tensors: Sequence[Tensor], store: Store) -> tuple[str, int]:
    return outline["title"], store.num_edges()


def fail() -> Any:
    raise KeyError("no such column")


def _shared() -> None:
    assert share_graph(split, join, device="cpu", plan="host") == ("three", 3)
    with pytest.raises(KeyError, match="no such column"):
        share_graph(fail, join, device="cpu")
    with pytest.raises((AttributeError, TypeError), match="pickle|local"):
        share_graph(lambda: SplitGraph(lambda: None, split().source), join, device="cpu")


def test_every_rank_gets_the_graph_or_the_error_of_rank_0() -> None:
    run_ranks(_shared, 2)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'budget'"):
        share_graph(split, join, device="cpu", budget=3)  # type: ignore[call-arg]
