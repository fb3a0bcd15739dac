"""The language of users' messages: Python's parser reads it; it is checked and put into steps."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SYMBOLS = {"u": "sources", "v": "destinations", "e": "edges", "w": "edges"}
"""The rows that a symbol stands for."""


def rows_of(symbol: str) -> str:
    """Returns the rows that a symbol stands for. torch 2.4 cannot compile code that reads a
    dictionary as a global of two modules.
    """
    return SYMBOLS[symbol]


@dataclass(frozen=True)
class Operation:
    """One operation, for torch and for CUDA.

    Args:
        torch: on tensors.
        cuda: the value, of ``{a}`` and ``{b}``.
        adjoints: what each argument's gradient gets, of ``{a}``, ``{b}``, the value ``{t}`` and its
            gradient ``{d}``; None for an argument that must be a constant. As torch has them,
            where there is none in the strict sense.
    """

    torch: Callable[..., Tensor]
    cuda: str
    adjoints: tuple[str | None, ...]


def _leaky_relu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * slope)


_CHOSEN = "({a} == {b} ? {d} * (real)0.5 : {a} %s {b} ? %s : %s)"


def _extremum(function: Callable[..., Tensor], sign: str) -> Operation:
    first, second = (_CHOSEN % (sign, *pair) for pair in (("{d}", "0"), ("0", "{d}")))
    value = f"({{a}} {sign} {{b}} || {{a}} != {{a}} ? {{a}} : {{b}})"
    return Operation(function, value, (first, second))


OPERATIONS = {
    "+": Operation(torch.add, "({a} + {b})", ("{d}", "{d}")),
    "-": Operation(torch.sub, "({a} - {b})", ("{d}", "-{d}")),
    "*": Operation(torch.mul, "({a} * {b})", ("{d} * {b}", "{d} * {a}")),
    "/": Operation(torch.div, "({a} / {b})", ("{d} / {b}", "-{d} * {t} / {b}")),
    "**": Operation(
        torch.pow,
        "pow({a}, {b})",
        (
            "({b} == 0 ? 0 : {d} * {b} * pow({a}, {b} - 1))",
            "({a} == 0 && {b} >= 0 ? 0 : {d} * {t} * log({a}))",
        ),
    ),
    "negative": Operation(torch.neg, "(-{a})", ("-{d}",)),
    "relu": Operation(torch.relu, "({a} < 0 ? 0 : {a})", ("({a} > 0 ? {d} : 0)",)),
    "leaky_relu": Operation(
        _leaky_relu, "({a} > 0 ? {a} : {a} * {b})", ("({a} > 0 ? {d} : {d} * {b})", None)
    ),
    "exp": Operation(torch.exp, "exp({a})", ("{d} * {t}",)),
    "log": Operation(torch.log, "log({a})", ("{d} / {a}",)),
    "tanh": Operation(torch.tanh, "tanh({a})", ("{d} * (1 - {t} * {t})",)),
    "sigmoid": Operation(torch.sigmoid, "(1 / (1 + exp(-{a})))", ("{d} * {t} * (1 - {t})",)),
    "sqrt": Operation(torch.sqrt, "sqrt({a})", ("{d} / (2 * {t})",)),
    "abs": Operation(torch.abs, "fabs({a})", ("({a} > 0 ? {d} : {a} < 0 ? -{d} : 0)",)),
    "min": _extremum(torch.minimum, "<"),
    "max": _extremum(torch.maximum, ">"),
}
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
}
FUNCTIONS = [name for name in OPERATIONS if name.isidentifier() and name != "negative"]
_SLOPE = 0.01


@dataclass(frozen=True)
class Step:
    """A constant, the value of a symbol, or an operation on earlier steps."""

    value: float | str
    arguments: tuple[int, ...] = ()

    @property
    def operation(self) -> Operation | None:
        """The operation; None for constants and symbols."""
        return OPERATIONS[self.value] if isinstance(self.value, str) and self.arguments else None


@dataclass(frozen=True)
class Expression:
    """A message as steps, each of them once; the last one is the message."""

    text: str
    steps: tuple[Step, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that occur, in the order u, v, e, w."""
        values = {step.value for step in self.steps if not step.arguments}
        return tuple(name for name in SYMBOLS if name in values)

    def depends_on(self, symbol: str) -> list[bool]:
        """Returns for each step whether it depends on the symbol."""
        by_step: list[bool] = []
        for step in self.steps:
            is_symbol = not step.arguments and step.value == symbol
            by_step.append(is_symbol or any(by_step[k] for k in step.arguments))
        return by_step

    def evaluate(self, values: Mapping[str, Tensor]) -> Tensor:
        """Evaluates the expression by torch, with gradients; shapes broadcast as torch's do."""
        like = next(iter(values.values()))
        results: list[Tensor] = []
        for step in self.steps:
            if step.operation is not None:
                results.append(step.operation.torch(*(results[k] for k in step.arguments)))
            elif isinstance(step.value, str):
                results.append(values[step.value])
            else:
                results.append(like.new_tensor(step.value))
        return results[-1]


