"""What scripts of relational deep learning use, beside plain loops over a small database."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg

pandas = pytest.importorskip("pandas")
contrib = pytest.importorskip("torch_geometric.contrib.utils")
if not hasattr(contrib, "from_relbench"):
    pytest.skip("PyG has no from_relbench", allow_module_level=True)

SIZES = {"users": 30, "posts": 200, "votes": 500}


class AttachTarget:
    """RelBench's transform: the labels of a batch's seeds."""

    def __init__(self, entity: str, target: Tensor) -> None:
        self.entity, self.target = entity, target

    def __call__(self, batch: HeteroData) -> HeteroData:
        batch[self.entity].y = self.target[batch[self.entity].input_id.cpu()]
        return batch


def database() -> Any:
    """Users write posts and vote for posts. Some keys are missing, and many times are equal."""
    random = torch.Generator().manual_seed(4)

    def keys(table: str, count: int) -> Any:
        values = torch.randint(SIZES[table], (count,), generator=random).tolist()
        return pandas.array([v if v % 11 else None for v in values], dtype="Int64")

    def times(count: int) -> Any:
        days = torch.randint(60, (count,), generator=random).numpy()
        return pandas.to_datetime(days, unit="D", origin="2024-01-01").astype("datetime64[ns]")

    users, posts, votes = SIZES.values()
    frames = {
        "users": pandas.DataFrame({"id": range(users), "age": torch.rand(users).numpy()}),
        "posts": pandas.DataFrame(
            {"id": range(posts), "user": keys("users", posts), "time": times(posts)}
        ).assign(length=torch.rand(posts, generator=random).numpy()),
        "votes": pandas.DataFrame(
            {"user": keys("users", votes), "post": keys("posts", votes), "time": times(votes)}
        ).assign(value=torch.rand(votes, generator=random).numpy()),
    }
    foreign = {
        "users": {},
        "posts": {"user": "users"},
        "votes": {"user": "users", "post": "posts"},
    }
    tables = {
        name: SimpleNamespace(
            df=frame,
            pkey_col="id" if "id" in frame else None,
            time_col="time" if "time" in frame else None,
            fkey_col_to_pkey_table=foreign[name],
        )
        for name, frame in frames.items()
    }
    return SimpleNamespace(table_dict=tables)


def last_neighbours(data: HeteroData, edge_type: Any, node: int, latest: int, k: int) -> list[int]:
    """The last sources of a node, by time, then by the position of the edge."""
    source, target = data[edge_type].edge_index.tolist()
    edges = [e for e in range(len(target)) if target[e] == node]
    if "time" in data[edge_type[0]]:
        times = data[edge_type[0]].time.tolist()
        edges = sorted(
            (e for e in edges if times[source[e]] <= latest), key=lambda e: times[source[e]]
        )
    return [source[e] for e in edges[max(0, len(edges) - k) :]]


@pytest.mark.parametrize("sort", [False, True])
def test_entities(device: torch.device, sort: bool) -> None:
    """`from_relbench`, fanouts by hop and type, times of seeds, and labels from a transform."""
    data = contrib.from_relbench(database())
    day = 24 * 60 * 60
    begin = int(data["posts"].time.min())
    seeds = torch.arange(30).repeat(2)
    latest = begin + day * (torch.arange(60) % 61)
    target = torch.rand(60)
    fanouts = {t: [3 if t[0] == "votes" else 5, 0] for t in data.edge_types}
    shared = peergraph_pyg.share(data, device=device, time_attr="time" if sort else None)
    loader = NeighborLoader(
        shared, fanouts, ("users", seeds), latest, time_attr="time", temporal_strategy="last",
        transform=AttachTarget("users", target), batch_size=16, shuffle=True,
    )  # fmt: skip
    for batch in loader:
        input_id = batch["users"].input_id.cpu()
        assert torch.equal(batch["users"].y, target[input_id])
        assert torch.equal(batch["users"].seed_time.cpu(), latest[input_id])
        for t in data.node_types:
            assert torch.equal(batch[t].x.cpu(), data[t].x[batch[t].n_id.cpu()])
        for edge_type in [t for t in data.edge_types if t[2] == "users"]:
            source, target_row = batch[edge_type].edge_index.cpu()
            for row, seed in enumerate(input_id.tolist()):
                sources = batch[edge_type[0]].n_id.cpu()[source[target_row == row]].tolist()
                expected = last_neighbours(
                    data, edge_type, int(seeds[seed]), int(latest[seed]), fanouts[edge_type][0]
                )
                assert sources == expected


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_recommendations(device: torch.device, negatives: str) -> None:
    """Negatives are posts that are there at the time of the link; ids find shallow embeddings."""
    data = contrib.from_relbench(database())
    shared = peergraph_pyg.share(data, device=device, time_attr="time")
    user, post = torch.arange(30).repeat(5), torch.arange(150)
    latest = data["posts"].time[post]
    embedding = torch.nn.Embedding(SIZES["posts"], 4).to(device)
    key = ("users", "likes", "posts")
    loader = LinkNeighborLoader(
        shared, [4, 2], (key, torch.stack([user, post])), edge_label_time=latest,
        time_attr="time", neg_sampling=negatives, batch_size=25,
    )  # fmt: skip
    first = int(data["posts"].time.min())
    for batch in loader:
        posts, links = batch["posts"], batch[key].input_id.cpu()
        assert torch.equal(embedding(posts.n_id), embedding.weight[posts.n_id])
        if negatives == "binary":
            drawn = batch[key].edge_label_index[1, 25:].cpu()
            assert batch[key].edge_label.tolist() == [1] * 25 + [0] * 25
        else:
            drawn = posts.dst_neg_index.cpu()
        times = data["posts"].time[posts.n_id.cpu()[drawn]]
        # Where PyG finds no post in some tries, it takes the first of all.
        assert bool(((times <= latest[links]) | (times == first)).all())
        for t, seeds in (("posts", 50), ("votes", 0)):
            late = data[t].time[batch[t].n_id.cpu()] > latest[links[batch[t].batch.cpu()]]
            assert not bool(late[seeds:].any())


def test_times_of_nodes_stay_in_the_store(device: torch.device) -> None:
    """PyG's negative sampling reads rows: the sampler has no copy of all times."""
    shared = peergraph_pyg.share(contrib.from_relbench(database()), device=device)
    sampler = peergraph_pyg.NeighborSampler(shared, [2], time_attr="time")
    assert sampler.node_time is not None
    for name, times in sampler.node_time.items():
        assert times.table is shared[name].time.table
        assert times.device.type == "cpu"
