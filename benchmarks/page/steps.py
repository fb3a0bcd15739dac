"""What is run for the benchmarks page: a command line for each part of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One command; `seconds` is the most that it may take, its start included."""

    name: str
    script: str
    arguments: str
    seconds: int
    most_ranks: int = 8

    def command(self, world: int, out: str) -> list[str]:
        """The command line on so many GPUs, without the interpreter."""
        deadline = str(self.seconds - 10)
        arguments = self.arguments.format(world=world).split()
        return [
            self.script,
            *arguments,
            "--world",
            str(world),
            "--out",
            out,
            "--deadline",
            deadline,
        ]


def _rgat(model: str, more: str = "") -> Step:
    shape = f"--graph half-medium --model {model} --layers both --batches 512 --budget 2{more}"
    return Step(model, "rgat.py", shape, 120)


_SAMPLES = "--plans sharded --peers wholegraph --budget 1"
_STEPS = "--plans auto --peers wholegraph --budget 2"
_LOOPS = "--plans replicated --budget 1.5"
_DROPOUT = "GCN:2x512:0.5,GCN:3x256:0.5"
STEPS = (
    Step(
        "gather",
        "gather.py",
        "--dims 16,64,128,256,1024 --host-dims 128 --peers wholegraph,nccl,torch --table-gib 4 "
        "--host-gib 4 --budget 1",
        90,
    ),
    Step(
        "narrow",
        "gather.py",
        "--dims 128,1024 --host-dims 128,1024 --plans sharded,host --storages bfloat16,int8 "
        "--table-gib 4 --host-gib 4 --budget 1",
        90,
    ),
    Step("sampling_products", "sampling.py", f"--graph products {_SAMPLES}", 75),
    Step("sampling_papers", "sampling.py", f"--graph papers {_SAMPLES}", 100),
    Step(
        "minibatch",
        "minibatch.py",
        "--graph papers --plans auto --peers wholegraph --budget 1 "
        "--cases 30-30-30:1024,15-10-5:1024,15-10-5:6000",
        120,
    ),
    Step("training_products", "training.py", f"--graph products --ways csr,blocks {_STEPS}", 90),
    Step("training_papers", "training.py", f"--graph papers --ways csr,blocks {_STEPS}", 150),
    Step(
        "loader",
        "end_to_end.py",
        f"--graph papers --layers loader,accelerated,lazy --depths 1 {_LOOPS}",
        120,
    ),
    Step(
        "captured",
        "small_batches.py",
        f"--graph products --layers loader,accelerated --ways loader,captured,compute {_LOOPS}",
        90,
    ),
    Step(
        "layers",
        "layers.py",
        "--graph products --blocks papers --parts batch --peers csr "
        "--layers SAGE,GCN,GIN,GAT,RGCN --dims 128",
        120,
        most_ranks=1,
    ),
    _rgat("rgat", " --captured"),
    _rgat("rsage"),
    _rgat("rgcn", " --captured"),
    _rgat("hgt"),
    Step(
        "fullgraph",
        "fullgraph.py",
        "--graphs products,reddit --models GCN:2x512,GCN:3x256,SAGE:3x256 --peers csr,broadcast "
        "--worlds {world} --budget 1",
        240,
    ),
    Step(
        "fullgraph_dropout",
        "fullgraph.py",
        f"--graphs products,reddit --models {_DROPOUT} --peers csr --worlds {{world}} --budget 1",
        150,
    ),
    Step(
        "offload",
        "offload.py",
        "--graphs products,reddit --models GCN:0-256-0 --budgets 6G,80G --offload --resident "
        "--warmup 0 --iterations 3 --worlds {world}",
        90,
        most_ranks=1,
    ),
)
