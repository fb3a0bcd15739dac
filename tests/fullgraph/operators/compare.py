"""Runs calls of operators on rows of full graphs, and says where they differ from plain tensors."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.rows.user_rows import is_offloaded
from peergraph.fullgraph.tensor.conversions import distribute
from peergraph.fullgraph.tensor.row_copies import as_view
from tests.fullgraph.fuzz.outcomes import is_named
from tests.fullgraph.operators.calls import Call, Extent, calls
from tests.fullgraph.operators.operator_list import operators
from tests.fullgraph.operators.plain_forms import BROADCAST


def compare(
    part: int,
    parts: int,
    extent: Extent,
    chunks: int | None,
    dtypes: list[torch.dtype],
    device: str,
    selection: str = "nodes",
    prints: bool = False,
    only: str = "",
) -> tuple[Counter[str], list[str]]:
    """Compares every `parts`-th operator; returns how the calls ended, and what is wrong.

    Collective.

    Args:
        part, parts: which operators.
        extent: which of their calls.
        chunks: of offloaded rows; None: rows on the device.
        dtypes: of the inputs.
        device: "cpu" or "cuda".
        selection: which rows of a graph tensors become: see :class:`Nodes`.
        prints: whether rank 0 prints faults as they come.
        only: a part of the operators' names.
    """
    warnings.simplefilter("ignore")
    nodes = Nodes(chunks, device, selection)
    ends: Counter[str] = Counter()
    faults: list[str] = []
    for op in operators(part, parts):
        if only not in op.name:
            continue
        for dtype in dtypes:
            for call in calls(op, dtype, extent, device):
                end, text = _end_on_ranks(call, nodes)
                ends[end] += 1
                if text:
                    text = " ".join(text.split())[:500]
                    where = f"{dtype}, {selection}, chunks {chunks}"
                    faults.append(f"{call.name}, {where}: {end}: {text}")
                    if prints and nodes.rank == 0:
                        print(faults[-1], flush=True)
    return ends, faults


class Nodes:
    """Full graphs of few nodes, whose rows tensors become.

    Args:
        chunks: of offloaded rows; None: rows on the device.
        device: "cpu" or "cuda".
        selection: "nodes" of all rows; "ids", "mask" or "range" of selected rows of a larger graph;
            "columns": rows are the last dimension.
    """

    def __init__(self, chunks: int | None, device: str, selection: str = "nodes") -> None:
        self._selection = selection
        self._options: dict[str, Any] = {}
        if chunks is not None:
            self._options = {"offload": True, "num_chunks": chunks}
        if device == "cuda":
            self._options["device"] = f"cuda:{torch.cuda.current_device()}"
        self._graphs: dict[int, Any] = {}
        self.group = self.rows(torch.zeros(3)).row_layout.group
        self.rank = self.group.rank

    def plain(self, tensor: Tensor) -> Tensor:
        """Returns the tensor with the strides that its partitioned rows have, for plain torch."""
        if self._selection != "columns":
            return tensor
        return tensor.movedim(-1, 0).contiguous().movedim(0, -1)

    def rows(self, tensor: Tensor) -> Any:
        """Returns a plain tensor as rows of a graph: of as many nodes, or selected. Collective."""
        if self._selection == "nodes":
            return self._nodes(tensor)
        if self._selection == "columns":
            return self._nodes(self.plain(tensor).movedim(-1, 0)).movedim(0, -1).detach()
        count = tensor.shape[0]
        ids = torch.randperm(count + 2, generator=torch.Generator().manual_seed(count))[:count]
        if self._selection == "range":
            ids = torch.arange(1, count + 1)
        elif self._selection == "mask":
            ids = ids.sort().values
        full = tensor.new_zeros(count + 2, *tensor.shape[1:])
        full[ids] = tensor
        rows = self._nodes(full)
        if self._selection == "range":
            return rows[1 : count + 1].detach()
        mask = torch.zeros(count + 2, dtype=torch.bool)
        mask[ids] = True
        return rows[ids if self._selection == "ids" else mask].detach()

    def _nodes(self, tensor: Tensor) -> Any:
        count = tensor.shape[0]
        if count not in self._graphs:
            draw = torch.Generator().manual_seed(3)
            edges = torch.randint(0, count, (2, 2 * count + 3), generator=draw)
            data = Data(edge_index=edges, x=torch.zeros(count, 2))
            self._graphs[count] = peergraph_pyg.full_graph(data, **self._options)
        x = self._graphs[count].x
        rows = distribute(tensor, x.row_layout)
        is_stored = x.is_offloaded and is_offloaded(tensor)
        return store_resident(x._content.space, rows) if is_stored else rows


def _end_on_ranks(call: Call, nodes: Nodes) -> tuple[str, str]:
    """Returns how a call ends on all ranks, and what is wrong with it. Collective."""
    try:
        ends = nodes.group.all_gather(_end_of(call, nodes))
    except Exception as error:
        error.add_note(call.name)
        raise
    faults = [(end, text) for end, text in ends if text]
    if faults:
        return faults[0]
    if len({end for end, _ in ends}) > 1:
        return "ranks differ", ", ".join(end for end, _ in ends)
    return ends[0]


def _end_of(call: Call, nodes: Nodes) -> tuple[str, str]:
    """Returns how a call ends, and what is wrong with it."""
    try:
        right = call.run(nodes.plain)
    except Exception as raised:
        refused: Exception | None = raised
    else:
        refused = None
    try:
        of_rows = call.run(nodes.rows)
        results = list(map(_whole, of_rows))
    except Exception as error:
        if refused is not None:
            return "both raise", ""
        if is_named(error):
            return "named error", ""
        return "unnamed error", f"{type(error).__name__}: {error}"
    if refused is not None and "is not differentiable with respect to argument" in str(refused):
        return "torch refuses gradients", ""
    if refused is not None and call.plain_form in BROADCAST:
        return "broadcast, torch raises", ""
    if refused is not None:
        return "only torch raises", f"{type(refused).__name__}: {refused}"
    if len(results) != len(right):
        return "differs", f"{len(results)} results, right are {len(right)}"
    orders = [list(map(_order_in_memory, values)) for values in (of_rows, right)]
    right = list(map(_whole, right))
    if call.operator == "topk" and not _selects_values(call, *results[:2]):
        return "differs", f"indices {results[1].flatten()[:6].tolist()} are not those of the values"
    for number, (value, expected) in enumerate(zip(results, right, strict=True)):
        if call.operator == "topk" and number == 1:
            continue  # torch leaves open which of equal values it chooses, and in which order
        difference = _difference(value, expected)
        order, right_order = (values[number] for values in orders)
        if not difference and None not in (order, right_order) and order != right_order:
            difference = f"has dimensions in memory as strides {order}, right is {right_order}"
        if difference:
            return "differs", f"result {number} {difference}"
    return "equal", ""


def _selects_values(call: Call, values: Tensor, indices: Tensor) -> bool:
    """Returns whether the indices that `topk` returned are distinct and are those of its values."""
    first, args, kwargs = call.arguments
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if not indices.numel() or not indices.dim():
        return True
    ordered = indices.sort(dim).values
    is_once = bool((ordered.diff(dim=dim) > 0).all())
    return is_once and torch.equal(call.tensors[first].cpu().gather(dim, indices), values)


def _whole(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        value = value.detach()
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).cpu()


def _order_in_memory(value: Any) -> list[int] | None:
    """Returns strides that are equal where functions such as `reshape` copy the same tensors."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
        return None
    number = torch.zeros(())
    view = as_view(number.expand(value.shape), value.shape, value.shape, value.stride())
    return [step for step, size in zip(view.stride(), value.shape, strict=True) if size > 1]


def _difference(value: Any, right: Any) -> str:
    if not isinstance(value, Tensor) or not isinstance(right, Tensor):
        # Of what a function does not depend on: rows have zeros where plain tensors have nothing.
        if right is None and isinstance(value, Tensor) and not value.any():
            return ""
        is_equal = value is right or bool(value == right) or (value != value and right != right)
        return "" if is_equal else f"is {value}, right is {right}"
    for name in ("shape", "dtype", "layout"):
        if getattr(value, name) != getattr(right, name):
            return f"has {name} {getattr(value, name)}, right is {getattr(right, name)}"
    right, value = right.detach().to_dense(), value.to_dense()
    is_exact = not (right.is_floating_point() or right.is_complex())
    tolerance = 1e-5 if right.dtype in (torch.float32, torch.complex64) else 1e-8
    if is_exact and torch.equal(value, right):
        return ""
    if not is_exact and torch.allclose(value, right, tolerance, tolerance, equal_nan=True):
        return ""
    return f"is {value.flatten()[:6].tolist()}, right is {right.flatten()[:6].tolist()}"
