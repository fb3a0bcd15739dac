"""What `peergraph demo` is asked to do."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from peergraph.number_arguments import check_number

CODE = "code"
PRODUCTS = "products"
_STEPS_PER_EPOCH = 16
_STEPS = 45
_FULL_GRAPH_EPOCHS = 100
_MOST = {"ranks": 1024, "epochs": 10**6, "batch-size": 2**31 - 1, "hidden": 1 << 16}
PLANS = ("auto", "replicated", "sharded", "host")


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command, under the same names.

    `device` and `ranks` may be None: CUDA if this build and machine have it, one rank per GPU or
    two on the CPU; `resolve` finds them. `epochs` and `batch_size` may be None: `training`
    fills in what suits the graph.
    """

    data: str = CODE
    scale: float = 1.0
    rebuild: bool = False
    device: str | None = None
    ranks: int | None = None
    plan: str = "auto"
    memory_budget: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    fanouts: tuple[int, ...] = (15, 10, 5)
    hidden: int = 128
    lr: float = 0.003
    dropout: float = 0.3
    seed: int = 0
    num_workers: int = 0
    measure: bool = False
    full_graph: bool = False
    json: str | None = None

    def check(self) -> None:
        """Raises ValueError naming the first option that cannot be."""
        positive = {"ranks": self.ranks, "epochs": self.epochs, "batch-size": self.batch_size}
        positive |= {"hidden": self.hidden, "memory-budget": self.memory_budget}
        for name, value in positive.items():
            check_number(f"--{name}", value, 1, _MOST.get(name))
        check_number("--num-workers", self.num_workers, 0, 1024)
        check_number("--seed", self.seed, 0, 2**63 - 1)
        if self.measure and self.num_workers:
            raise ValueError("--measure counts no reads of workers: leave --num-workers at 0")
        if self.measure and self.full_graph:
            raise ValueError("--measure counts reads of batches: --full-graph has none")
        if self.plan not in PLANS:
            raise ValueError(f"--plan must be one of {', '.join(PLANS)}, got {self.plan!r}")
        if self.memory_budget is not None and self.plan != "auto":
            raise ValueError(f"--memory-budget is for --plan auto, not {self.plan}")
        if not self.fanouts or any((f < 1 and f != -1) or f >= 2**31 for f in self.fanouts):
            given = ",".join(map(str, self.fanouts))
            raise ValueError(f"--fanouts must be positive, or -1 for all neighbours, got {given}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be in [0, 1), got {self.dropout}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"--lr must be positive and finite, got {self.lr}")
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            raise ValueError(f"--json: there is no folder {Path(self.json).absolute().parent}")
        self._check_data()

    def _check_data(self) -> None:
        if self.rebuild and self.data != CODE:
            raise ValueError(f"--rebuild is for the code graph, not for --data {self.data}")
        if self.data == PRODUCTS:
            if not 0.0001 <= self.scale <= 1:
                raise ValueError(f"--scale must be from 0.0001 to 1, got {self.scale}")
        elif self.scale != 1:
            raise ValueError(f"--scale is for --data products, not for --data {self.data}")

    def resolve(self, num_gpus: int) -> tuple[str, int]:
        """Returns the device type and the number of ranks for a machine with `num_gpus` usable
        GPUs.

        Under torchrun the ranks are those that it started. Raises ValueError if they, or the GPUs,
        do not fit the options.
        """
        device = self.device or ("cuda" if num_gpus else "cpu")
        if "RANK" in os.environ:
            started = int(os.environ["WORLD_SIZE"])
            if self.ranks not in (None, started):
                raise ValueError(f"--ranks {self.ranks}, but torchrun started {started}")
            local = int(os.environ.get("LOCAL_WORLD_SIZE", started))
            ranks = started
        else:
            local = ranks = self.ranks or (max(num_gpus, 1) if device == "cuda" else 2)
        if device == "cuda" and num_gpus < local:
            raise ValueError(
                f"--device cuda needs a GPU for each of {local} ranks, this build and machine "
                f"have {num_gpus}; `peergraph info` says more"
            )
        return device, ranks

    def training(self, num_train: int, ranks: int) -> Training:
        """Returns how to train on a graph with `num_train` training nodes.

        By default batches have 1024 seeds a rank and there are 3 epochs; on smaller graphs the
        batches are smaller, then the epochs more, so that training takes enough steps. With the
        full graph an epoch is one step.
        """
        share = -(-num_train // ranks)
        batch_size = self.batch_size or min(max(share // _STEPS_PER_EPOCH, 16), 1024)
        steps_per_epoch = -(-share // batch_size)
        return Training(
            epochs=self.epochs
            or (_FULL_GRAPH_EPOCHS if self.full_graph else max(3, -(-_STEPS // steps_per_epoch))),
            batch_size=batch_size,
            fanouts=list(self.fanouts),
            hidden=self.hidden,
            lr=self.lr,
            dropout=self.dropout,
            seed=self.seed,
            num_workers=self.num_workers,
        )


@dataclass(frozen=True)
class Training:
    """Hyperparameters, all of them known."""

    epochs: int
    batch_size: int
    fanouts: list[int]
    hidden: int
    lr: float
    dropout: float
    seed: int
    num_workers: int
