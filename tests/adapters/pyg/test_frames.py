"""Tables of PyTorch Frame in a store: batches have the rows that PyTorch Frame itself selects."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import HGTLoader, LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph.store import Store
from peergraph.testing import run_ranks
from tests.conftest import require_gpus
from tests.machines.hosts import run_on_hosts
from tests.named_case import named_case
from tests.store.saved_stores import change_manifest

pytest.importorskip("torch_frame")

from torch_frame import TensorFrame, stype

from peergraph_pyg import store_of
from peergraph_pyg.prefetching.native_iterator import NativeIterator
from tests.adapters.pyg.frames import (
    STYPES,
    check_same_frame,
    nested,
    random_frame,
    random_tables,
)
from tests.adapters.pyg.graphs import random_data

KEYS = ("order", "f2p_user", "user")
PLANS = ("replicated", "sharded", "host", "auto")


def check_batch(batch: Any, data: Any, device: torch.device | str) -> None:
    for node_type in data.node_types:
        ids = batch[node_type].n_id.cpu()
        check_same_frame(batch[node_type].tf, data[node_type].tf[ids], device)
        assert batch[node_type].num_nodes == ids.numel()
    if KEYS in data.edge_types and batch[KEYS].get("e_id") is not None:
        check_same_frame(batch[KEYS].frame, data[KEYS].frame[batch[KEYS].e_id.cpu()], device)


DENSE = (stype.numerical, stype.categorical, stype.embedding)


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("stypes", [STYPES, DENSE, (stype.text_tokenized,)])
def test_rows_gathered_without_python(
    stypes: tuple[stype, ...], links: bool, device: torch.device
) -> None:
    """A thread of C++ gathers the rows of all columns, lists among them; types without rows and
    seeds without neighbours.
    """
    data = random_tables(rows=(30, 20, 0))
    for seed, storage in enumerate(data.node_stores):
        storage.tf = random_frame(storage.tf.num_rows, seed, stypes)
    data[KEYS].frame = random_frame(20, 5, stypes)
    shared = peergraph_pyg.share(data, device=device)
    if links:
        loader = LinkNeighborLoader(shared, [3, 2], edge_label_index=KEYS, batch_size=3)
    else:
        loader = NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=1)
    iterator = iter(peergraph_pyg.prefetch(loader, 2))
    assert isinstance(iterator, NativeIterator)
    batches = list(iterator)
    assert len(batches) == (7 if links else 30)
    for batch in batches:
        check_batch(batch, data, device)
    assert links or any(batch["order"].num_nodes == 0 for batch in batches)


@pytest.mark.parametrize("plan", PLANS)
def test_batches(plan: str, device: torch.device) -> None:
    data = random_tables()
    shared = peergraph_pyg.share(data, device=device, plan=plan)
    assert shared["user"].num_nodes == 30
    loader = NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=7)
    batches = list(loader)
    assert len(batches) == 5
    for batch in batches:
        check_batch(batch, data, device)
    store_of(shared).close()


def test_rows_and_elements_on_two_tiers(device: torch.device) -> None:
    """Half of the rows of each table are replicated, and nodes are renumbered."""
    data = random_tables(rows=(90, 200, 0))
    halves = {"graph_ratio": 0.5, "feature_ratio": 0.5}
    shared = peergraph_pyg.share(data, device=device, plan="auto", **halves)
    placed = {p.name: p.tiers for p in store_of(shared).plan.placements}
    lists = placed["_L:order.tf.multicategorical.values"]
    assert lists.replicated + lists.sharded > 0
    assert lists.host > 0
    for batch in NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=20):
        check_batch(batch, data, device)


def test_seeds_without_rows(device: torch.device) -> None:
    """Seeds without neighbours: frames of other types are empty."""
    data = random_tables(rows=(5, 0, 4))
    shared = peergraph_pyg.share(data, device=device)
    batch = next(iter(NeighborLoader(shared, [2], input_nodes="user", batch_size=5)))
    assert batch["order"].tf.num_rows == 0
    check_batch(batch, data, device)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_loaders(num_workers: int) -> None:
    data = random_tables()
    shared = peergraph_pyg.share(data)
    loaders = (
        HGTLoader(shared, [6, 6], input_nodes="user", batch_size=6, num_workers=num_workers),
        LinkNeighborLoader(
            shared, [3, 2], edge_label_index=KEYS, batch_size=20, num_workers=num_workers
        ),
        NeighborLoader(shared, [3], input_nodes="order", num_workers=num_workers, batch_size=30),
    )
    for loader in loaders:
        for batch in loader:
            for node_type in ("user", "order"):
                ids = batch[node_type].n_id
                check_same_frame(batch[node_type].tf, data[node_type].tf[ids])


def test_batches_made_ahead(device: torch.device) -> None:
    data = random_tables()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=4)
    batches = list(peergraph_pyg.prefetch(loader, 2))
    assert len(batches) == 8
    for batch in batches:
        check_batch(batch, data, device)


def test_a_homogeneous_graph(device: torch.device) -> None:
    data = random_data()
    data.tf, data.edge_tf = random_frame(60), random_frame(400, 1)
    shared = peergraph_pyg.share(data, device=device)
    for batch in NeighborLoader(shared, [4], batch_size=16):
        check_same_frame(batch.tf, data.tf[batch.n_id.cpu()], device)
        check_same_frame(batch.edge_tf, data.edge_tf[batch.e_id.cpu()], device)
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    part = shared.subgraph(torch.tensor([3, 9, 11]))
    check_same_frame(part.tf, data.tf[torch.tensor([3, 9, 11])], device)


def test_shared_again_with_a_new_column() -> None:
    data = random_tables()
    shared = peergraph_pyg.share(data)
    with pytest.raises(ValueError, match="shared already"):
        peergraph_pyg.share(shared)
    more = copy.copy(shared)
    more["user"].label = torch.arange(30)
    again = peergraph_pyg.share(more)
    store_of(shared).close()
    assert torch.equal(again["user"].label[:], torch.arange(30))
    for batch in NeighborLoader(again, [3], input_nodes="user", batch_size=10):
        check_batch(batch, data, "cpu")


def test_selected_rows(device: torch.device) -> None:
    """Indices select what they select of the plain frame; those out of range raise."""
    frame = random_frame(30)
    data = random_tables()
    shared = peergraph_pyg.share(data, device=device)["user"].tf
    mask = torch.arange(30) % 3 == 0
    for index, ids in (
        (torch.tensor([4, 4, 29]), [4, 4, 29]),
        (torch.tensor([5, 3], dtype=torch.int32), [5, 3]),
        (torch.empty(0, dtype=torch.int64), []),
        ([3, -1], [3, 29]),
        ([], []),
        (7, [7]),
        (-2, [28]),
        (slice(2, 9), range(2, 9)),
        (slice(None, None, 4), range(0, 30, 4)),
        (range(3), range(3)),
        (mask, range(0, 30, 3)),
    ):
        expected = frame[torch.tensor(list(ids), dtype=torch.int64)]
        check_same_frame(shared[index], expected, device)
    with pytest.raises(IndexError, match="a mask over 30 rows"):
        shared[mask[:4]]
    with pytest.raises(IndexError, match="selected by ids"):
        shared[torch.rand(2)]
    with pytest.raises(NotImplementedError, match="share it again"):
        shared.feat_dict = {}
    if device.type == "cpu":
        with pytest.raises(IndexError):
            shared[torch.tensor([30])]


def test_what_a_frame_says_without_its_rows() -> None:
    frame, shared = random_frame(30), peergraph_pyg.share(random_tables())["user"].tf
    assert isinstance(shared, TensorFrame)
    assert (len(shared), shared.num_cols, shared.stypes) == (30, frame.num_cols, frame.stypes)
    assert shared.col_names_dict == frame.col_names_dict
    assert not shared.is_empty
    assert str(shared.device) == "cpu"
    assert repr(shared).startswith("StoredFrame(")
    assert torch.equal(shared.y[torch.arange(30)], frame.y)
    assert shared == frame
    for stype_, values in frame.feat_dict.items():
        if isinstance(values, torch.Tensor):
            assert isinstance(shared.feat_dict[stype_], peergraph_pyg.TableTensor)
    column = shared.get_col_feat("timestamp_0")
    assert torch.equal(column, frame.get_col_feat("timestamp_0"))


def test_statistics_that_are_replaced() -> None:
    shared = peergraph_pyg.share(random_tables())
    frame = shared["user"].tf
    frame.col_stats = {name: {} for name in frame.col_stats}
    assert frame[torch.tensor([2, 0])].col_stats == frame.col_stats
    assert frame.materialize().col_stats == frame.col_stats


def test_pickles_and_copies() -> None:
    frame, shared = random_frame(30), peergraph_pyg.share(random_tables())["user"].tf
    check_same_frame(pickle.loads(pickle.dumps(shared)), frame)
    check_same_frame(shared.to("cpu"), frame)
    for handle in (copy.copy(shared), copy.deepcopy(shared)):
        check_same_frame(handle[:], frame)


def test_narrow_storage_of_numerical_columns(device: torch.device) -> None:
    data = random_tables()
    stored = {"user": {"tf.numerical": "float16", "tf.embedding": "bfloat16"}}
    shared = peergraph_pyg.share(data, device=device, storage=stored)
    for batch in NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=7):
        expected = data["user"].tf[batch["user"].n_id.cpu()]
        numbers = expected.feat_dict[stype.numerical].half().float()
        expected.feat_dict[stype.numerical] = numbers
        embedding = expected.feat_dict[stype.embedding]
        embedding.values = embedding.values.bfloat16().float()
        check_same_frame(batch["user"].tf, expected, device)


@pytest.mark.parametrize("ranks", [1, 2])
def test_save_and_load(ranks: int, tmp_path: Path) -> None:
    data = random_tables()
    stored = {"user": {"tf.numerical": "float16"}}
    shared = peergraph_pyg.share(data, storage=stored)
    store_of(shared).save(tmp_path / "store")
    data["user"].tf.feat_dict[stype.numerical] = (
        data["user"].tf.feat_dict[stype.numerical].half().float()
    )
    run_ranks(_check_loaded, ranks, data, tmp_path / "store", timeout_s=120)


def test_damaged_manifests(tmp_path: Path) -> None:
    store_of(peergraph_pyg.share(random_tables())).save(tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    text = path.read_text()

    def frame(values: Any) -> Any:
        return values["nodes"][0]["frames"]["tf"]

    for change, message in (
        (lambda v: v.update(format=3), "unknown key 'frames'"),
        (lambda v: frame(v).update(more=1), "unknown key 'more'"),
        (lambda v: frame(v)["fields"][0].update(layout="wide"), "must be one of dense, joined"),
        (lambda v: frame(v)["fields"][0].update(stype="other"), "there is no table 'tf.other'"),
        (lambda v: frame(v)["columns"].update(numerical=list("abcdefg")), "cannot be dense rows"),
        (lambda v: frame(v)["fields"][4].update(ends=[0, 1]), "cannot be joined rows"),
        (lambda v: frame(v)["columns"].update(multicategorical=[]), "cannot be lists rows"),
        (lambda v: v["nodes"][0].update(frames={}), "names that begin with '_L:' are those"),
    ):
        change_manifest(tmp_path / "store", change)
        with named_case(message), pytest.raises(ValueError, match=message):
            Store.load(tmp_path / "store", device="cpu", verify=False)
        path.write_text(text)


def _check_loaded(data: Any, folder: Path) -> None:
    store = Store.load(folder, device="cpu")
    loaders = peergraph_pyg.stores(store)
    assert {a.attr_name for a in loaders[0].get_all_tensor_attrs()} == {"tf", "frame", "time"}
    assert store.node_types == ["user", "order", "note"]
    loader = NeighborLoader(loaders, [3, 2], input_nodes="user", batch_size=7)
    for batch in loader:
        for node_type in data.node_types:
            expected = data[node_type].tf[batch[node_type].n_id]
            check_same_frame(batch[node_type].tf, expected)
        e_id = batch[KEYS].e_id
        check_same_frame(batch[KEYS].frame, data[KEYS].frame[e_id])


def _check_rank(plan: str, device: str) -> None:
    """Every rank reads all rows."""
    rank, data = torch.distributed.get_rank(), random_tables()
    target = f"cuda:{rank}" if device == "cuda" else "cpu"
    shared = peergraph_pyg.share(data if rank == 0 else None, device=target, plan=plan)
    seeds = ("user", torch.arange(30)[rank::2])
    for batch in NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=4):
        check_batch(batch, data, target)
    store_of(shared).close()


@pytest.mark.parametrize("plan", PLANS)
def test_two_ranks(plan: str) -> None:
    run_ranks(_check_rank, 2, plan, "cpu", timeout_s=120)


@pytest.mark.parametrize("plan", PLANS)
def test_two_ranks_on_gpus_cuda(plan: str) -> None:
    require_gpus(2)
    run_ranks(_check_rank, 2, plan, "cuda", device="cuda", timeout_s=240)


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().split()
    return 1024 * int(status[status.index("RssAnon:") + 1])


def _check_memory(rows: int) -> int:
    """Shares a frame of rank 0, and returns what this rank's own memory has grown by."""
    rank = torch.distributed.get_rank()
    data = random_tables(rows=(rows, 70, 0)) if rank == 0 else None
    before = _anonymous_bytes()
    shared = peergraph_pyg.share(data, device="cpu")
    check = NeighborLoader(shared, [3, 2], input_nodes="order", batch_size=20)
    assert all(batch["user"].tf.num_rows == batch["user"].num_nodes for batch in check)
    return _anonymous_bytes() - before


