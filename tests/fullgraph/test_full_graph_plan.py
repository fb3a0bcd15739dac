"""Plans of full-graph training: bytes, layers, the chosen mode and the error of a small budget."""

from __future__ import annotations

import pytest
from benchmarks.placing.machines import machine

from peergraph.fullgraph import named_model
from peergraph.fullgraph.layout.volume import Volume
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.plan_limits import PlanLimits

NODE, EDGE = "_N", ("_N", "_E", "_N")
MODEL = named_model([100, 512, 47])
NODES, EDGES, RANKS = 1_000_000, 50_000_000, 4


def facts(remote_rows: int, ranks: int = RANKS) -> GraphFacts:
    """A graph of even blocks in which each rank needs so many rows of each other rank."""
    rows, pairs = NODES // ranks, EDGES // ranks // ranks
    volume = Volume(
        tuple(tuple(rows if p == q else remote_rows for q in range(ranks)) for p in range(ranks)),
        ((pairs,) * ranks,) * ranks,
    )
    return GraphFacts({NODE: (rows,) * ranks}, {EDGE: volume}, {NODE: 408})


DENSE, SPARSE = facts(250_000), facts(10_000)


def bytes_of(plan: FullGraphPlan) -> dict[str, int]:
    return {item.name: item.num_bytes[0] for item in plan.resident.items}


def test_bytes() -> None:
    plan = FullGraphPlan.make(DENSE, machine("full4"), model=MODEL)
    rows, edges, halo = 250_000, EDGES // 4, 750_000
    of_layers = round(rows * MODEL.node_bytes), round(edges * MODEL.edge_bytes)
    assert bytes_of(plan) == {
        "structure": 4 * (rows + 1 + edges),
        "stages": 4 * (4 * (rows + 1) + edges),
        "transposes": 4 * (rows + halo + 1 + edges),
        "numbering": 8 * (rows + 2 * halo),
        "edge rows": 8 * edges,
        "node rows": 408 * rows,
        "layers": of_layers[0],
        "layers' edges": of_layers[1],
    }
    # The product of the second layer is summed: it is the narrower end.
    assert plan.resident.buffers["blocks"] == (2 * 4 * 47 * rows,) * 4
    assert plan.resident.buffers["in_kernel"] == (4 * 47 * rows,) * 4
    assert (
        plan.bytes_by_rank
        == (sum(bytes_of(plan).values()) + plan.resident.buffers[plan.mode][0],) * 4
    )


@pytest.mark.parametrize("hidden", [64, 256])
def test_layers_hold_their_outputs(hidden: int) -> None:
    """At least an output of each layer, and no more than what is made for its gradients."""
    model = named_model([100, hidden, hidden, 10])
    columns = model.node_bytes / 4
    assert 2 * hidden + 10 <= columns <= 100 + 8 * hidden


def test_types_and_relations_add_up() -> None:
    single = Volume(((4, 1), (2, 3)), ((8, 2), (3, 7)))
    nodes = {"a": (10, 12), "b": (5, 6)}
    relations = {("a", "to", "b"): single, ("b", "of", "a"): single}
    both = GraphFacts(nodes, relations, {"a": 4, "b": 40}, {("a", "to", "b"): 16})
    plan = FullGraphPlan.make(both, machine("full2"))
    assert both.rows == (15, 18)
    assert bytes_of(plan)["node rows"] == 10 * 4 + 5 * 40
    assert bytes_of(plan)["edge rows"] == 2 * 10 * 8 + 10 * 16
    assert bytes_of(plan)["structure"] == 4 * ((5 + 1 + 10) + (10 + 1 + 10))


def test_large_graphs_have_wide_indices() -> None:
    count = 1 << 31
    volume = Volume(((5,),), ((count,),))
    plan = FullGraphPlan.make(GraphFacts({NODE: (5,)}, {EDGE: volume}), machine("single"))
    assert bytes_of(plan)["structure"] == 8 * (5 + 1 + count)


