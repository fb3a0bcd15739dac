"""Users' messages: by torch, by the generated kernels (emulated without a GPU), and what raises."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, Message, g_spmm, message
from peergraph.aggregate.messages import launcher
from peergraph.aggregate.messages import message as message_module
from peergraph.aggregate.messages.cuda_source import source
from peergraph.aggregate.messages.expression import parse
from peergraph.aggregate.messages.launcher import Launcher
from tests.aggregate.emulated_gpu import Emulator
from tests.aggregate.graphs import (
    DTYPES,
    Graph,
    assert_same,
    assert_same_with_gradients,
    features,
    hub_graph,
    random_graph,
)
from tests.named_case import named_case, named_cases

ROWS = {"u": "u", "v": "v", "e": "e", "w": "e"}
EXPRESSIONS = [
    "relu(u * w + v)",
    "u",
    "w",
    "-u + +v - 2",
    "u / w * e",
    "leaky_relu(u + v) * leaky_relu(w, 0.3)",
    "exp(u) * tanh(v) + sigmoid(w)",
    "log(abs(u)) * sqrt(abs(w) + 1e-3)",
    "min(u, v) * max(u, w)",
    "abs(u) ** 1.5 + v ** 2 + 2 ** w + abs(v) ** w",
    "u * u * u",
]
REDUCTIONS = ["sum", "mean", "max", "min"]


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler on PATH")
    return Emulator(compiler, tmp_path_factory.mktemp("messages"))


@pytest.fixture(params=["torch", "emulated", "gpu"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The CPU with torch, the CPU with the code of the kernels, and a GPU with CuPy."""
    if request.param == "emulated":
        launch = request.getfixturevalue("emulator").launch
        monkeypatch.setattr(Launcher, "_launch", lambda self, *args: launch(self, *args))
        monkeypatch.setattr(message_module, "fuses_messages", lambda matrix: True)
    if request.param != "gpu":
        return torch.device("cpu")
    from tests.conftest import require_gpus

    require_gpus(1)
    pytest.importorskip("cupy", reason="needs CuPy")
    return torch.device("cuda", 0)


def operands(
    graph: Graph, function: Message, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, Tensor]:
    device = graph.edge_index.device
    return {
        name: features(graph.rows(ROWS[name]), shapes.get(name, (4,)), device, dtype, seed=seed)
        for seed, name in enumerate(function._expression.symbols)
    }


def plain(graph: Graph, function: Message, inputs: dict[str, Tensor], rank: int) -> Tensor:
    """Independent of the structure: messages by Python's eval, reduced by a loop over rows."""
    source, destination = graph.edge_index.long()
    ends = {"u": source, "v": destination}
    at = {n: t[ends[n]] if n in ends else t for n, t in inputs.items()}
    at = {n: t.reshape(*t.shape, *(1,) * (rank - t.dim() + 1)) for n, t in at.items()}
    functions = {
        "relu": torch.relu,
        "leaky_relu": torch.nn.functional.leaky_relu,
        "exp": torch.exp,
        "log": torch.log,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "sqrt": torch.sqrt,
        "abs": torch.abs,
        "min": torch.minimum,
        "max": torch.maximum,
    }
    messages = eval(function.expression, {"__builtins__": {}}, {**functions, **at})
    rows = []
    for row in range(graph.num_destinations):
        here = messages[destination == row]
        if len(here) == 0:
            rows.append(torch.zeros_like(messages[0]))
        elif function.reduce in ("sum", "mean"):
            rows.append(getattr(here, function.reduce)(0))
        else:
            rows.append(getattr(here, function.reduce)(0).values)
    return torch.stack(rows)


def check(
    graph: Graph,
    function: Message,
    shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype = torch.float64,
    csc: Csc | None = None,
) -> None:
    inputs = operands(graph, function, shapes, dtype)
    twins = {n: t.detach().double().requires_grad_() for n, t in inputs.items()}
    actual = function(csc or graph.csc(), **inputs)
    rank = max(t.dim() - 1 for t in inputs.values())
    expected = plain(graph, function, twins, rank)
    assert actual.dtype == dtype
    assert_same_with_gradients(actual, expected, list(inputs.values()), list(twins.values()))


@named_cases("expression", EXPRESSIONS)
def test_expressions(where: torch.device, expression: str) -> None:
    check(random_graph(where, num_edges=120), message(expression, "sum"), {})