def test_nothing_of_the_rows_is_in_a_rank() -> None:
    small, large = (run_ranks(_check_memory, 2, rows, timeout_s=240)[1] for rows in (30, 300_000))
    # The rows take 79 MB.
    assert large - small < 30e6
    handle = ForkingPickler.dumps(peergraph_pyg.share(random_tables(rows=(20_000, 70, 0))))
    assert len(handle) < 40_000


def _check_machines() -> None:
    data, rank = random_tables(), torch.distributed.get_rank()
    shared = peergraph_pyg.share(data if rank == 0 else None, device="cpu")
    for batch in NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=10):
        check_batch(batch, data, "cpu")
    store_of(shared).close()
    with pytest.raises(NotImplementedError, match="frames with rows split over machines"):
        peergraph_pyg.share(data if rank == 0 else None, device="cpu", machines="shard")


def test_two_machines() -> None:
    run_on_hosts(_check_machines, "ab", timeout_s=120)


def test_hot_rows_first_on_a_gpu_cuda() -> None:
    """A budget that splits rows and elements over tiers changes no batch."""
    require_gpus(1)
    data = random_tables(rows=(3000, 7000, 0))
    device = torch.device("cuda", 0)
    shared = peergraph_pyg.share(data, device=device, memory_budget=2 << 20)
    for batch in NeighborLoader(shared, [3, 2], input_nodes="user", batch_size=500):
        check_batch(batch, data, device)


