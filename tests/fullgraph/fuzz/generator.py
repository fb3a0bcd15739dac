"""Makes random programs: each statement is run on plain tensors before the next one is written."""

from __future__ import annotations

import math
import warnings
from bisect import bisect
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fullgraph.fuzz import graph_statements, model_statements
from tests.fullgraph.fuzz import statements as tables
from tests.fullgraph.fuzz.models import CONVS, DGL, NORMS, TYPED
from tests.fullgraph.fuzz.places import NUM_IDS, NothingFitsError, Places
from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.rounding import allow_rounding
from tests.fullgraph.fuzz.scene import Observation, Scene, seed_all
from tests.fullgraph.fuzz.statements import Template

LARGEST = 1e5
MODES = [
    *["torch.no_grad()"] * 2,
    *("torch.inference_mode()", "torch.enable_grad()", "torch.set_grad_enabled(False)"),
]
OF_GRAPHS = {"dgl": graph_statements.DGL, "typed": graph_statements.TYPED}
WITH_WEIGHTS = ("GCN", "Graph", "SG", "TAG", "LG")


class NoProgramError(Exception):
    """The numbers of a program went out of bounds."""


def make_program(seed: int, where: Configuration) -> tuple[list[str], list[Observation]]:
    """Returns the statements of a seed, and what plain tensors give.

    Every other seed's program trains a model.
    """
    for attempt in range(100):
        with suppress(NoProgramError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            generator = Generator(seed, attempt, where)
            with suppress(RuntimeError):  # a view that must not be read any more
                lines = generator.make()
                values = generator.scene.observations
                is_exact = where.dtype == "float64"
                return lines, values if is_exact else allow_rounding(values, lines, seed, where)
    raise RuntimeError(f"seed {seed}: no program within bounds")


class Generator:
    """The program that is being made, and its plain variables so far."""

    def __init__(self, seed: int, attempt: int, where: Configuration) -> None:
        self.seed, self.where, self.offloaded = seed, where, where.chunks > 0
        self.draw = np.random.default_rng([seed, attempt, self.offloaded])
        # A wrong id ends a process that uses a GPU.
        self.raise_rate = 0.03 if where.device == "cpu" else 0.0
        self.scene = Scene(seed, where, is_plain=True)
        self.names = self.scene.names
        self.lines: list[str] = []
        self.kinds = dict.fromkeys(("x", "y", "mask", "data.val_mask"), "N")
        self.modes = [*MODES, *["autocast()"] * 4] if self.has_autocast else MODES
        self.check_rate = float(self.draw.choice([0.0, 0.3, 1.0]))
        self.count = 0

    @property
    def has_autocast(self) -> bool:
        """Whether statements run under autocast, too; on GPUs it is for other functions."""
        return self.where.dtype == "float32" and self.where.device == "cpu" and self.seed % 3 > 0

    def make(self) -> list[str]:
        seed_all(0)
        nodes, columns = self.names["x"].shape
        self.add(f"plain_ids = ids({nodes}, {NUM_IDS}, {self.number()})")
        self.add(f"plain_mask = chosen({nodes}, {self.number()})")
        self.add(f"plain_rows = draw(2, {columns}, seed={self.number()})")
        if self.draw.random() < 0.2:
            self.kinds |= {"data.edge_weight": "E", "data.edge_attr": "E", "data.edge_mask": "E"}
        if "z" in self.names:
            self.kinds["z"] = "Z"
        if self.seed % 2:
            self.train()
        else:
            self.compute(int(self.draw.integers(4, 22)))
        self.last_checks()
        return self.lines

    def number(self) -> int:
        return int(self.draw.integers(1000))

    def choose(self, weights: list[float]) -> int:
        """A place of the list, with a chance of its weight."""
        sums = list(accumulate(weights))
        return min(bisect(sums, self.draw.random() * sums[-1]), len(sums) - 1)

    def add(self, line: str, has_result: str = "") -> bool:
        """Runs a statement and keeps it if it runs."""
        state, checks = torch.get_rng_state(), len(self.scene.observations)
        try:
            self.scene.line = len(self.lines)
            self.scene.execute(line)
        except Exception:
            torch.set_rng_state(state)
            del self.scene.observations[checks:]
            return False
        if has_result and not _is_moderate(self.names[has_result]):
            del self.names[has_result]
            torch.set_rng_state(state)
            return False
        self.lines.append(line)
        return True

    def compute(self, count: int) -> None:
        """Statements of all kinds."""
        if self.draw.random() < 0.7:
            self.add("h = x.detach().clone().requires_grad_()")
            self.kinds["h"] = "N"
            if self.draw.random() < 0.5:
                self.add("g = h * 1.5")
                self.kinds["g"] = "N"
        elif not self.offloaded or self.draw.random() < 0.3:
            self.add("g = x.clone()")
            self.kinds["g"] = "N"
        for _ in range(count):
            rates = [rate for _, rate in tables.EXPRESSIONS.values()]
            table = list(tables.EXPRESSIONS.values())[self.choose(rates)][0]
            if table is tables.PRODUCTS and self.where.graph != "pyg":
                table = table + OF_GRAPHS[self.where.graph]
            self.statement(table)

    def statement(
        self, table: list[Template], fixed: dict[str, str] | None = None, name: str = ""
    ) -> bool:
        """Writes a statement of a table; gives up after some attempts."""
        weights = [t.weight * (t.offloaded if self.offloaded else 1) for t in table]
        for _ in range(12):
            template = table[self.choose(weights)]
            places = Places(self.draw, self.names, self.kinds, fixed, self.offloaded)
            try:
                text = places.fill(template)
            except (NothingFitsError, IndexError, RuntimeError, ValueError):
                continue
            if self.offloaded and not template.result and self.is_viewed(places):
                continue
            if self.write(text, template.result, places, name):
                return True
        return False

    def is_viewed(self, places: Places) -> bool:
        """Whether another variable shares the memory of one that is written, mostly.

        Offloaded rows refuse such writes.
        """
        name = places.texts.get("A", "")
        if not name or self.draw.random() < 0.1:
            return False
        memory = places.value(name).untyped_storage().data_ptr()
        others = [places.value(other) for other in self.kinds if other != name]
        return any(
            isinstance(value, Tensor) and value.untyped_storage().data_ptr() == memory
            for value in others
        )

    def write(self, text: str, result: str, places: Places, name: str) -> bool:
        variable = (name or f"v{self.count}") if result else ""
        line = f"{variable} = {text}" if variable else text
        if self.draw.random() < 0.1 and not text.startswith(("for ", "with ")):
            # Of offloaded rows, a backward pass in inference mode is an error of torch. What needs
            # gradients there gets none outside, where ours get one.
            # Parameters that become tensors of inference mode are trained in part by torch.
            words = ("autograd", "backward", "requires_grad", "p.data = ", "vector_to_parameters")
            is_outside = any(word in text for word in words)
            modes = [m for m in self.modes if not (is_outside and "inference" in m)]
            line = f"with {self.draw.choice(modes)}: {line}"
        if not self.add(line, variable):
            # torch refuses gradients of tensors of inference mode; offloaded rows are never such.
            may_raise = result and "autograd" not in text
            may_raise = may_raise and not any("inference_mode" in line for line in self.lines)
            if self.draw.random() < self.raise_rate and may_raise:
                self.add(f"with raises(): _ = {text}")
            return False
        written = places.texts.get("A") or places.texts.get("T")
        if not result and written and not _is_moderate(places.value(written)):
            raise NoProgramError
        if not variable:
            return True
        self.count += not name
        kinds = {"K": places.kind, "I": places.index_kind, "C": f"cat{self.count}"}
        kind = kinds.get(result, result)
        value = self.names[variable]
        if isinstance(value, Tensor):
            self.kinds[variable] = kind
        if variable != "optimizer" and self.draw.random() < self.check_rate:
            self.add(f"check({variable!r}, {variable})")
        return True

    def train(self) -> None:
        """A model, an optimizer, epochs with edits in between, evaluation."""
        convs = {"pyg": [*CONVS, "GCN", "GCN"], "typed": [*TYPED, *TYPED, *CONVS], "dgl": [*DGL]}
        conv = str(self.draw.choice([*convs[self.where.graph], "MLP"]))
        parts = [str(self.draw.choice(list(NORMS)))] if self.draw.random() < 0.4 else []
        parts += [part for part in ("dropout", "residual") if self.draw.random() < 0.25]
        columns = self.names["x"].shape[1]
        accelerate = ", accelerate=True" if self.draw.random() < 0.5 else ""
        if self.draw.random() < 0.03:
            accelerate += f", backend={self.draw.choice(['eager', 'aot_eager'])!r}"
        kind = "+".join([conv, *parts])
        self.add(f"model = make_model({kind!r}, {columns}, seed={self.number()}{accelerate})")
        for _ in range(int(self.draw.integers(3))):
            self.statement(tables.POINTWISE + tables.READS + tables.ROWS)
        if self.draw.random() < 0.15:
            self.statement(model_statements.MODULE_HOOKS)
        if self.draw.random() < 0.3:
            self.evaluate(conv)
        self.statement(model_statements.OPTIMIZERS, name="optimizer") or self.give_up()
        for _ in range(int(self.draw.integers(1, 4))):
            self.epoch(conv)
            for _ in range(int(self.draw.integers(3))):
                edits = tables.EDITS + tables.UNCOUNTED
                after = [edits, edits, model_statements.PARAMETERS, tables.GRADIENTS]
                self.statement(after[int(self.draw.integers(4))])
            if self.draw.random() < 0.3:
                self.evaluate(conv)
            if self.draw.random() < 0.1:
                self.add(f"reset(model, {self.number()})")
                self.statement(model_statements.OPTIMIZERS, name="optimizer")
        for _ in range(int(self.draw.integers(5))):
            self.statement(tables.READS + tables.REDUCTIONS + tables.ROWS + tables.POINTWISE)

    def give_up(self) -> None:
        raise NoProgramError

    def call(self, conv: str) -> str:
        """The text of a call of the model."""
        columns = self.names["x"].shape[1]
        places = Places(self.draw, self.names, self.kinds)
        fitting = [
            n
            for n in places.variables("N", 2, (self.scene.dtype,))
            if self.names.get(n, self.names["x"]).shape[1] == columns
        ]
        features = str(self.draw.choice(fitting)) if fitting and self.draw.random() < 0.3 else "x"
        if conv == "SAGEmax":  # other features may have equal rows, whose maxima share gradients
            features = "x"
        if conv in TYPED:
            return f"model({features}, z, edges)"
        if "g" in self.names:
            return f"model({features}, g)"
        edges, weight = "edge_index", "data.edge_weight"
        if self.draw.random() < 0.2:
            edges, weight = "edge_index[:, data.edge_mask]", "data.edge_weight[data.edge_mask]"
        has_weight = conv in WITH_WEIGHTS and self.draw.random() < 0.3
        return f"model({features}, {edges}{', ' + weight if has_weight else ''})"

    def epoch(self, conv: str) -> None:
        """Forward, a loss, backward, a step, and a few other statements."""
        self.add("optimizer.zero_grad()")
        mode = "with autocast(): " if self.has_autocast and self.draw.random() < 0.6 else ""
        self.add(f"{mode}out = {self.call(conv)}", "out") or self.give_up()
        self.kinds["out"] = "N"
        while self.draw.random() < 0.3:
            self.statement(tables.ROWS + tables.READS + tables.POINTWISE + tables.REDUCTIONS)
        self.statement(tables.LOSSES, {"Z": "out", "A": "out"}, "loss") or self.give_up()
        if self.draw.random() < 0.15:
            self.statement(tables.GRADIENTS[3:])
        self.add("loss.backward()") or self.give_up()
        if self.draw.random() < self.check_rate:
            self.add("check('gradients', [p.grad for p in model.parameters()])")
        if self.draw.random() < 0.15:
            self.add("nn.utils.clip_grad_norm_(model.parameters(), 0.5)")
        self.add("optimizer.step()") or self.give_up()

    def evaluate(self, conv: str) -> None:
        """Predictions without gradients."""
        self.add("model.eval()")
        mode = str(
            self.draw.choice(["torch.no_grad()", "torch.no_grad()", "torch.inference_mode()"])
        )
        self.add(f"with {mode}: scores = {self.call(conv)}", "scores") or self.give_up()
        if self.add("correct = (scores.argmax(1)[data.val_mask] == y[data.val_mask]).sum().item()"):
            self.add("check('correct', correct)")
        if self.draw.random() < 0.5:
            self.add("check('scores', scores)")
        if self.draw.random() < 0.9:
            self.add("model.train()")

    def last_checks(self) -> None:
        """Checks of variables, gradients, parameters and the optimizer's state."""
        tensors = [name for name in self.kinds if name not in ("x", "y", "mask")]
        some = [str(name) for name in self.draw.permutation(tensors)[:8]]
        for name in ("x", "y", "mask", *sorted(some)):
            self.add(f"check({name!r}, {name})")
        for name in self.kinds:
            value = eval(name, self.names)
            if isinstance(value, Tensor) and value.is_leaf and value.grad is not None:
                self.add(f"check('{name}.grad', {name}.grad)")
        if "model" in self.names:
            self.add("check('parameters', model.state_dict())")
            self.add("check('gradients', [p.grad for p in model.parameters()])")
        if "optimizer" in self.names:
            self.add("check('state', state_of(optimizer))")


def _is_moderate(value: Any) -> bool:
    """Whether numbers are finite and so small that rounding does not show."""
    if isinstance(value, (tuple, list)):
        return all(_is_moderate(part) for part in value)
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < LARGEST
    if not isinstance(value, Tensor) or not value.numel() or not value.is_floating_point():
        return True
    largest = value.detach().abs().max().item()
    return math.isfinite(largest) and largest < LARGEST