@named_cases("reduce", REDUCTIONS)
def test_reductions(where: torch.device, reduce: str) -> None:
    for grouped in (False, True):
        with named_case("grouped", grouped):
            graph = random_graph(where, dtype=torch.int32, grouped=grouped)
            check(graph, message("relu(u * w + v)", reduce), {"w": ()})


@named_cases(
    "shapes",
    [
        {"u": (), "v": (), "w": ()},
        {"u": (2, 3), "v": (2, 3), "w": (2,)},
        {"u": (2, 3), "v": (2, 1), "w": ()},
        {"u": (2, 1), "v": (1, 3), "w": (2, 3)},
        {"u": (), "v": (5,), "w": (1,)},
        {"u": (70,), "v": (70,), "w": ()},
    ],
)
def test_shapes(where: torch.device, shapes: dict[str, tuple[int, ...]]) -> None:
    for reduce in ("mean", "max"):
        with named_case(reduce):
            check(random_graph(where, num_edges=90), message("tanh(u * w + v)", reduce), shapes)


@named_cases("dtype", DTYPES)
def test_dtypes(where: torch.device, dtype: torch.dtype) -> None:
    check(random_graph(where, num_edges=60), message("relu(u * w + v)", "mean"), {}, dtype)


def test_a_hub_and_empty_graphs(where: torch.device) -> None:
    function = message("sigmoid(u + v) * w")
    check(hub_graph(where, 1500), function, {"w": ()}, torch.float64)
    check(random_graph(where, 1, 1, 1), function, {})
    none = random_graph(where, num_edges=0)
    result = function(none.csc(), **operands(none, function, {}, torch.float32))
    assert result.shape == (30, 4)
    assert result.count_nonzero() == 0
    result.sum().backward()
    thin = random_graph(where)
    assert function(
        thin.csc(), **operands(thin, function, dict.fromkeys("uvw", (0,)), torch.float32)
    ).shape == (30, 0)


def test_a_block_of_a_sample(where: torch.device) -> None:
    graph = random_graph(where, grouped=True)
    whole = graph.csc()
    csc = Csc(whole.indptr, whole.indices, graph.num_sources, transient=True, check=False)
    check(graph, message("relu(u + v) * w", "max"), {}, csc=csc)


def test_gradcheck(where: torch.device) -> None:
    graph = random_graph(where, 6, 5, 14)
    csc = graph.csc()
    for reduce in REDUCTIONS:
        function = message("tanh(u * w) / (2 + v * v) + max(u, w)", reduce)
        inputs = operands(graph, function, {"u": (2,), "v": (2,), "w": (2,)}, torch.float64)

        def reduced(u: Tensor, v: Tensor, w: Tensor, function: Message = function) -> Tensor:
            return function(csc, u=u, v=v, w=w)

        assert torch.autograd.gradcheck(reduced, (inputs["u"], inputs["v"], inputs["w"]))


def test_ties_go_to_the_first_edge(where: torch.device) -> None:
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]], device=where)
    u = torch.tensor([[2.0], [2.0], [1.0]], device=where, requires_grad=True)
    for reduce, first in (("max", 0), ("min", 2)):
        result = message("u * 1", reduce)(Csc.from_edge_index(edge_index, 2, 3), u=u)
        (grad,) = torch.autograd.grad(result.sum(), u)
        assert grad.flatten().nonzero().flatten().tolist() == [first]


def test_nan_is_kept(where: torch.device) -> None:
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]], device=where)
    u = torch.tensor([1.0, float("nan"), 3.0], device=where)
    for reduce in REDUCTIONS:
        result = message("relu(u)", reduce)(Csc.from_edge_index(edge_index, 1, 3), u=u)
        assert result.isnan().all()


def test_as_g_spmm_has_it(where: torch.device) -> None:
    graph = random_graph(where)
    x = features(graph.num_sources, (8,), where)
    e = features(graph.num_edges, (8,), where, seed=6)
    for reduce in REDUCTIONS:
        result = message("u * e", reduce)(graph.csc(), u=x, e=e)
        assert_same(result, g_spmm(graph.csc(), "mul", reduce, x, e))


