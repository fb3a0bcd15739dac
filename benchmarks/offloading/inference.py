"""Exact inference of PyG's GraphSAGE on all nodes, beside its own layer-wise inference."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from harness.ranks import Session, synchronize
from torch import Tensor
from torch_geometric.data import Data as PygData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import SamplerOutput

import peergraph_pyg
from offloading.data import Data, write_features
from offloading.models import make_sage
from offloading.training import Prepared, Run, clear_device

_BATCHES = 16  # of nodes, in PyG's inference
_TIMES = 3


class NeighborLists(NeighborLoader):
    """Batches of nodes with all in-neighbours and without their features."""

    def filter_fn(self, out: SamplerOutput) -> PygData:
        edges = torch.stack([out.row, out.col])
        return PygData(n_id=out.node.cpu(), edge_index=edges, batch_size=out.metadata[0].numel())


def infer(session: Session, data: Data, run: Run, epochs: int) -> None:
    """Trains, computes the rows of all nodes in both ways, and records seconds and agreement.

    PyG's ``BasicGNN.inference`` gets batches from Peergraph's sampler, which lists all
    in-neighbours of 1/16 of the nodes at a time, and keeps rows of layers on the CPU; it runs on
    one rank.

    Args:
        epochs: of training before.
    """
    widths = run.of(data.spec)
    layers = f"SAGE {'-'.join(map(str, widths))}"
    fields = {"part": "inference", "graph": run.graph, "layers": layers, "kind": "SAGE"}
    clear_device(session)
    with session.section(f"inference {layers} on {run.graph}", **fields):
        torch.manual_seed(7)
        model = make_sage(widths).to(session.device)
        prepared = Prepared(session, data, replace(run, kind="SAGE"))
        edge_index = prepared.edge_index()
        accelerated = peergraph_pyg.accelerate(model)
        epoch = prepared.epochs_of(accelerated, edge_index)
        losses = [float(epoch()) for _ in range(epochs)]
        accelerated.eval()
        weights = accelerated.state_dict()
        moved = prepared.moved()
        prepared.reset_peaks()
        seconds = {"rows": [], "classes": []}
        for _ in range(_TIMES):
            for what, times in seconds.items():
                session.barrier()
                start = time.perf_counter()
                with torch.no_grad():
                    out = accelerated(prepared.x, edge_index)
                    result = (out if what == "rows" else out.argmax(-1)).full_tensor()
                synchronize(session.device)
                times.append(time.perf_counter() - start)
                if what == "rows":
                    rows = result
        totals = {name: count - moved[name] for name, count in prepared.moved().items()}
        plan = prepared.graph.plan
        record = {
            "system": "peergraph",
            "decision": plan.decision.partition(":")[0],
            "num_chunks": plan.offload.num_chunks if plan.offload else None,
            "budget_gib": run.budget and run.budget / 2**30,
            "last_loss": losses[-1] if losses else None,
            "ms": 1e3 * min(seconds["rows"]),
            "classes_s": min(seconds["classes"]),
            **{f"{name}_gb": count / 1e9 / 2 / _TIMES for name, count in totals.items()},
            **prepared.peaks(),
        }
        session.recorder.note(**fields, **record)
        session.note(f"{layers} on {run.graph}: {record['ms']:.1f} ms")
        del prepared, accelerated, edge_index, epoch, out, result
        clear_device(session)
        if session.world == 1:
            plain = make_sage(widths).to(session.device)
            plain.load_state_dict(weights)
            theirs, took = _infer_with_pyg(session, data, plain, widths[0])
            record = _agreement(rows.cpu(), theirs)
            session.recorder.note(**fields, system="pyg", ms=1e3 * took, **record)
            session.note(f"PyG: {took:.3f} s, {record}")


def _infer_with_pyg(
    session: Session, data: Data, model: GraphSAGE, columns: int
) -> tuple[Tensor, float]:
    """PyG's layer-wise inference: rows of all nodes, and the seconds that it takes."""
    spec, device = data.spec, session.device
    indptr, indices = (part.to(device) for part in data.edges)
    nodes = torch.arange(spec.num_nodes, device=device)
    destination = torch.repeat_interleave(nodes, indptr.diff(), output_size=spec.num_edges)
    edge_index = torch.stack([indices.long(), destination]).cpu()
    del indptr, indices, nodes, destination
    shared = peergraph_pyg.share(PygData(edge_index=edge_index, num_nodes=spec.num_nodes))
    del edge_index
    loader = NeighborLists(
        shared, num_neighbors=[-1], batch_size=-(-spec.num_nodes // _BATCHES), shuffle=False
    )
    x = torch.empty(spec.num_nodes, columns)
    write_features(0, x, device)
    loader.data = PygData(x=x, num_nodes=spec.num_nodes)
    model.eval()
    took = []
    for _ in range(2):
        synchronize(device)
        start = time.perf_counter()
        rows = model.inference(loader, device=device)
        synchronize(device)
        took.append(time.perf_counter() - start)
    return rows, min(took)


def _agreement(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """The largest difference in millionths of the largest entry, and the share of equal classes."""
    largest, difference, equal = 0.0, 0.0, 0
    for mine, other in zip(ours.split(1 << 20), theirs.split(1 << 20), strict=True):
        largest = max(largest, float(other.abs().max()))
        difference = max(difference, float((mine - other).abs().max()))
        equal += int((mine.argmax(-1) == other.argmax(-1)).sum())
    return {"difference_ppm": 1e6 * difference / largest, "same_classes": equal / len(ours)}
