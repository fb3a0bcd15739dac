"""The options of full graphs: how nodes are ordered, what is planned for, where rows are."""

from __future__ import annotations

from os import PathLike

import torch
from torch import nn
from typing_extensions import TypedDict

from peergraph.fullgraph.dry_run.model_recorder import ModelRecorder
from peergraph.fullgraph.layout.duplication import MAX_CHUNKS
from peergraph.fullgraph.plan.choose_order import NodeOrder
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.memory import Topology
from peergraph.number_arguments import check_number


class FullGraphOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`FullGraph.build`, :meth:`FullGraph.from_store` and the adapters'
    ``full_graph``.

    All of them may be left out.

    Args:
        order: of nodes. "random"; "communities", found by label propagation; "original"; "metis",
            which needs ``pip install "peergraph[partition]"``; a tensor [nodes] with the rank of
            each node, as METIS or DGL give it; any of these by node type; or "auto" (the default):
            random, unless the busiest rank exchanges a fifth fewer rows with another order, by
            count of distinct remote rows.
        offload: whether rows of features and layers are kept in host memory and computed chunk by
            chunk (HongTu); None (the default): where resident training would exceed the budget,
            which is counted with the given model, else with three layers of 256 columns.
        num_chunks: of each rank's nodes, for offloaded training; None (the default): by the
            shortest expected epoch.
        host_memory: bytes of the host for rows of all ranks; None (the default): what is free.
            Features on the CPU, also mapped files, are read where they are, see
            :meth:`FullGraph.node_rows`, and take none of it; they must not be changed.
        folder: where files without a name hold rows for which the host has no room, best on an NVMe
            drive; None (the default): no files.
        hidden_dtype: torch.bfloat16 or torch.float16, in which offloaded training stores rows of
            layers, their sums and gradients: half the memory and transfers, and results that are
            rounded. They are computed in their own dtype, and features keep theirs. None (the
            default): nothing is rounded. Without effect on rows that are as narrow.
        mode: how rows are exchanged: "halo", "blocks" or "in_kernel"; None (the default): the one
            that is expected to be the quickest, for each width of rows on GPUs that reach each
            other's memory.
        topology: the links by which exchanges are chosen; None (the default): those of this machine
            as they were measured, else the default figures.
        model: what an epoch of the model does, for the plan: see
            :func:`peergraph.fullgraph.named_model`. The adapters' ``full_graph`` takes a module,
            too, with `loss`. None (the default): the model is not known, and a wide one is assumed.
        seed: of random orders and partitioners; 0 by default.
        progress: whether to show a bar; None (the default): for long work, on a terminal.
    """

    order: NodeOrder
    offload: bool | None
    num_chunks: int | None
    host_memory: int | None
    folder: str | PathLike[str] | None
    hidden_dtype: torch.dtype | None
    mode: str | None
    topology: Topology | None
    model: RecordedModel | ModelRecorder | nn.Module | None
    seed: int
    progress: bool | None


_DEFAULTS: FullGraphOptions = {
    "order": "auto",
    "offload": None,
    "num_chunks": None,
    "host_memory": None,
    "folder": None,
    "hidden_dtype": None,
    "mode": None,
    "topology": None,
    "model": None,
    "seed": 0,
    "progress": None,
}


def all_options(chosen: FullGraphOptions) -> FullGraphOptions:
    """Returns the options with defaults for those that were left out.

    Raises:
        TypeError: an option that does not exist.
        TypeError: a number that is none, a `topology` that is none.
        ValueError: a number out of range, a `hidden_dtype` that rows cannot be stored in.
    """
    unknown = [name for name in chosen if name not in _DEFAULTS]
    if unknown:
        raise TypeError(
            f"unexpected keyword argument {', '.join(unknown)}: expected {', '.join(_DEFAULTS)}"
        )
    options: FullGraphOptions = {**_DEFAULTS, **chosen}
    check_number("num_chunks", options["num_chunks"], 1, MAX_CHUNKS)
    check_number("host_memory", options["host_memory"], 0)
    check_number("seed", options["seed"], -(2**63), 2**64 - 1)
    if not isinstance(options["topology"], Topology | None):
        raise TypeError(
            f"topology must be a peergraph.memory.Topology or None, got {options['topology']!r}"
        )
    if not isinstance(options["model"], RecordedModel | ModelRecorder | None):
        raise TypeError(
            "model must be what peergraph.fullgraph.named_model returns, or None, got "
            f"{options['model']!r}: for a model of your own pass `loss` to the adapter's full_graph"
        )
    hidden_dtype = options["hidden_dtype"]
    if hidden_dtype not in (None, torch.bfloat16, torch.float16):
        raise ValueError(
            f"hidden_dtype must be torch.bfloat16, torch.float16 or None, got {hidden_dtype}"
        )
    return options
