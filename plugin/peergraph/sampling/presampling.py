"""Pre-sampling: hotness from counted reads of mini-batches (GNNLab's caching policy, XGNN 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.naming import collective
from peergraph.number_arguments import check_number
from peergraph.sampling.arguments import check_integer_vector
from peergraph.sampling.neighbor.fanouts import Fanouts
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler, Seeds
from peergraph.sampling.sample import NodeType, Sample
from peergraph.store.hotness.hotness import Hotness
from peergraph.store.input.shared_vector import build_shared_vector

if TYPE_CHECKING:
    from peergraph.memory import Group
    from peergraph.store import Store


@collective("presample")
def presample(
    store: Store,
    fanouts: Fanouts,
    train_nodes: Seeds,
    batch_size: int,
    epochs: int = 1,
    seed: int = 0,
) -> Hotness:
    """Samples some epochs and counts the nodes that they read, to build a store by these counts.

    Collective over the ranks that built the store; synchronises::

        with Store.build(source, plan="host") as store:
            hotness = presample(store, [15, 10, 5], train_nodes, 1024)
        store = Store.build(source, hotness=hotness)

    Args:
        store: the graph; samples do not depend on its plan.
        fanouts: as in training, see :class:`NeighborSampler`.
        train_nodes: [S] this rank's training nodes, as seeds of the sampler; in each epoch they are
            shuffled and cut into batches of mixed node types. May be empty.
        batch_size: seeds per mini-batch, all node types together.
        epochs: number of passes over the training nodes.
        seed: seed of shuffles and samples; ranks with the same seed sample differently.

    Returns:
        The counts of all ranks, on the CPU, the same on each of them.

    Raises:
        ValueError: a `batch_size` below 1, `epochs` that are not 1 to 10,000.
        RuntimeError: the store came by pickle.
        IndexError, TypeError: as :meth:`NeighborSampler.sample`.
    """
    check_number("batch_size", batch_size, 1, 2**31 - 1)
    check_number("epochs", epochs, 1, _MAX_EPOCHS)
    check_number("seed", seed, -(2**63), 2**64 - 1)
    group = store.group
    if group is None:
        raise RuntimeError("only the ranks that built a store can presample from it")
    counts = _Counts(store)

    def count() -> None:
        sampler = NeighborSampler(store, fanouts, edge_ids=False)
        generator = torch.Generator().manual_seed((seed * _MAX_RANKS + group.rank) % 2**64)
        for _ in range(epochs):
            for batch in _batches(store, train_nodes, batch_size, generator):
                draw = int(torch.randint(2**62, (1,), generator=generator, device="cpu"))
                counts.add(sampler.sample(batch, draw))

    collective_call(group, count)
    return counts.of_all_ranks(group)


_MAX_RANKS = 1024
_MAX_EPOCHS = 10_000


class _Counts:
    """The reads of this rank's mini-batches so far, counted on the store's device."""

    def __init__(self, store: Store) -> None:
        def zeros(node_type: NodeType) -> Tensor:
            count = store.num_nodes(node_type)
            return torch.zeros(count, dtype=torch.int64, device=store.device)

        self.features = {t: zeros(t) for t in store.node_types}
        self.structure = {t: zeros(t[2]) for t in store.edge_types}
        self.edges = dict.fromkeys(store.edge_types, 0)
        self.batches = 0

    def add(self, sample: Sample) -> None:
        self.batches += 1
        # Seeds may repeat; each is a separate input row.
        for node_type, nodes in sample.nodes.items():
            _count(self.features[node_type], nodes)
        for edge_type, edges in sample.num_sampled_edges.items():
            self.edges[edge_type] += sum(edges)
            nodes = sample.nodes[edge_type[2]]
            for hop in range(len(edges)):
                block = sample.block(hop, edge_type)
                targets = nodes[block.first_target : block.first_target + block.num_targets]
                _count(self.structure[edge_type], targets)

    def of_all_ranks(self, group: Group) -> Hotness:
        """Returns the sums of the counts of all ranks. Collective."""

        def total(counts: Tensor) -> Tensor:
            def add(shared: Tensor) -> None:
                shared += counts.cpu()

            return build_shared_vector(group, counts.numel(), add)

        others = group.all_gather((self.batches, self.edges))
        return Hotness(
            {t: total(counts) for t, counts in self.features.items()},
            {t: total(counts) for t, counts in self.structure.items()},
            sum(batches for batches, _ in others),
            {t: sum(edges[t] for _, edges in others) for t in self.edges},
        )


def _count(counts: Tensor, nodes: Tensor) -> None:
    counts.index_add_(0, nodes, torch.ones_like(nodes))


def _batches(
    store: Store, train_nodes: Seeds, batch_size: int, generator: torch.Generator
) -> Iterator[dict[NodeType, Tensor]]:
    """Yields the training nodes in random order, cut into batches."""
    if isinstance(train_nodes, Tensor):
        if len(store.node_types) != 1:
            raise ValueError(f"train_nodes: expected a dict, the store has {store.node_types}")
        train_nodes = {store.node_types[0]: train_nodes}
    if not isinstance(train_nodes, Mapping):
        kind = type(train_nodes).__name__
        raise TypeError(f"train_nodes: expected a tensor or a dict of tensors, got {kind}")
    if not train_nodes:
        return
    for nodes in train_nodes.values():
        check_integer_vector("train_nodes", nodes)
    ids = torch.cat([nodes.cpu() for nodes in train_nodes.values()])
    sizes = torch.tensor([nodes.numel() for nodes in train_nodes.values()], device="cpu")
    types = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes)
    order = torch.randperm(ids.numel(), generator=generator, device="cpu")
    for begin in range(0, ids.numel(), batch_size):
        batch = order[begin : begin + batch_size]
        yield {t: ids[batch[types[batch] == i]] for i, t in enumerate(train_nodes)}