def test_sums_run_on_the_narrow_side() -> None:
    plan = FullGraphPlan.make(DENSE, machine("full4"), model=named_model([100, 512, 256, 300, 47]))
    # The sum of the input is kept: it does not change, and takes no gradient.
    sums = [(each.row_bytes // 4, each.count) for each in plan.resident.sums]
    assert sums == [(256, 4), (47, 2)]
    reddit = FullGraphPlan.make(DENSE, machine("full4"), model=named_model([602, 512, 41]))
    assert [(each.row_bytes // 4, each.count) for each in reddit.resident.sums] == [(41, 2)]
    assert reddit.resident.sums[0].received("blocks") == 2 * 750_000 * 41 * 4


def test_mode_follows_the_volume() -> None:
    whole = FullGraphPlan.make(DENSE, machine("full4"), model=MODEL)
    distinct = FullGraphPlan.make(SPARSE, machine("full4"), model=MODEL)
    assert (whole.mode, distinct.mode) == ("blocks", "halo")
    assert "100 % of remote rows are needed" in whole.reason
    assert "4 % of remote rows are needed" in distinct.reason
    # Few edges share a row: the kernel may read a remote row for each.
    volume = Volume(((9, 1), (1, 9)), ((10, 1), (1, 10)))
    few = GraphFacts({NODE: (1000, 1000)}, {EDGE: volume})
    assert FullGraphPlan.make(few, machine("full2"), model=MODEL).mode == "in_kernel"
    limited = FullGraphPlan.make(
        few, machine("full2"), PlanLimits(modes=("halo", "blocks")), model=MODEL
    )
    assert limited.mode == limited.with_model(MODEL).mode == "halo"


def sparse_facts(degree: int, share: float) -> GraphFacts:
    """Two ranks; this share of the edges is remote, and each of these reads a row of its own."""
    rows = 100_000
    remote = int(degree * rows * share)
    own = degree * rows - remote
    volume = Volume(((rows, remote), (remote, rows)), ((own, remote), (remote, own)))
    return GraphFacts({NODE: (rows, rows)}, {EDGE: volume})


def test_mode_of_each_width() -> None:
    full2, by_columns = machine("full2"), "sums by their columns"
    plan = FullGraphPlan.make(sparse_facts(4, 0.1), full2)
    assert plan.chooses_by_width
    assert plan.candidates == ("halo", "in_kernel")
    # Copies of wide rows hide behind the sums; for narrow ones fewer steps count.
    assert [plan.mode_for(EDGE, 4 * width) for width in (16, 512)] == ["in_kernel", "halo"]
    assert f"{by_columns}: in_kernel of 16, 32, 64; halo of 128, 256, 512" in str(plan)
    dense = FullGraphPlan.make(sparse_facts(24, 0.1), full2)
    assert dense.chooses_by_width
    assert by_columns not in str(dense)
    staged = FullGraphPlan.make(sparse_facts(4, 0.05), full2, PlanLimits(modes=("halo", "blocks")))
    asked = FullGraphPlan.make(sparse_facts(4, 0.1), full2, PlanLimits(mode="in_kernel"))
    for fixed, mode in ((staged, "halo"), (asked, "in_kernel")):
        assert not fixed.chooses_by_width
        assert fixed.mode_for(EDGE, 512) == fixed.mode == mode
        assert by_columns not in str(fixed)


def test_mode_that_was_asked_for() -> None:
    plan = FullGraphPlan.make(SPARSE, machine("full4"), PlanLimits(mode="blocks"), model=MODEL)
    assert (plan.mode, plan.reason) == ("blocks", "asked for")
    with pytest.raises(ValueError, match="mode must be one of halo, blocks, in_kernel, got 'ring'"):
        FullGraphPlan.make(SPARSE, machine("full4"), PlanLimits(mode="ring"))
    with pytest.raises(ValueError, match="mode 'in_kernel' is not for these ranks"):
        FullGraphPlan.make(facts(9, 2), machine("pcie2"), PlanLimits(mode="in_kernel"))


def test_one_rank() -> None:
    plan = FullGraphPlan.make(facts(0, 1), machine("single"), model=MODEL)
    assert plan.reason == "one rank has all rows, nothing is exchanged"
    assert plan.resident.buffers[plan.mode] == (0,)


def test_budget_chooses_the_mode_that_fits() -> None:
    free = FullGraphPlan.make(DENSE, machine("full4"), model=MODEL)
    budget = (
        free.bytes_by_rank[0]
        - free.resident.buffers["blocks"][0]
        + free.resident.buffers["in_kernel"][0]
    )
    tight = FullGraphPlan.make(
        DENSE, machine("full4"), PlanLimits(memory_budget=budget), model=MODEL
    )
    assert tight.mode == "in_kernel"
    assert "no room for halo, blocks" in tight.reason
    with pytest.raises(ValueError, match="more than memory_budget"):
        FullGraphPlan.make(
            DENSE,
            machine("full4"),
            PlanLimits(memory_budget=budget, mode="blocks", offload=False),
            model=MODEL,
        )


def test_small_budget_names_bytes() -> None:
    required = FullGraphPlan.make(DENSE, machine("full4"), model=MODEL).bytes_by_rank[0]
    with pytest.raises(ValueError, match="Offloaded training") as error:
        FullGraphPlan.make(
            DENSE,
            machine("full4"),
            PlanLimits(memory_budget=required // 3, offload=False),
            model=MODEL,
        )
    assert "structure 48.6 MiB" in str(error.value)
    assert "more GPUs have smaller shares" in str(error.value)


def test_the_model_comes_later() -> None:
    plan = FullGraphPlan.make(SPARSE, machine("full4"), PlanLimits(memory_budget=1 << 40))
    assert plan.resident.sums == ()
    assert "predicted for a sum of 128 columns" in plan.reason
    assert plan.with_model(MODEL) == FullGraphPlan.make(
        SPARSE, machine("full4"), PlanLimits(memory_budget=1 << 40), model=MODEL
    )


def test_printed_plan() -> None:
    text = str(
        FullGraphPlan.make(SPARSE, machine("full4"), PlanLimits(memory_budget=1 << 34), model=MODEL)
    )
    for expected in (
        "full graph on 4 ranks: 1,000,000 nodes, 50,000,000 edges; links of full4",
        "order of nodes: random",
        "layers         rows of layers, gradients",
        "budget of each rank: 16.0 GiB",
        "model: gcn 100-512-47",
        "sums of an epoch  bytes of a row",
        "exchange: halo (predicted for an epoch: halo",
    ):
        assert expected in text
