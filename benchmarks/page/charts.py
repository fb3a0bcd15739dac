"""The charts of the benchmarks page, each out of the records of one step or a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.charts import FLOOR, FRAMEWORK, LIGHT, PEER, PEERGRAPH, Chart, Series
from harness.records import Record, read_records

RESULTS = Path(__file__).parents[1] / "results"
_MODELS = {"rgat": "R-GAT", "rsage": "R-GraphSAGE", "rgcn": "R-GCN", "hgt": "HGT"}
_PALE_PEER = "#f2c79b"


def has_step(run: str, step: str) -> bool:
    return any(r.get("step") == step for r in read_records(RESULTS / run / "records.jsonl"))


def rows_of(run: str, step: str) -> list[Record]:
    """The times of a step of `page/steps.py`, on the most GPUs that it ran on."""
    records = read_records(RESULTS / run / "records.jsonl")
    rows = [r for r in records if r.get("step") == step and isinstance(r.get("ms"), float)]
    if not rows:
        raise ValueError(f"{run} has no records of the step {step}")
    return [r for r in rows if r["world"] == max(r["world"] for r in rows)]


def value(rows: Iterable[Record], key: str = "ms", **fields: object) -> float | None:
    """The value of the only record with these fields."""
    values = {r[key] for r in rows if all(r.get(k) == v for k, v in fields.items())}
    if len(values) > 1:
        raise ValueError(f"{len(values)} records with {fields}, expected one")
    return float(values.pop()) if values else None


def gpus(rows: list[Record]) -> str:
    """Such as "one H200" or "4 H200s"."""
    world, name = rows[0]["world"], rows[0]["device"].removeprefix("NVIDIA ")
    return f"one {name}" if world == 1 else f"{world} {name}s"


def gather(run: str) -> Chart:
    rows = rows_of(run, "gather")
    dims = [16, 64, 128, 256, 1024]

    def line(system: str, plan: str | None, name: str, color: str) -> Series:
        values = [value(rows, "gbs", system=system, plan=plan, dim=dim) for dim in dims]
        return Series(name, color, values)

    series = [
        line("peergraph", "sharded", "Peergraph", PEERGRAPH),
        line("wholegraph chunked", "cuda", "WholeGraph", PEER),
    ]
    if rows[0]["world"] > 1:
        series.append(line("nccl five steps", None, "NCCL all-to-all", FRAMEWORK))
        series.append(line("peergraph", "replicated", "Peergraph, replicated", LIGHT))
    else:
        series.append(line("torch index_select", None, "torch's index_select", FRAMEWORK))
    return Chart(
        f"Gathering 1 M random rows out of the memory of {gpus(rows)}",
        "GB/s of each GPU, by floats in a row",
        [str(dim) for dim in dims],
        series,
        line("copy", None, "a plain copy on one GPU", FLOOR),
        is_lines=True,
    )


def narrow(run: str) -> Chart:
    rows = rows_of(run, "narrow")
    cases = {
        f"{dim} floats, in {place}": {"plan": plan, "dim": dim}
        for plan, place in (("sharded", "GPU memory"), ("host", "host memory"))
        for dim in (128, 1024)
    }
    storages = {"float32": "", "bfloat16": " bfloat16", "int8": " int8"}
    return Chart(
        f"Gathering 1 M random rows by their storage, {gpus(rows)}",
        "ms",
        list(cases),
        [
            Series(name, color, [value(rows, system=f"peergraph{s}", **c) for c in cases.values()])
            for (name, s), color in zip(
                storages.items(), (FRAMEWORK, LIGHT, PEERGRAPH), strict=True
            )
        ],
    )


def _samples(rows: list[Record], cases: Iterable[tuple[str, int]]) -> Mapping[str, Record]:
    """Fields of records by a case's text."""
    graph = rows[0]["graph"]
    return {
        f"{graph}, {fanout}, batch {batch}": {"graph": graph, "fanout": fanout, "batch": batch}
        for fanout, batch in cases
    }


_FANOUTS = (("15-10-5", 1024), ("15-10-5", 6000), ("30-30-30", 1024))


def sampling(run: str) -> Chart:
    cases, ours, theirs = [], [], []
    for graph in ("products", "papers"):
        rows = rows_of(run, f"sampling_{graph}")
        for text, case in _samples(rows, _FANOUTS).items():
            cases.append(text)
            ours.append(value(rows, system="peergraph", plan="sharded", semantics="dgl", **case))
            theirs.append(value(rows, system="wholegraph chunked int64", semantics="dgl", **case))
    return Chart(
        f"Sampling three hops, {gpus(rows)}",
        "ms",
        cases,
        [Series("Peergraph", PEERGRAPH, ours), Series("WholeGraph", PEER, theirs)],
    )


