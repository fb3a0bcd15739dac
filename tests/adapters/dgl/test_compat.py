"""The private parts of DGL that the adapter uses exist in the installed version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from tests.adapters.dgl.graphs import random_graph  # isort: split

import inspect

import dgl

from peergraph_dgl import compat
from peergraph_dgl.backend import message_passing
from peergraph_dgl.fullgraph import graph, refusals, typed_products, user_functions

MESSAGE = f"DGL {version('dgl')} changed it; the adapter was tested with {compat.WRITTEN_FOR}"


def _exists(name: str) -> bool:
    try:
        owner, attribute = compat.find(name)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, attribute)


@pytest.mark.parametrize(
    "names",
    [compat.REPLACED, compat.REFUSED, compat.PRIVATE_NAMES],
    ids=["replaced", "refused", "read"],
)
def test_names_exist(names: tuple[str, ...]) -> None:
    assert [name for name in names if not _exists(name)] == [], MESSAGE


@pytest.mark.parametrize("kind", compat.PRIVATE_ATTRIBUTES)
def test_attributes_exist(kind: str) -> None:
    g = random_graph()
    frame = g._node_frames[0]
    objects: dict[str, Any] = {
        "graph": g,
        "index": g._graph,
        "frame": frame,
        "column": next(iter(compat.frame_columns(frame).values())),
    }
    for attribute in compat.PRIVATE_ATTRIBUTES[kind]:
        assert hasattr(objects[kind], attribute), f"{kind}.{attribute}: {MESSAGE}"


def test_index_is_pickled_and_restored() -> None:
    g = random_graph()
    index = compat.unpickle_index(*compat.pickle_index(g))
    assert hasattr(index, "_forking_pk_state"), MESSAGE
    source, destination = compat.coo_of(index, 0)
    assert (source.tolist(), destination.tolist()) == tuple(ids.tolist() for ids in g.edges())
    indptr, _, ids = compat.csr_of(g.formats("csc")._graph, 0, transposed=True)
    assert indptr.diff().tolist() == g.in_degrees().tolist()
    assert sorted(ids.tolist()) == list(range(g.num_edges()))


def test_formats_are_those_in_memory() -> None:
    g = dgl.graph(([0, 1], [1, 2]))
    assert compat.created_formats(g._graph) == {"coo"}, MESSAGE


def test_patches_name_the_version() -> None:
    patches = compat.new_patches()
    with pytest.raises(
        AttributeError, match=rf"dgl {version('dgl')} has no .*{compat.WRITTEN_FOR}"
    ):
        patches.replace(dgl.DGLGraph, "no_such_method", lambda original: original())


def test_every_replaced_function_is_listed() -> None:
    """A wrapper of the adapter hides each listed function, and no other."""
    message_passing.install()
    typed_products.install()
    user_functions.install()
    graph.install()
    refusals.install()
    for name in (*compat.REPLACED, *compat.REFUSED):
        function = inspect.getattr_static(*compat.find(name))
        assert function.__code__.co_filename.endswith("patching.py"), f"{name} is not replaced"