@pytest.mark.parametrize("seed", range(12))
def test_random_frames(seed: int, device: torch.device) -> None:
    """Random rows, semantic types and ids, against PyTorch Frame's own indexing."""
    random = torch.Generator().manual_seed(1000 + seed)
    data = random_data(seed=seed)
    chosen = torch.randperm(7, generator=random)[: 1 + seed % 7].tolist()
    data.tf = random_frame(60, seed, tuple(STYPES[i] for i in chosen))
    plan = PLANS[seed % len(PLANS)]
    frame = peergraph_pyg.share(data, device=device, plan=plan).tf
    for count in (0, 1, 17, 200):
        ids = torch.randint(-60, 60, (count,), generator=random)
        check_same_frame(frame[ids], data.tf[ids % 60], device)


def test_rows_that_no_table_holds_are_refused() -> None:
    rows = 10_001
    data = random_data(rows)
    for value, kind in (
        (np.array(["a"] * rows), "a NumPy array of <U1"),
        (["a"] * rows, "a list"),
        (tuple(range(rows)), "a tuple"),
        (np.array([None] * rows), "a NumPy array of object"),
    ):
        data.names = value
        with pytest.raises(NotImplementedError, match=f"names is {kind} with a row for each of"):
            peergraph_pyg.share(data)
    data.names = None
    data.sparse = torch.sparse_coo_tensor(size=(rows, 3))
    with pytest.warns(UserWarning, match="sparse is a sparse_coo tensor, which each rank copies"):
        peergraph_pyg.share(data)
    del data.sparse
    data.names = ["of", "the", "graph"] * rows
    assert peergraph_pyg.share(data).names == data.names