def test_second_derivatives(where: torch.device, request: pytest.FixtureRequest) -> None:
    graph = random_graph(where, num_edges=20)
    csc = graph.csc()
    u = features(graph.num_sources, (2,), where, torch.float64)
    if request.node.callspec.params["where"] != "torch":
        with pytest.raises(NotImplementedError, match="create_graph=True"):
            torch.autograd.grad(message("u * u")(csc, u=u).sum(), u, create_graph=True)
        return
    (grad,) = torch.autograd.grad(message("u ** 3")(csc, u=u).sum(), u, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), u)
    counts = torch.bincount(graph.edge_index[0], minlength=graph.num_sources)
    torch.testing.assert_close(second, 6 * u.detach() * counts.unsqueeze(1))


@pytest.mark.parametrize("reduce", ["mean", "min"])
def test_kernels_compile_with_nvcc(tmp_path: Path, reduce: str) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc on PATH")
    text = " + ".join(f"({expression})" for expression in EXPRESSIONS)
    types = {"real": "float", "offset_t": "int", "index_t": "long long"}
    code = source(parse(text), reduce, {**types, "edge_t": "int", "row_t": "long long"})
    (tmp_path / "message.cu").write_text(code)
    flags = ["-std=c++17", "-arch=sm_90", "-ptx", "-Werror=all-warnings"]
    subprocess.run([nvcc, *flags, "message.cu"], cwd=tmp_path, check=True, timeout=250)


UNKNOWN = [
    ("x + u", r"'x' is not known; names are u, v, e, w"),
    ("sin(u)", r"'sin' is not known; functions are relu, leaky_relu, exp"),
    ("negative(u)", r"'negative' is not known; functions"),
    ("torch.exp(u)", r"'torch.exp' is not known; functions"),
    ("u % v", r"'u % v' is not known; operators are \+ - \* / \*\*"),
    ("u @ v", r"'u @ v' is not known"),
    ("u > v", r"'u > v' is not known"),
    ("u if v else w", r"'u if v else w' is not known"),
    ("u[0]", r"'u\[0\]' is not known"),
    ("not u", r"'not u' is not known"),
    ("u + True", r"'True' is not known; constants are finite numbers"),
    ("u + 'a'", r"\"'a'\" is not known; constants are finite numbers"),
    ("u + 1e999", r"'1e309' is not known; constants are finite numbers"),
    ("max(u)", r"'max\(u\)' is not known; max takes 2 arguments without names"),
    ("relu(x=u)", r"'relu\(x=u\)' is not known; relu takes 1 arguments"),
    ("leaky_relu(u, v)", r"'v' is not known; here leaky_relu takes a constant"),
    ("1 + 2", r"message '1 \+ 2' uses none of u, v, e, w"),
    ("u +", r"message 'u \+' is no expression: invalid syntax"),
    ("", r"message '' is no expression"),
    ("u" + "+ u" * 5000, r"message 'u\+ u\+ .*'... is nested too deeply"),
]


def test_what_the_language_does_not_know() -> None:
    for text, error in UNKNOWN:
        with named_case(text[:40]), pytest.raises(ValueError, match=error):
            message(text)


def test_bad_calls() -> None:
    graph = random_graph(torch.device("cpu"))
    csc, function = graph.csc(), message("u * w")
    u, w = torch.ones(40, 4), torch.ones(300)
    with pytest.raises(TypeError, match="message must be a string, got int"):
        message(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reduce must be one of sum, mean, max, min, got 'prod'"):
        message("u", "prod")
    with pytest.raises(ValueError, match=r"message 'u \* w' needs w"):
        function(csc, u=u)
    with pytest.raises(ValueError, match=r"message 'u \* w' does not use v"):
        function(csc, u=u, v=torch.ones(30, 4), w=w)
    with pytest.raises(ValueError, match=r"u must have 40 rows \(sources\), got \[39, 4\]"):
        function(csc, u=u[1:], w=w)
    with pytest.raises(TypeError, match="u and w must have one dtype"):
        function(csc, u=u.double(), w=w)
    with pytest.raises(ValueError, match=r"first dimension on, got u \[4\], w \[3\]"):
        function(csc, u=u, w=torch.ones(300, 3))
    assert message("u * w") is function
    assert repr(function) == "message('u * w', reduce='sum')"
    assert not function.is_fused(csc)
    assert isinstance(launcher.has_cupy(), bool)


def test_under_autocast() -> None:
    graph = random_graph(torch.device("cpu"))
    u, w = torch.randn(40, 4), torch.randn(300)
    with torch.autocast("cpu", torch.bfloat16):
        result = message("u * w")(graph.csc(), u=u, w=w)
    assert result.dtype == torch.bfloat16
    assert_same(result, message("u * w")(graph.csc(), u=u, w=w))