def minibatch(run: str) -> Chart:
    rows = rows_of(run, "minibatch")
    cases = _samples(rows, _FANOUTS)
    dgl = {"semantics": "dgl"}

    def column(name: str, color: str, **fields: object) -> Series:
        return Series(name, color, [value(rows, **fields, **c, **dgl) for c in cases.values()])

    return Chart(
        f"A mini-batch with the features of its nodes, 128 floats, {gpus(rows)}",
        "ms",
        list(cases),
        [
            column("Peergraph", PEERGRAPH, system="peergraph", plan="auto"),
            column("WholeGraph", PEER, system="wholegraph chunked int64"),
        ],
    )


def training(run: str) -> Chart:
    cases: list[str] = []
    columns: dict[str, list[float | None]] = {"csr": [], "blocks": [], "peer": []}
    for graph in ("products", "papers"):
        rows = rows_of(run, f"training_{graph}")
        for text, case in _samples(rows, (("30-30-30", 1024), ("15-10-5", 6000))).items():
            cases.append(text)
            ours = {"system": "peergraph", "plan": "auto", **case}
            columns["csr"].append(value(rows, layers="csr", **ours))
            columns["blocks"].append(value(rows, layers="blocks", **ours))
            peer = value(rows, system="wholegraph chunked int64", layers="csr", **case)
            columns["peer"].append(peer)
    return Chart(
        f"A training step: sampling, gathering, GraphSAGE; {gpus(rows)}",
        "ms",
        cases,
        [
            Series("Peergraph", PEERGRAPH, columns["csr"]),
            Series("Peergraph, layers that read the store", LIGHT, columns["blocks"]),
            Series("WholeGraph", PEER, columns["peer"]),
        ],
    )


def loader(run: str) -> Chart:
    every = rows_of(run, "loader")
    ways = {"loader": "PyG's layers", "accelerated": "accelerated"}
    ways["lazy"] = "accelerated, lazy rows"
    columns: dict[str, list[float | None]] = {"plain": [], "prefetch": [], "compute": []}
    for way in ways:
        for column, values in columns.items():
            values.append(value(every, "wall_ms", layers=way, way=column))
    return Chart(
        f"A step through PyG's NeighborLoader, papers, 30-30-30, batch 1024, {gpus(every)}",
        "ms",
        list(ways.values()),
        [
            Series("batches when asked for", LIGHT, columns["plain"]),
            Series("batches made ahead", PEERGRAPH, columns["prefetch"]),
        ],
        Series("training on batches in memory", FLOOR, columns["compute"]),
    )


def captured(run: str) -> Chart:
    rows = rows_of(run, "captured")
    ours = [r for r in rows if r["layers"] == "accelerated"]
    ways = {"loader": "the loop", "compute": "batches in memory", "captured": "captured steps"}
    busy = {
        way: (value(ours, "busy_ms", way=way) or 0) / (value(ours, "wall_ms", way=way) or 1)
        for way in ("loader", "captured")
    }
    plain = [r for r in rows if r["layers"] == "loader"]
    return Chart(
        f"A small step: products, 15-10-5, batch 1024, GraphSAGE, {gpus(rows)}",
        "ms",
        list(ways.values()),
        [
            Series("accelerated", PEERGRAPH, [value(ours, "wall_ms", way=way) for way in ways]),
            Series("PyG's layers", FRAMEWORK, [value(plain, "wall_ms", way=way) for way in ways]),
        ],
        Series(
            "kernels of the accelerated loop",
            FLOOR,
            [value(ours, "kernels_ms", way=way) for way in ways],
        ),
        note=f"; accelerated, the GPU is busy for {busy['loader']:.0%} of a step of the loop and "
        f"{busy['captured']:.0%} of a captured one",
    )