def test_frame_of_the_graph(device: torch.device) -> None:
    """A frame of one row belongs to the graph, as in PyG."""
    data = random_data()
    data.of_graph = random_frame(1)
    shared = peergraph_pyg.share(data, device=device)
    batch = next(iter(NeighborLoader(shared, [2], batch_size=5)))
    for frame in (shared.of_graph, batch.of_graph):
        assert frame == data.of_graph


def test_frames_that_are_refused() -> None:
    data = random_tables()
    data["user"].num_nodes = 31
    with pytest.raises(ValueError, match="tf has 30 rows, which is not the number of its nodes"):
        peergraph_pyg.share(data)
    with pytest.raises(ValueError, match="tf has 7 rows, which is not the number of its nodes"):
        peergraph_pyg.share(Data(x=torch.rand(4, 1), tf=random_frame(7)))
    data = random_tables()
    data["user"].tf.dataset = "other"
    with pytest.raises(NotImplementedError, match="an attribute 'dataset'"):
        peergraph_pyg.share(data)
    data = random_tables()
    lists = nested(30, 2, torch.Generator().manual_seed(0), torch.int64)
    lists.offset[3] = lists.offset[5] + 1
    names = {stype.multicategorical: ["a", "b"]}
    data["user"].tf = TensorFrame({stype.multicategorical: lists}, names)
    with pytest.raises(ValueError, match="must not fall"):
        peergraph_pyg.share(data)
    frame = random_frame(30)
    frame.feat_dict[stype.numerical].requires_grad_()
    data["user"].tf = frame
    with pytest.raises(NotImplementedError, match=r"'tf.numerical' requires gradients"):
        peergraph_pyg.share(data)


def test_full_graphs_refuse_frames() -> None:
    data = Data(tf=random_frame(4), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(NotImplementedError, match="frames are not split for a full graph"):
        peergraph_pyg.full_graph(data)
