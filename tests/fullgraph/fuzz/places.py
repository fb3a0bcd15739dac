"""Fills the places of a template with variables, indices and numbers that fit them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fullgraph.fuzz.statements import Template

PLACE = re.compile(r"\{(\w+)\}")
PLAIN = "P"
NUM_IDS, TABLE = 7, (3, 2)


class NothingFitsError(Exception):
    """No variable fits a place."""


class Places:
    """The places of one statement.

    Args:
        draw: random numbers.
        names: the variables of the plain run.
        kinds: of each variable that statements may use: PLAIN, "N" for a row of each node, "E" of
            each edge, others for selected rows. Tensors of one kind have the same rows.
        fixed: variables of some places, such as the logits of a loss.
        offloaded: whether rows are, so that few of them are named by partitioned ids.
    """

    def __init__(
        self,
        draw: np.random.Generator,
        names: dict[str, Any],
        kinds: dict[str, str],
        fixed: dict[str, str] | None = None,
        offloaded: bool = False,
    ) -> None:
        self.draw, self.names, self.kinds, self.offloaded = draw, names, kinds, offloaded
        self.dtype = names["x"].dtype
        self.texts: dict[str, str] = dict(fixed or {})
        self.index_kind = PLAIN
        self.kind = "N"

    def fill(self, template: Template) -> str:
        """Returns the statement.

        Raises:
            NothingFitsError: no variable fits one of the places.
        """
        places = PLACE.findall(template.text)
        for name in "ZANT":
            if name in places:
                self.text(name)
                self.kind = self.kinds[self.texts[name]]
                break
        else:
            if places and {"V", "M", "Y"} & set(places):
                self.kind = self._any(k for k in set(self.kinds.values()) if k != PLAIN)
        if self.kind == "E" and "Y" in places:
            raise NothingFitsError
        return PLACE.sub(lambda match: self.text(match[1]), template.text)

    def text(self, place: str) -> str:
        """The text of a place, the same one wherever it is in the statement."""
        if place not in self.texts:
            self.texts[place] = getattr(self, f"_{place}")()
        return self.texts[place]

    @property
    def base(self) -> Tensor:
        """The tensor whose rows the statement is about."""
        for place in "ZANT":
            if place in self.texts:
                tensor: Tensor = self.value(self.texts[place])
                return tensor
        tensor = self.value("x")
        return tensor

    def value(self, text: str) -> Any:
        return eval(text, self.names)

    def variables(
        self, kind: str | None, dims: int | None, dtypes: tuple[torch.dtype, ...]
    ) -> list[str]:
        """Names of tensors of a kind; None: of rows of any kind, of any number of dimensions."""
        result = []
        for name, its_kind in self.kinds.items():
            if its_kind != kind and (kind is not None or its_kind == PLAIN):
                continue
            value = self.value(name)
            if not isinstance(value, Tensor) or (dtypes and value.dtype not in dtypes):
                continue
            if value.numel() and (dims is None or value.dim() == dims):
                result.append(name)
        return result

    def _any(self, choices: Any) -> str:
        options = sorted(choices) if not isinstance(choices, list) else choices
        if not options:
            raise NothingFitsError
        return str(options[int(self.draw.integers(len(options)))])

    def _recent(self, options: list[str]) -> str:
        """One of the variables, more likely a late one."""
        if not options:
            raise NothingFitsError
        place = int(len(options) * self.draw.random() ** 0.5)
        return options[min(place, len(options) - 1)]

    def _A(self) -> str:
        return self._recent(self.variables(None, 2, (self.dtype,)))

    def _N(self) -> str:
        return self._recent(self.variables("N", 2, (self.dtype,)))

    def _B(self) -> str:
        shape = self.base.shape
        options = self.variables(self.kind, 2, (self.dtype,))
        return self._any([name for name in options if self.value(name).shape == shape])

    def _T(self) -> str:
        return self._recent([n for n in self.variables(None, None, ()) if self.value(n).dim() > 0])

    def _Z(self) -> str:
        options = self.variables("N", 2, (self.dtype,))
        return self._recent([name for name in options if self.value(name).shape[1] >= 3])

    def _V(self) -> str:
        options = self.variables(self.kind, 1, (self.dtype,))
        if options and self.draw.random() < 0.7:
            return self._any(options)
        matrices = self.variables(self.kind, 2, (self.dtype,))
        return f"{self._any(matrices)}[:, 0]"

    def _M(self) -> str:
        options = self.variables(self.kind, 1, (torch.bool,))
        if options and self.draw.random() < 0.8:
            return self._any(options)
        return f"({self._V()} > {self._s()})"

    def _Y(self) -> str:
        options = self.variables(self.kind, 1, (torch.int64,))
        fitting = [
            name for name in options if self.value(name).min() >= 0 and self.value(name).max() < 3
        ]
        if fitting and self.draw.random() < 0.9:
            return self._any(fitting)
        return f"({self._V()} > {self._s()}).long()"

    def _X(self) -> str:
        options = self.variables(None, None, (self.dtype,))
        return self._any(
            [n for n in options if self.value(n).is_leaf and self.value(n).requires_grad]
        )

    def _L(self) -> str:
        options = self.variables(PLAIN, 0, ())
        return self._recent([name for name in options if self.value(name).requires_grad])

    def _I(self) -> str:
        size = len(self.base)
        of_nodes = self.kind == "N" and size == len(self.value("x"))
        kinds = [*["slice", "ids"] * 2, *["mask"] * 3, "plain mask", "list", "numpy"]
        if of_nodes:
            few = self.offloaded and self.draw.random() < 0.9
            kinds += ["nonzero", "numpy mask", *([] if few else ["partitioned ids"])]
        kind = self._any(kinds)
        if kind == "partitioned ids":
            text = self._any(["y", "(y * 5 + 1) % x.shape[0]", "n_id"])
            self.index_kind = "N"
            return text
        if kind in ("slice", "mask", "plain mask", "numpy mask"):
            if kind == "slice":
                text = self._slice()
            elif kind == "mask":
                text = self._M()
            elif kind == "numpy mask":
                text = f"np.arange({size}) % 3 == {self.draw.integers(3)}"
            else:
                text = self._PM()
            rows = torch.arange(size)[self._index(text)]
            self.index_kind = f"{self.kind}/{hash(tuple(rows.tolist()))}"
            return text
        if kind == "nonzero":
            texts = ["mask.nonzero().squeeze(1)", "mask.nonzero(as_tuple=True)[0]"]
            text = self._any([*texts, "torch.where(mask)[0]"])
        elif kind == "ids":
            text = self._ids()
        else:
            numbers = self.draw.integers(-size, size, int(self.draw.integers(1, 6))).tolist()
            text = str(numbers) if kind == "list" else f"np.array({numbers})"
        self.index_kind = f"I{len(self.value(text))}"
        return text

    _J = _I

    def _index(self, text: str) -> Any:
        return self.value(f"np.s_[{text}]")

    def _PM(self) -> str:
        of_nodes = self.kind == "N" and len(self.base) == len(self.value("x"))
        if of_nodes and "plain_mask" in self.names and self.draw.random() < 0.5:
            return "plain_mask"
        return f"chosen({len(self.base)}, {self._seed()})"

    def _ids(self) -> str:
        of_nodes = self.kind == "N" and len(self.base) == len(self.value("x"))
        if of_nodes and "plain_ids" in self.names and self.draw.random() < 0.4:
            return "plain_ids"
        return f"ids({len(self.base)}, {NUM_IDS}, {self._seed()})"

    _ids2 = _ids3 = _ids

    def _distinct(self) -> str:
        return f"ids({len(self.base)}, 4, {self._seed()}, distinct=True)"

    def _table(self) -> str:
        count = TABLE[0] * TABLE[1]
        return f"ids({len(self.base)}, {count}, {self._seed()}).view{TABLE}"

    def _ids_of_table(self) -> str:
        return f"ids({len(self.base)}, {TABLE[0]}, {self._seed()})"

    def _table_rows(self) -> str:
        return str(TABLE[0])

    def _slice(self) -> str:
        size = len(self.base)
        a, b = sorted(int(i) for i in self.draw.integers(0, size + 1, 2))
        step = int(self.draw.integers(2, 4))
        ranges = [*[f"{a}:{b}"] * 2, f"{a}:", f":{b}", f"-{max(1, a)}:", f"{a}:{b}:{step}"]
        return self._any([*ranges, "::2", ":"])

    def _edge(self) -> str:
        size = len(self.value("data.edge_weight"))
        return self._any(
            [f"ids({size}, 4, {self._seed()}, distinct=True)", f"{size // 3}:{size // 2}", "::2"]
        )

    def _row(self) -> str:
        row = int(self.draw.integers(-len(self.base), len(self.base)))
        return self._any([f"{row}", f"{row}", f"np.int64({row})", f"torch.tensor({row})"])

    def _c(self) -> str:
        return str(self.draw.integers(self.base.shape[1] if self.base.dim() > 1 else 1))

    def _cs(self) -> str:
        return self._any([":2", "1:", "::2", "[0, 1]", "[-1, 0]", "torch.tensor([0, 1])", "-1:"])

    def _s(self) -> str:
        return f"{self.draw.uniform(0.05, 0.95):.2f}"

    def _k(self) -> str:
        return str(self.draw.integers(3))

    def _seed(self) -> str:
        return str(self.draw.integers(1000))

    def _W(self) -> str:
        return f"draw({self.base.shape[1]}, {self.draw.integers(2, 5)}, seed={self._seed()})"

    def _R(self) -> str:
        return f"draw({self.base.shape[1]}, seed={self._seed()})"

    def _Q(self) -> str:
        if self.base.shape[1] == self.value("plain_rows").shape[1] and self.draw.random() < 0.5:
            return "plain_rows"
        return f"draw(2, {self.base.shape[1]}, seed={self._seed()})"

    def _how(self) -> str:
        foreach = ["foreach=True", "foreach=False"]
        return self._any(["", "fused=True", *foreach, "weight_decay=0.01", "amsgrad=True"])