def typed(run: str) -> Chart:
    cases = []
    columns: dict[tuple[str, str], list[float | None]] = {
        ("accelerated", "training in memory"): [],
        ("pyg", "training in memory"): [],
        ("accelerated", "loader and training"): [],
        ("accelerated", "captured"): [],
    }
    for model, name in _MODELS.items():
        if not has_step(run, model):
            continue
        rows = rows_of(run, model)
        cases.append(name)
        for (layers, op), values in columns.items():
            values.append(value(rows, "wall_ms", layers=layers, op=op))
    names = (
        ("Peergraph, batches in memory", PEERGRAPH),
        ("PyG's layers, batches in memory", FRAMEWORK),
        ("Peergraph, through the loader", LIGHT),
        ("Peergraph, captured steps", "#8172b3"),
    )
    return Chart(
        f"A training step on typed graphs: half of IGBH-medium's shape, 512 seeds, {gpus(rows)}",
        "ms",
        cases,
        [Series(*name, values) for name, values in zip(names, columns.values(), strict=True)],
    )


def layers(run: str) -> Chart:
    rows = [r for r in rows_of(run, "layers") if r["semantics"] == "batch"]
    kinds = ["SAGE", "GCN", "GIN", "GAT", "RGCN"]
    columns = {
        system: [value(rows, system=system, layers=kind, dim=128) for kind in kinds]
        for system in ("peergraph", "csr")
    }
    return Chart(
        f"Layers, forward and backward, on a papers mini-batch, 128 floats, {gpus(rows)}",
        "ms",
        kinds,
        [
            Series("Peergraph", PEERGRAPH, columns["peergraph"]),
            Series("PyG on CSR", FRAMEWORK, columns["csr"]),
        ],
    )


def fullgraph(run: str) -> Chart:
    """On one GPU and on the most that were measured."""
    records = read_records(RESULTS / run / "records.jsonl")
    rows = [r for r in records if r.get("bench") == "fullgraph" and isinstance(r.get("ms"), float)]
    worlds = sorted({r["world"] for r in rows})
    cases = list(dict.fromkeys((r["graph"], r["layers"]) for r in rows))
    ours, theirs = (PEERGRAPH, LIGHT, "#c9daf2"), (PEER, _PALE_PEER, "#f8e3cf")
    series = []
    for system, name, colors in (
        ("peergraph", "Peergraph", ours),
        ("broadcast", "MG-GCN's broadcasts in torch", theirs),
        ("pyg csr", "PyG on CSR", (FRAMEWORK,)),
    ):
        for world, color in zip(worlds, colors, strict=False):
            count = f"{world} GPU" if world == 1 else f"{world} GPUs"
            values = [
                value(rows, system=system, world=world, graph=graph, layers=model)
                for graph, model in cases
            ]
            series.append(Series(f"{name}, {count}", color, values))
    titles = [f"{graph}, {model}" for graph, model in cases]
    return Chart("A full-graph epoch, float32, H200", "ms", titles, series)


def dropout(run: str) -> Chart:
    rows = rows_of(run, "fullgraph_dropout")
    cases = {f"{r['graph']}, {r['layers'].partition(',')[0]}": r for r in rows}
    columns = {
        system: [
            value(rows, system=system, graph=r["graph"], layers=r["layers"]) for r in cases.values()
        ]
        for system in ("peergraph", "pyg csr")
    }
    return Chart(
        f"A full-graph epoch with dropout on the features, float32, {gpus(rows)}",
        "ms",
        list(cases),
        [
            Series("Peergraph", PEERGRAPH, columns["peergraph"]),
            Series("PyG on CSR", FRAMEWORK, columns["pyg csr"]),
        ],
    )


def offload(run: str) -> Chart:
    records = read_records(RESULTS / run / "records.jsonl")
    rows = [r for r in records if r.get("bench") == "offload" and r.get("part") == "epochs"]
    cases, resident, offloaded = [], [], []
    for graph in dict.fromkeys(r["graph"] for r in rows):
        of_graph = [r for r in rows if r["graph"] == graph]
        cases.append(f"{graph}, {of_graph[0]['layers']}")
        resident.append(value(of_graph, "epoch_s", setting="resident"))
        # The tightest budget.
        others = [r["epoch_s"] for r in of_graph if r["setting"] != "resident"]
        offloaded.append(max(others) if others else None)
    return Chart(
        "An epoch with rows in GPU memory and in host memory, one H200",
        "s",
        cases,
        [Series("resident", LIGHT, resident), Series("offloaded", PEERGRAPH, offloaded)],
    )


CHARTS: dict[str, Callable[[str], Chart]] = {
    "gather": gather,
    "narrow": narrow,
    "sampling": sampling,
    "minibatch": minibatch,
    "training": training,
    "loader": loader,
    "captured": captured,
    "layers": layers,
    "typed": typed,
    "fullgraph": fullgraph,
    "dropout": dropout,
    "offload": offload,
}
