"""Short programs that once ended otherwise than on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peergraph.testing import run_ranks
from tests.fullgraph.fuzz.outcomes import observe, run_program
from tests.fullgraph.fuzz.report import EQUAL, NAMED, Configuration
from tests.named_case import named_case

LEAF, GRADIENT = "x = x.requires_grad_()", "check('x.grad', x.grad)"
OF_EDGES = (LEAF, "e = x[edge_index[0]] - x[edge_index[1]]", "f = e.tanh()")
PROGRAMS: dict[str, Sequence[str]] = {
    # Selecting rows of `e` stored them, and `f`, which was recorded before, lost their gradient.
    "rows of a function after rows of its argument": (
        *(*OF_EDGES, "part = e[data.edge_mask]"),
        *("f[data.edge_weight > 0.5].sum().backward()", GRADIENT),
    ),
    "a sum of a function after a range of its argument, without gradients": (
        *(*OF_EDGES, "with torch.no_grad(): part = e[2:9]"),
        *("f.sum(0).pow(2).sum().backward()", GRADIENT),
    ),
    "both": (
        *(*OF_EDGES, "loss = e[data.edge_mask].pow(2).sum() + f[data.edge_mask].sum()"),
        *("loss.backward()", GRADIENT),
    ),
}
# A gradient of selected rows in a function with a gradient ended in an AssertionError.
PROGRAMS |= {
    f"a gradient in a function, {reads}": (
        *(LEAF, "v = torch.autograd.grad(x[[1, 2]].pow(2).sum(), x)[0]"),
        *("w = torch.stack([v, x], dim=1).flatten(1)", f"{reads}.sum().backward()", GRADIENT),
    )
    for reads in ("w[[0, 3]].exp()", "w.exp()", "w[mask].exp()", "(w[edge_index[0]] * 2).sum(1)")
}
# A row that was named twice, of which one column was written, got its gradient twice.
PROGRAMS["a column of rows that are named twice"] = (
    *(LEAF, "v = x * 2", "v[[0, 3, 3], 1] = 0.36", "v.pow(2).sum().backward()", GRADIENT),
)
# Gradients read what a tensor had become, in place of what it was.
PROGRAMS["extrema by column in place"] = (
    *(LEAF, "v = x * 1.5", "i = (y % v.shape[1]).unsqueeze(1)"),
    *("v.scatter_reduce_(1, i, x, reduce='amax')", "v.pow(2).sum().backward()", GRADIENT),
)
# One id without dimensions was forgotten, and values were added to all columns.
ONE, SOME = "torch.tensor(1)", "torch.tensor([-1, 2, -1])"
ADDED = {
    f"index_put_ at {index}, accumulate={accumulate}": (
        f"v = x.clone(); v.index_put_({index}, v.new_full((), 2.0), accumulate={accumulate})",
        *("t = torch.zeros(4, 3, dtype=x.dtype)", f"i = y % 4, {ONE}"),
        *("t.index_put_(i, t.new_ones(()), accumulate=True)", "check('both', [v, t])"),
    )
    for index in (f"(mask, {ONE})", f"({SOME}, {ONE})", f"({SOME},)", "(mask,)", f"({ONE},)")
    for accumulate in (True, False)
}
# Ids behind the last row were taken as others by offloaded rows.
OUTSIDE = {
    f"{write} behind the last row": (
        *("v = x.clone()", f"with raises(): {write}", "check('v', v)"),
    )
    for write in (
        *("v[torch.tensor([[100]])] = 1", "v[torch.tensor([100]), torch.tensor([0])] = 1"),
        *("v[torch.tensor([100]), 1] = 1", "v[torch.tensor([-100]), torch.tensor([0])] = 1"),
        "v.index_put_((torch.tensor([100]),), v[:1], accumulate=True)",
    )
}
# Writes in inference mode were lost, and those by out= into an argument in all modes. One row that
# was added to in no_grad raised.
IN_MODES = {
    f"{write} in {mode}": (
        *("v = x.clone().requires_grad_()", "v = v * 2", f"with torch.{mode}(): {write}"),
        *("check('v', v)", "check('twice', v * 2)", "v = v.detach(); v.add_(1)", "check('w', v)"),
    )
    for mode in ("no_grad", "inference_mode")
    for write in (
        *("v[[0, 3, 3]] = v[[0, 3, 3]] * 2", "v.mul_(2)", "v[mask] = 0", "v[2] += 1"),
        *("torch.exp(x, out=v)", "torch.add(v, 1, out=v)", "v[3:9].zero_()"),
        *("w = v.clone(); w[1] = 0; v.copy_(w)", "part = v[2:6]; part.mul_(3); del part"),
    )
}
# Ranges and rows that were changed through `.data` or `detach()` raised torch's error of leaves.
DETACHED = {
    f"{write} of v = {view}": ("x = x.requires_grad_()", f"v = {view}", write, "check('x', x)")
    for view, writes in {
        "x[2:6]": ("v.data.zero_()", "v.detach()[[1, 2]] = 7.0", "v.data.mul_(2)"),
        "x[::2]": ("v.data[[0, 3, 3]] = 0.95", "v.data[:, 1] = 2.0"),
        "x[3]": ("v.data.fill_(2)", "v.detach()[1] = 4.0"),
    }.items()
    for write in writes
}
# A transposed view that a gradient needs was kept as if it were rows.
TRANSPOSED = {
    f"{rows} of a sum over transposed rows in {mode}": (
        *("x = x.requires_grad_()", f"with torch.{mode}(): total = x.transpose(0, 1).exp().sum(0)"),
        *("joined = torch.cat([0.91 - x, total[:, None]], 1)", f"part = joined[{rows}]"),
        *("(part.pow(2).sum(1) * part[:, -1]).sum().backward()", "check('gradient', x.grad)"),
    )
    for mode in ("no_grad", "inference_mode")
    for rows in ("mask", "[0, 5, 7]", "3:5", "3:3", "[1]")
}
# Torch's backward pass runs in inference mode, too; that of offloaded rows raised its errors.
BACKWARD = {
    f"backward in inference mode of {loss}": (
        *("x = x.requires_grad_()", "w = torch.ones(x.shape[1], dtype=x.dtype).requires_grad_()"),
        *(f"loss = {loss}", "with torch.inference_mode(): loss.backward()"),
        *("check('gradient', x.grad)", "check('weight', w.grad)"),
        *("with torch.no_grad(): x -= 0.1 * x.grad", "check('x', x)"),
    )
    for loss in (
        *("(F.relu(x) @ w).sum()", "(x * w)[mask].pow(2).sum()", "((x * w).std() + x[3].sum())"),
        "F.softmax(x * w, 1)[[1, 2, 2]].pow(2).mean()",
    )
}
# Rows that were written in inference mode could not be read by a function with gradients.
READ_WITH_GRADIENTS = {
    write: (
        *("h = x.clone().requires_grad_()", f"with torch.inference_mode(): {write}"),
        *("out = h * x", "out.sum().backward()", "check('gradient', h.grad)", "check('x', x)"),
    )
    for write in ("x[np.arange(x.shape[0]) % 3 == 2] = 0.13", "x[torch.tensor([1, 2])] = x[3] * 2")
}
# A mask that was first used in inference mode could not choose rows to write with gradients.
READ_WITH_GRADIENTS["a selection of inference mode"] = (
    *("h = x.clone().requires_grad_()", "g = h * 1.5"),
    *("with torch.inference_mode(): v = x[mask].sum()", "g[mask] += 1"),
    *("g.pow(2).sum().backward()", "check('gradient', h.grad)"),
)
# A norm of edges that a layer computed in inference mode was saved for a gradient.
READ_WITH_GRADIENTS["edge weights of inference mode"] = (
    *("h = x.clone().requires_grad_()", "with torch.inference_mode(): v = LGConv()(x, edge_index)"),
    *("v = v * 2", "v[:, 1] = h[:, 0]", "v.pow(2).sum().backward()"),
    *("check('gradient', h.grad)", "check('v', v)"),
)
# Its second derivative is a tensor of torch that has no memory.
SECOND_DERIVATIVES = {
    name: (
        *("h = x.detach().clone().requires_grad_()", f"loss = {loss}"),
        "first = torch.autograd.grad(loss, h, create_graph=True)[0]",
        "check('second', torch.autograd.grad(first.pow(2).sum(), h, allow_unused=True)[0])",
    )
    for name, loss in {
        "l1_loss": "F.l1_loss(h * 1.5, torch.zeros_like(h))",
        "hardtanh": "F.hardtanh(h * 1.5).sum()",
    }.items()
}
# The first one consists of constants, and needs a gradient nevertheless.
SECOND_DERIVATIVES["relu"] = (
    *("h = x.detach().clone().requires_grad_()", "loss = F.relu(h * 1.5).sum()"),
    *("first = torch.autograd.grad(loss, h, create_graph=True)[0]", "check('first', first)"),
    *("first.sum().backward()", "check('second', h.grad)"),
)
# They ended in a TypeError.
OUT = [
    f"torch.{call}, out=torch.zeros({shape}, dtype=x.dtype))"
    for call, shape in (("sum(x, 0", 3), ("mean(x, 0", 3), ("matmul(x[:, 0], x", 3))
]

# A list of all ids was a view of the rows. Offloaded rows refuse to change.
COPIES = {
    f"{index}, {write}": ("v = x * 2", f"rows = v{index}", write, "check('both', [v, rows])")
    for index in ("[torch.arange(x.shape[0])]", ".index_select(0, torch.arange(x.shape[0]))")
    for write in ("v[:, 1] = x[:, 0]", "rows.zero_()")
}

# A range that torch views with gaps lay without gaps: functions that copy it shared its memory.
VIEWS = [
    "x[::2]",
    "x[4:9:2]",
    "y[::2]",
    "x[:, 1:][2:5]",
    "x[1:][::2]",
    "x[:, 0][1::3]",
    "x[:, ::2][2]",
]
WITH_GAPS = {
    f"{function} of {view}": (f"v = {view}{function}", write, "check('both', [v, x, y])")
    for view in VIEWS
    for function in (".contiguous()", ".reshape(-1)", ".detach()")
    for write in ("v.zero_()",)
}
# Only the range itself let offloaded rows refuse to change.
OF_RANGES = {
    f"x[1:]{function}": (f"v = x[1:]{function}", "x.zero_()", "check('both', [v, x])")
    for function in (".detach()", ".data", "[:]")
}


# Each rank's values met its places, whatever rows these were of; now errors name the layouts.
OTHER_ROWS = (
    "a, b = x[torch.tensor([0, 1, 8, 9, 16, 17])], x[torch.tensor([8, 0, 9, 1, 16, 17])]",
    "i = (b[:, 0] > 0).long()",
)
MEETING = {
    f"values and places of other rows, {call}": (
        Configuration(ranks=3),
        (*OTHER_ROWS, f"v = {call}", "check('v', v)"),
    )
    for call in (
        "x.new_zeros(2, x.shape[1]).index_add(0, i, a)",
        "torch.zeros(2, dtype=x.dtype).scatter_add(0, i, a[:, 0])",
        "torch.zeros(2, dtype=x.dtype).scatter_reduce(0, i, a[:, 0], 'mean')",
        "torch.bincount(i, weights=a[:, 0])",
        "torch.bincount(i, weights=b[:, 0])",
    )
}
ON_RANKS: dict[str, tuple[Configuration, Sequence[str]]] = {
    # Rows that a layer's relations exchange at once were found again by their version.
    "contiguous rows of a range with a step": (
        Configuration(ranks=3),
        (
            "v = x[::3].contiguous()",
            "v.zero_()",
            "w = x[:, 1:][2:5].reshape(-1)",
            "w.add_(1)",
            "check('all', [v, w, x])",
        ),
    ),
    "rows of inference mode that relations share": (
        Configuration(ranks=3, graph="typed"),
        (
            "model = make_model('TypedGraph', x.shape[1], seed=575, accelerate=True)",
            "with torch.inference_mode(): scores = model(x, z, edges)",
            "check('scores', scores)",
        ),
    ),
}


@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_differed(name: str, chunks: int) -> None:
    _check(PROGRAMS[name], chunks)


@pytest.mark.parametrize("chunks", [0, 2])
def test_written_ids(chunks: int) -> None:
    for name, program in (ADDED | OUTSIDE).items():
        with named_case(name):
            _check(program, chunks)


@pytest.mark.parametrize("chunks", [0, 2])
def test_writes_without_gradients(chunks: int) -> None:
    for name, program in (
        IN_MODES | DETACHED | TRANSPOSED | BACKWARD | READ_WITH_GRADIENTS
    ).items():
        with named_case(name):
            _check(program, chunks)


def test_second_derivatives_that_are_zero() -> None:
    for name, program in SECOND_DERIVATIVES.items():
        with named_case(name):
            _check(program, 0)


def test_random_numbers_of_plain_tensors_in_inference_mode() -> None:
    for call in ("F.dropout(x, 0.3)", "nn.Dropout(0.2)(x)", "F.dropout(x * 1, training=False)"):
        _check((f"with torch.inference_mode(): v = {call}", "check('v', v)"), 2)
    for chunks in (0, 2):
        lines = "with torch.inference_mode(): v = x * 2", "v = F.dropout(v, 0.3)", "check('v', v)"
        _check(lines, chunks)


@pytest.mark.parametrize("chunks", [0, 2])
def test_results_given_by_out(chunks: int) -> None:
    for call in OUT:
        with named_case(call):
            lines = [f"v = {call}", "check('v', v)"]
            _compare(lines, Configuration(chunks=chunks), may_refuse=True)


@pytest.mark.parametrize("name", COPIES)
def test_rows_of_all_ids_are_a_copy(name: str) -> None:
    _check(COPIES[name], 0)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_rows_of_a_whole_mask_are_a_copy(chunks: int) -> None:
    read = (LEAF, "v = F.relu(x)", "with torch.no_grad(): w = v[torch.ones_like(mask)]")
    _compare((*read, "w.mul_(3)", "check('w', w)", "check('v', v)"), Configuration(chunks=chunks))


@pytest.mark.parametrize("chunks", [0, 2])
def test_functions_that_copy_in_torch_copy(chunks: int) -> None:
    for name, program in (WITH_GAPS | OF_RANGES).items():
        with named_case(name):
            _compare(program, Configuration(chunks=chunks), may_refuse=chunks > 0)


@pytest.mark.parametrize("chunks", [0, 2])
def test_autocast_knows_products_of_a_row_and_a_matrix(chunks: int) -> None:
    program = ("with autocast(): v = x[:, 0] @ x", "check('v', v)")
    _compare(program, Configuration(chunks=chunks, dtype="float32"))


@pytest.mark.timeout(120)
def test_programs_that_differed_on_ranks() -> None:
    run_ranks(_check_on_ranks, 3, device="cpu")


def _check_on_ranks() -> None:
    for name, (where, program) in (ON_RANKS | MEETING).items():
        with named_case(name):
            _compare(program, where, may_refuse=name in MEETING)


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_tensor_that_is_multiplied_by_itself_in_place(chunks: int) -> None:
    """torch refuses the gradient; of offloaded rows it is that of the values before."""
    lines = (LEAF, "v = x * 1.5", "v = v * v", "v.pow(2).sum().backward()", GRADIENT)
    expected = observe(list(lines), 7, Configuration())
    assert expected is not None
    in_place = [line.replace("v = v * v", "v.mul_(v)") for line in lines]
    assert run_program(in_place, 7, expected, Configuration(chunks=chunks)).kind == EQUAL


def _check(program: Sequence[str], chunks: int) -> None:
    _compare(program, Configuration(chunks=chunks))


def _compare(program: Sequence[str], where: Configuration, may_refuse: bool = False) -> None:
    lines = list(program)
    expected = observe(lines, 7, where)
    assert expected is not None
    outcome = run_program(lines, 7, expected, where)
    assert outcome.kind in ((EQUAL, NAMED) if may_refuse else (EQUAL,)), outcome