def parse(text: str) -> Expression:
    """Reads an expression.

    Raises:
        TypeError: it is no string.
        ValueError: what the language does not know, named as it was written.
    """
    if not isinstance(text, str):
        raise TypeError(f"message must be a string, got {type(text).__name__}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        steps = tuple(_Reader(text).read(tree.body))
    except (RecursionError, MemoryError):  # Python's parser raises either.
        raise ValueError(f"message {text[:40]!r}... is nested too deeply") from None
    except SyntaxError as error:
        where = (
            f" at {error.text.strip()[max(0, (error.offset or 1) - 1) :]!r}" if error.text else ""
        )
        raise ValueError(f"message {text!r} is no expression: {error.msg}{where}") from None
    expression = Expression(text, steps)
    if not expression.symbols:
        raise ValueError(f"message {text!r} uses none of {', '.join(SYMBOLS)}")
    return expression


class _Reader:
    """Puts a syntax tree into steps."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._steps: dict[Step, int] = {}

    def read(self, tree: ast.expr) -> list[Step]:
        self._add(tree)
        return list(self._steps)

    def _add(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return self._step(self._number(node))
        if isinstance(node, ast.Name):
            if node.id not in SYMBOLS:
                raise self._unknown(node, f"names are {', '.join(SYMBOLS)}")
            return self._step(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._step(_BINARY[type(node.op)], node.left, node.right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._step("negative", node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
            return self._add(node.operand)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._unknown(node, f"operators are {' '.join(_BINARY.values())}")

    def _call(self, node: ast.Call) -> int:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS:
            raise self._unknown(node.func, f"functions are {', '.join(FUNCTIONS)}")
        arguments = list(node.args)
        if name == "leaky_relu" and len(arguments) == 1:
            arguments.append(ast.Constant(_SLOPE))
        adjoints = OPERATIONS[name].adjoints
        if node.keywords or len(arguments) != len(adjoints):
            raise self._unknown(node, f"{name} takes {len(adjoints)} arguments without names")
        for argument, adjoint in zip(arguments, adjoints, strict=True):
            if adjoint is None and any(isinstance(n, ast.Name) for n in ast.walk(argument)):
                raise self._unknown(argument, f"here {name} takes a constant")
        return self._step(name, *arguments)

    def _step(self, value: float | str, *arguments: ast.expr) -> int:
        step = Step(value, tuple(map(self._add, arguments)))
        return self._steps.setdefault(step, len(self._steps))

    def _number(self, node: ast.Constant) -> float:
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise self._unknown(node, "constants are finite numbers")

    def _unknown(self, node: ast.expr, choices: str) -> ValueError:
        return ValueError(f"message {self._text!r}: {ast.unparse(node)!r} is not known; {choices}")
