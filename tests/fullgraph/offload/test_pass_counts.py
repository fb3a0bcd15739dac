"""Which passes a step makes, what they read and write, and that rows go when they can."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from peergraph.aggregate import Csc, SumAddSelf
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.programs import program, row_pass
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group

from .offloaded_runs import CLASSES, FEATURES, NODES, PLENTY, Data, make_graph, offload
from .test_offloaded_training import (
    Gat,
    GcnWithLoops,
    GinWithFixedShare,
    Layer,
    Sage,
    SumThenLinear,
    TwoLayers,
    full_loss,
    masked_loss,
)

ROW = NODES * 8  # bytes of a column


class Pass(NamedTuple):
    """Shapes of the rows that a pass reads and writes."""

    reads: list[tuple[int, ...]]
    sources: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    gradients: list[tuple[int, ...]]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """The passes that are made."""
    results: list[Pass] = []

    def make(chunks: Chunks, **stores: Any) -> ChunkPass:
        results.append(
            Pass(
                [store.features for store in stores["reads"]],
                [store.features for store, _ in stores["sources"]],
                [store.features for store in stores["writes"]],
                [store.features for store, _ in stores["gradients"]],
            )
        )
        return ChunkPass(chunks, **stores)

    monkeypatch.setattr(row_pass, "ChunkPass", make)
    return results


@contextmanager
def without_collector() -> Iterator[None]:
    """Within the context, only the counts of references free memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def make_data(device_bytes: int = 0) -> Data:
    data, layout = make_graph(Group.current("cpu"))
    return offload(data, layout, Chunks.even(layout, 3), device_bytes)


def used(data: Data) -> int:
    assert data.allocator is not None
    return sum(use.used for use in data.allocator.use.values())


def test_passes_of_sums(passes: list[Pass]) -> None:
    """A layer makes one pass forward and one backward; the last one reads its sources only."""
    data = make_data()
    model = TwoLayers(SumThenLinear).double()
    loss = masked_loss(model, data)
    assert passes == [Pass([], [(6,)], [(8,), (6,)], []), Pass([], [(8,)], [], [])]
    passes.clear()
    loss.backward()
    assert passes == [Pass([], [], [], []), Pass([(6,)], [(8,)], [], [])]
    passes.clear()
    # Sums of features are kept from the second step on.
    masked_loss(model, data)
    passes.clear()
    masked_loss(model, data)
    assert passes == [Pass([(6,)], [], [(8,)], []), Pass([], [(8,)], [], [])]


def test_passes_of_all_rows(passes: list[Pass]) -> None:
    data = make_data()
    model = TwoLayers(SumThenLinear).double()
    loss = full_loss(model, data)
    loss.backward()
    forward = [Pass([], [(6,)], [(8,), (6,)], []), Pass([], [(8,)], [(8,)], [])]
    assert passes[:2] == forward
    # Two sums over all rows read them once more, and each has a gradient.
    assert all(not each.sources for each in passes[2:-1])
    assert passes[-1].sources == [(8,)]


def test_passes_of_inference(passes: list[Pass]) -> None:
    """Without gradients nothing is kept but what the next layer reads."""
    data = make_data()
    model = TwoLayers(SumThenLinear).double().eval()
    before = used(data)
    with without_collector(), torch.no_grad():
        model(data)[data.mask]
        assert passes == [Pass([], [(6,)], [(8,)], []), Pass([], [(8,)], [], [])]
        assert used(data) == before


class ThreeLayers(nn.Module):
    """Layers of equal width before the last."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        widths = [FEATURES, FEATURES, FEATURES, CLASSES]
        self.layers = nn.ModuleList(layer(*pair) for pair in pairwise(widths))

    def forward(self, data: Data) -> Tensor:
        x = data.x
        for number, layer in enumerate(self.layers):
            x = layer(data, x if number == 0 else x.relu())
        return x


def columns_moved(layer: Callable[..., nn.Module], room: float) -> tuple[float, float]:
    """Returns the bytes that a training step moves, as a multiple of the bytes of one layer's rows.

    Args:
        layer: makes a layer of the model from the columns of its input and of its output.
        room: how many layers' rows fit on the device; the features are on the host.

    Returns:
        To the device, and from the device.
    """
    data = make_data()
    assert data.allocator is not None
    # Beside whole layers, the device has room for the gradients of selected rows.
    data.allocator.use["device"].budget = int((room + 0.9) * FEATURES * ROW)
    model = ThreeLayers(layer).double()
    for _ in range(3):
        before = copy.copy(data.allocator.moved)
        masked_loss(model, data).backward()
    moved = data.allocator.moved
    return (
        (moved.to_device - before.to_device) / (FEATURES * ROW),
        (moved.from_device - before.from_device) / (FEATURES * ROW),
    )


@pytest.mark.parametrize("layer", [SumThenLinear, GcnWithLoops])
def test_bytes_of_sums(layer: Callable[..., nn.Module]) -> None:
    """Only sums cross the link where the device has room for the rows that sums read."""
    # The sum of the features forward and backward.
    assert columns_moved(layer, 2) == (2, 0)
    # With one layer on the device, the rows of the other one that selected nodes need are loaded;
    # the sum of the second layer goes to the host and comes back.
    loaded, stored = columns_moved(layer, 1)
    assert 3 <= loaded < 4
    assert stored <= 2


class ScaledSum(Layer):
    """Rows are scaled before they are summed with their own, as in a dense graph's GCN."""

    def forward(self, data: Data, x: Tensor) -> Tensor:
        share = torch.ones((), dtype=x.dtype)
        return self.linear(data.structure.spmm_add_self(SumAddSelf(0.5 * x, share)))


