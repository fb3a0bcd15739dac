"""Samples of PyG's loaders whose neighbours a thread draws while the loop goes on.

PyG's code calls the sampler, and draws negatives and makes labels before and after. With a thread,
the sampler returns an empty output, to which PyG's code adds its part; the sample is added later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from peergraph.sampling import Sample
from peergraph.store import NodeType

from .windows import seed_starts

Seeds = Tensor | dict[NodeType, Tensor]
_requests: ContextVar[list[Any] | None] = ContextVar("peergraph_pyg_requests", default=None)


class SampleRequest:
    """A sample that is to be drawn, with the arguments of the core's sampler.

    Args:
        sampler: the loader's.
        nodes, seed, seed_time: as in the sampler's ``draw``.
    """

    def __init__(self, sampler: Any, nodes: Seeds, seed: int, seed_time: Any) -> None:
        self.sampler, self.core = sampler, sampler.core
        self.nodes, self.seed, self.seed_time = nodes, seed, seed_time
        self.seed_start = seed_starts(nodes)
        batch = _BatchVector() if sampler.disjoint else None
        kind = SamplerOutput if isinstance(nodes, Tensor) else HeteroSamplerOutput
        self.output: SamplerOutput | HeteroSamplerOutput = kind(
            node=None, row=None, col=None, edge=None, batch=batch
        )

    def finish(self, sample: Sample | None) -> None:
        """Completes the output.

        Args:
            sample: what a thread has drawn; None: it is drawn now.
        """
        if sample is None:
            sample = self.core.sample(
                self.nodes, self.seed, seed_time=self.seed_time, seed_start=self.seed_start
            )
        output = self.output
        divisor = None if output.batch is None else output.batch.divisor
        values = vars(self.sampler.finished(sample, self.core))
        output.__dict__.update({k: v for k, v in values.items() if k != "metadata"})
        divide_batch(output, divisor)


def divide_batch(output: SamplerOutput | HeteroSamplerOutput, divisor: int | None) -> None:
    """Numbers the seeds of a disjoint sample's nodes as PyG's code does: the ends of a link, and of
    its negatives, have one number.

    Args:
        output: of the sample.
        divisor: the number of links; None: the seeds are nodes.
    """
    if divisor is None:
        return
    if isinstance(output.batch, dict):
        output.batch = {t: batch % divisor for t, batch in output.batch.items()}
    else:
        output.batch = output.batch % divisor


class _BatchVector:
    """Stands for the seeds of a disjoint sample's nodes, by type or not, which PyG's code divides
    by the number of links.
    """

    def __init__(self, divisor: int | None = None) -> None:
        self.divisor = divisor

    def __mod__(self, divisor: int) -> _BatchVector:
        return _BatchVector(divisor)

    def items(self) -> list[tuple[None, _BatchVector]]:
        return [(None, self)]

    def __setitem__(self, _: None, divided: _BatchVector) -> None:
        self.divisor = divided.divisor


@contextmanager
def collected_requests() -> Iterator[list[SampleRequest]]:
    """Within the context, samplers draw no samples, but add requests for them to the list."""
    requests: list[SampleRequest] = []
    token = _requests.set(requests)
    try:
        yield requests
    finally:
        _requests.reset(token)


def output_later(make: Callable[[], SampleRequest]) -> SamplerOutput | HeteroSamplerOutput | None:
    """Adds a request, and returns its output; None outside of :func:`collected_requests`."""
    requests = _requests.get()
    if requests is None:
        return None
    request = make()
    requests.append(request)
    return request.output


def begin_output(loader: Any, index: Any) -> SamplerOutput | HeteroSamplerOutput:
    """Does what the ``collate_fn`` of PyG's loaders does, but gathers no rows.

    Args:
        loader: of nodes or links.
        index: the positions of the batch's seeds or links in the loader's input.
    """
    inputs = loader.input_data[index]
    if isinstance(loader, NodeLoader):
        return loader.node_sampler.sample_from_nodes(inputs)
    return loader.link_sampler.sample_from_edges(inputs, neg_sampling=loader.neg_sampling)
