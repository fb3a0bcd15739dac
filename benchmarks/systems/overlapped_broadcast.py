"""A GCN over several GPUs in plain torch: rows split over ranks, overlapped NCCL broadcasts.

The bar for full-graph training. Every product runs in as many stages as there are ranks: the rows
of one rank are broadcast while those of the one before are multiplied by cuSPARSE (MG-GCN 4.3).
Gradients are written by hand, and each layer multiplies in the cheaper of the two exact orders.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from inputs.gcn_graph import GcnGraph
from torch import Tensor

from peergraph.memory import Group


class SplitProduct:
    """A @ x for a matrix and features whose rows are split evenly over the ranks."""

    def __init__(self, graph: GcnGraph, group: Group) -> None:
        world = group.world_size
        if graph.num_nodes % world:
            raise ValueError(f"{graph.num_nodes} nodes do not split over {world} ranks")
        self.rank, self.world, self.rows = group.rank, world, graph.num_nodes // world
        first = self.rank * self.rows
        indptr = graph.indptr[first : first + self.rows + 1]
        begin, end = int(indptr[0]), int(indptr[-1])
        source, weights = graph.indices[begin:end], graph.weights[begin:end]
        row = torch.arange(self.rows, device=source.device).repeat_interleave(indptr.diff())
        self.blocks = []
        for block in range(world):
            of_block = source.div(self.rows, rounding_mode="floor") == block
            offsets = torch.zeros(self.rows + 1, dtype=torch.int32, device=source.device)
            torch.cumsum(torch.bincount(row[of_block], minlength=self.rows), 0, out=offsets[1:])
            columns = source[of_block] - block * self.rows
            size = (self.rows, self.rows)
            self.blocks.append(
                torch.sparse_csr_tensor(
                    offsets, columns, weights[of_block], size=size, check_invariants=False
                )
            )
        self._buffers: dict[tuple[int, int], Tensor] = {}

    def _broadcast(self, x: Tensor, source: int) -> tuple[Tensor, dist.Work | None]:
        if self.world == 1:
            return x, None
        rows = x
        if source != self.rank:
            key = x.shape[1], source % 2
            if key not in self._buffers:
                self._buffers[key] = x.new_empty(self.rows, x.shape[1])
            rows = self._buffers[key]
        return rows, dist.broadcast(rows, source, async_op=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(self.rows, x.shape[1])
        following = self._broadcast(x, 0)
        for block in range(self.world):
            rows, work = following
            if block + 1 < self.world:
                following = self._broadcast(x, block + 1)
            if work is not None:
                work.wait()
            torch.addmm(out, self.blocks[block], rows, beta=int(block > 0), out=out)
        return out


def sums_first(widths: Sequence[int]) -> list[bool]:
    """Whether each layer sums neighbours before it multiplies by its weights.

    The first layer's input needs no gradient, so that its sum is not needed in backward.
    """
    layers = enumerate(itertools.pairwise(widths))
    return [first <= 2 * second if i == 0 else first < second for i, (first, second) in layers]


class BroadcastGcn:
    """GCN layers with ReLU, Adam and cross entropy over all nodes.

    Args:
        product: of the normalised adjacency.
        x, y: this rank's features and labels.
        weights, biases: of each layer, [in, out] and [out]; copied.
    """

    def __init__(
        self, product: SplitProduct, x: Tensor, y: Tensor, weights: list[Tensor],
        biases: list[Tensor], rate: float,
    ) -> None:  # fmt: skip
        self.product, self.x, self.y = product, x, y.view(-1, 1)
        self.weights = [torch.nn.Parameter(weight.clone()) for weight in weights]
        self.biases = [torch.nn.Parameter(bias.clone()) for bias in biases]
        widths = [weight.shape[0] for weight in weights] + [weights[-1].shape[1]]
        self.sums_first = sums_first(widths)
        self.optimizer = torch.optim.Adam([*self.weights, *self.biases], lr=rate)

    @torch.no_grad()
    def epoch(self) -> Tensor:
        """Trains for one epoch; returns the loss before it."""
        count, hidden = len(self.weights), self.x
        inputs, active = [], []
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if self.sums_first[i]:
                hidden = self.product(hidden)
                inputs.append(hidden)
                hidden = torch.addmm(bias, hidden, weight)
            else:
                inputs.append(hidden)
                hidden = self.product(hidden @ weight).add_(bias)
            if i + 1 < count:
                active.append(hidden.relu_())
        nodes = self.product.rows * self.product.world
        log_share = torch.log_softmax(hidden, 1)
        del hidden
        loss = -log_share.gather(1, self.y).sum() / nodes
        grad = log_share.exp_()
        grad.scatter_add_(1, self.y, torch.full_like(self.y, -1, dtype=grad.dtype))
        grad /= nodes
        grads: list[Tensor] = []
        for i in reversed(range(count)):
            bias_grad, layer_input = grad.sum(0), inputs.pop()
            if not self.sums_first[i]:
                grad = self.product(grad)
            grads += [layer_input.t() @ grad, bias_grad]
            del layer_input
            if i == 0:
                break
            grad = grad @ self.weights[i].t()
            if self.sums_first[i]:
                grad = self.product(grad)
            grad *= active.pop() > 0
        flat = torch.cat([tensor.reshape(-1) for tensor in (*grads, loss)])
        if self.product.world > 1:
            dist.all_reduce(flat)
        first = 0
        for i in reversed(range(count)):
            for parameter in (self.weights[i], self.biases[i]):
                parameter.grad = flat[first : first + parameter.numel()].view_as(parameter)
                first += parameter.numel()
        self.optimizer.step()
        return flat[-1]