def test_structures_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with the same mask sort no edges."""
    data = make_data()
    model = TwoLayers(SumThenLinear).double()
    masked_loss(model, data).backward()
    for name in ("from_coo", "from_edge_index"):
        monkeypatch.setattr(Csc, name, None)
    masked_loss(model, data).backward()


def test_rows_of_three_layers_that_live_at_once() -> None:
    """Two row sets on the device and two on the host, beside the features, suffice."""
    data = make_data()
    assert data.allocator is not None
    use, layer = data.allocator.use, FEATURES * ROW
    use["device"].budget, use["host"].budget = int(2.9 * layer), int((1 + 2.1) * layer)
    model = ThreeLayers(ScaledSum).double()
    for _ in range(3):
        masked_loss(model, data).backward()
    assert use["host"].peak <= 3 * layer


class GatedSum(Layer):
    """A row passes a gate that opens by the sum of products at its neighbours, as in GGNN."""

    def forward(self, data: Data, x: Tensor) -> Tensor:
        return data.structure.spmm("copy_u", "sum", self.linear(x)).sigmoid() * x


def test_products_of_gated_layers_go_with_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer reads its own row, too; the product that the layer before has summed is gone."""
    data = make_data()
    rows: list[float] = []

    def make(chunks: Chunks, **stores: Any) -> ChunkPass:
        rows.append(used(data) / (FEATURES * ROW))
        return ChunkPass(chunks, **stores)

    monkeypatch.setattr(row_pass, "ChunkPass", make)
    layers = nn.ModuleList(GatedSum(FEATURES, FEATURES) for _ in range(4)).double()
    with without_collector():
        x: Tensor = data.x
        for layer in layers:
            x = layer(data, x)
        x[data.mask].sum()
    # Features, the sums of all layers so far, and two products; the last layer has no product.
    assert rows == [2, 4, 5, 6, 5]


def test_sums_of_features_are_kept_beside_features_on_the_device(passes: list[Pass]) -> None:
    data, layout = make_graph(Group.current("cpu"))
    data = offload(data, layout, Chunks.even(layout, 3), PLENTY)
    model = TwoLayers(SumThenLinear).double()
    for _ in range(3):
        passes.clear()
        masked_loss(model, data)
    assert passes == [Pass([(6,)], [], [(8,)], []), Pass([], [(8,)], [], [])]


@pytest.mark.parametrize("layer", [GinWithFixedShare, Sage])
def test_bytes_of_sums_and_own_rows(layer: Callable[..., nn.Module]) -> None:
    """The first layer reads the features and their sums, forward and backward."""
    assert columns_moved(layer, 3) == (4, 0)


def test_passes_of_attention(passes: list[Pass]) -> None:
    """Scores and rows of a layer are stored in one pass and have their gradients in one."""
    data = make_data()
    model = TwoLayers(Gat).double()
    loss = masked_loss(model, data)
    assert len(passes) == 3
    passes.clear()
    loss.backward()
    assert len(passes) == 5
    assert [len(each.gradients) for each in passes] == [0, 2, 0, 2, 0]


@pytest.mark.parametrize("layer", [SumThenLinear, Gat])
def test_rows_of_a_chunk_go_before_the_next(
    layer: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chunk computes is not on the device with what the next one computes."""
    computed: list[weakref.ref[torch.Tensor]] = []
    most = 0
    run = program.Program.run

    def run_and_note(self: program.Program, *args: Any) -> list[Any]:
        nonlocal most
        alive = [rows() for rows in computed if rows() is not None]
        most = max(most, len(alive))
        computed.clear()
        values = run(self, *args)
        rows = [value for value in values if isinstance(value, PartitionedTensor)]
        computed.extend(weakref.ref(value._local) for value in rows)
        return values

    monkeypatch.setattr(program.Program, "run", run_and_note)
    data = make_data()
    model = TwoLayers(layer).double()
    with without_collector():
        with torch.no_grad():
            model(data).sum()
        assert most == 0
        loss = full_loss(model, data)
        # A reduction over all rows reads what the pass has computed, in the same chunk.
        most = 0
        loss.backward()
    # Rows without gradients of a chunk are there while its program is differentiated.
    assert most <= 4


@pytest.mark.parametrize("layer", [SumThenLinear, Gat])
def test_stores_go_with_the_graph(layer: Callable[..., nn.Module]) -> None:
    data = make_data()
    model = TwoLayers(layer).double()
    with without_collector():
        sizes = []
        for _ in range(4):
            loss = masked_loss(model, data)
            forward = used(data)
            loss.backward()
            sizes.append(used(data))
            assert used(data) < forward
            model.zero_grad()
        # The features, and their sum where it is kept.
        num_stores = 6 if layer is SumThenLinear else 0
        assert sizes[1:] == [(6 + num_stores) * ROW] * 3
