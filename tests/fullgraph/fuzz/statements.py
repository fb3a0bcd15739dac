"""The statements that users write, as templates: the generator fills in names and numbers.

Places of a template:

- ``{A}`` a float matrix of rows, ``{B}`` one of the same rows and shape, ``{V}`` float numbers of
  these rows, ``{M}`` a partitioned mask of them, ``{Y}`` their classes; ``{T}`` any rows;
- ``{L}`` a plain scalar that needs a gradient; ``{X}`` a leaf of rows that needs one;
- ``{I}``, ``{J}`` an index of rows of A, or T; ``{PM}`` a plain mask;
- ``{W}`` a plain matrix with a row for each column of A, ``{R}`` a plain row, ``{Q}`` plain rows;
- ``{N}`` a float matrix with a row for each node;
- ``{row}``, ``{c}``, ``{cs}`` a row, a column, some columns; ``{s}`` a number; ``{ids}`` plain ids.

A group of templates begins with its weight, its result ("K": rows as those of A, "I": what the
index selects, "N", "E": of nodes, of edges, "C": rows that were joined, "P": plain, "-": nothing),
and the factor of the weight for offloaded rows, of which less is supported.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Template(NamedTuple):
    """A statement: how often it is written, its text, what its result is."""

    weight: float
    text: str
    result: str
    offloaded: float


def table(text: str) -> list[Template]:
    """Reads groups of templates."""
    templates: list[Template] = []
    for group in re.split(r"\n(?=[0-9])", text.strip()):
        head, *texts = group.split("\n")
        weight, result, *factor = head.split()
        each = float(weight) / len(texts)
        offloaded = float(factor[0]) if factor else 1.0
        templates += [Template(each, t.strip(), result.strip("-"), offloaded) for t in texts]
    return templates


READS = table("""
6 I
    {A}[{I}]
    {T}[{I}]
3 I
    {A}[{I}, :{c}+1]
    {A}[{I}, {cs}]
    {A}[{I}, {c}]
    {A}[{I}, ..., {c}]
1 I
    {A}.index_select(0, {ids})
    torch.index_select({A}, 0, {ids})
1 P
    {A}[{row}]
    {T}[{row}]
    {A}[{row}, {c}]
    {A}[{row}, {cs}]
    {A}[{row}][{c}]
1 P
    {A}[{row}].softmax(0)
    {A}[{row}].argmax().item()
    {T}[{row}].tolist()
1 K
    {A}[:, {c}]
    {A}[..., {cs}]
    {A}[:, {cs}]
    {A}[:, None, :{c}+1].squeeze(1)
1 I
    {A}[{I}][:, {c}]
    {A}[{I}][{s} < {A}[{I}][:, 0]]
    {A}[{I}].tanh()
1 I
    {A}[torch.arange({A}.shape[0]), {Y} % {A}.shape[1]]
    {A}[{ids}, {ids} % {A}.shape[1]]
0.7 P
    {A}[{table}].sum(1).sum()
    ({A}[{table}] * {A}[{table}]).sum(-1).mean()
0.7 P
    {A}[{PM}].sum(0)
    {A}[{PM}.nonzero().squeeze(1)].mean(0)
    {A}[{PM}].shape[0]
0.5 K
    {A}.gather(1, ({Y} % {A}.shape[1]).unsqueeze(1))
    F.one_hot({Y}, 7)
0.1 P
    {A}.narrow(0, 1, 3).sum()
    [row.sum() for row in {A}[{I}][:2]]
0.3 P
    len({A}[{I}])
    {A}[{I}].shape
    int({M}.sum())
    {M}.any().item()
""")
POINTWISE = table("""
6 K
    {A}.tanh()
    F.relu({A})
    F.elu({A})
    {A}.sigmoid()
    F.leaky_relu({A}, 0.2)
    {A} + {B}
    {A} * {B}
    {A} - {s} * {B}
    {A} / (1 + {B}.abs())
    torch.maximum({A}, {B})
2 K
    {A} * {V}.unsqueeze(1)
    {A} + {R}
    {A} * {s}
    {s} - {A}
    {A} * {V}[:, None]
2 K
    torch.where({M}.unsqueeze(1), {A}, {B})
    {A}.masked_fill({M}[:, None], {s})
2 K
    torch.where({A} > {s}, {A}, {B})
    torch.where({M}, {V}, {s})
    {A}.clamp(-{s}, 1)
1 K
    {V} > {s}
    ({V} > {s}) & {M}
    ~{M}
    {M} | ({Y} == {k})
    {Y} == {k}
    {Y} != {k}
2 K
    ({Y} * 3 + {k}) % 4
    {A}.argmax(1) % 3
    {A}.argmin(dim=-1) % 3
    {Y}.clone()
    {A}.float().double()
    {A} ** 2
    {A}.abs().add(0.1).sqrt()
    {A}.exp().log1p()
0.6 K
    {M}.double()
    {A}.float()
    {A}.to(torch.float32) * 2
    {A}.lerp({B}, 0.3)
1.2 K
    F.dropout({A}, 0.3)
    F.dropout({A}, 0.5, training=False)
    nn.Dropout(0.2)({A})
    {A}.new_zeros({A}.shape)
    torch.ones_like({A})
    torch.full_like({A}, {s}) + {A}
""")
ROWS = table("""
3 K
    F.softmax({A}, dim=1)
    F.log_softmax({A}, -1)
    F.normalize({A}, dim=1)
    {A}.softmax(1)
3 K
    {A}.sum(1)
    {A}.mean(dim=-1)
    {A}.norm(dim=1)
    {A}.max(1).values
    {A}.logsumexp(1)
1 K
    {A}.cummax(1).values
    {A}.median(1).values
    {A}.kthvalue(1, 1).values
    {A}.diff(dim=1, prepend={A}[:, :1])
    {A}.logcumsumexp(1)
    torch.std_mean({A}, 1)[1]
    torch.exp({A}, out=torch.empty_like({A}.detach()))
    (lambda v: torch.add(v, {s}, out=v))({A}.detach().clone())
1.5 K
    {A}.cumsum(1)
    {A}.sort(1).values
    {A}.topk(2, dim=1).values
    {A}.flip(1)
2 K
    torch.cat([{A}, {B}], dim=1)
    torch.cat([{A}, {V}[:, None]], 1)
    torch.stack([{A}, {B}], 0).mean(0)
1 K
    torch.stack([{A}, {B}], dim=1).flatten(1)
    torch.hstack([{A}, {B}])
2 K
    {A}.view({A}.shape[0], -1, 1).squeeze(2)
    {A}.unsqueeze(0)[0]
    {A}.t().t()
    {A}.transpose(0, 1).sum(0)
    ({A}.t() * {s}).t()
    {A}.split([1, {A}.shape[1] - 1], 1)[1]
1 K
    {A}.unbind(1)[{c}]
    {A}.chunk(2, dim=1)[0]
    {A}.reshape({A}.size(0), -1)
    {A}.repeat(1, 2)
2 K
    F.layer_norm({A}, {A}.shape[1:])
    {A}.std(1)
    F.cosine_similarity({A}, {B}, dim=1)
    F.pairwise_distance({A}, {B})
    F.glu({A}.repeat(1, 2), 1)
    ({A} * {B}).sum(-1)
2 K
    {A}.clone()
    {A}.detach()
    {A}.detach().clone()
    copy.deepcopy({A}.detach())
    {A}.contiguous()
1 K
    {A} - {A}.mean(0)
    {A} / {A}.norm()
    {A} - {A}.amax(0, keepdim=True)
    {V} / {V}.abs().sum()
0.7 K
    F.softmax({A}, dim=0)
    {V}.softmax(0)
    F.normalize({A}, dim=0)
0.05 K
    {A}.cumsum(0)
0.3 C 0.1
    torch.cat([{A}, {B}], 0)
    torch.cat([{A}[{I}], {B}])
    torch.vstack([{A}, {B}])
""")
REDUCTIONS = table("""
3 P
    {A}.sum()
    {A}.mean()
    {A}.sum(0)
    {A}.mean(0)
    {A}.pow(2).sum()
    {A}.norm()
2 P
    {A}.max()
    {A}.amax(0)
    {A}.min(0).values
    {A}.std(0)
    {A}.var()
    {A}.norm(dim=0)
1 P
    {A}.logsumexp(0)
    ({Y} == {k}).sum()
    {M}.sum().item()
    {A}[{M}].sum()
    {A}.abs().mean((0, 1))
1 P
    torch.std_mean({A})
    torch.var_mean({A}, 0)
    torch.aminmax({A})
    {A}.detach().count_nonzero()
    {A}.prod(1).sum()
2 P
    torch.bincount({Y}, minlength=4)
    {Y}.max().item()
    {Y}.unique()
    {Y}.float().mean()
    ({A}.argmax(1) == 0).double().mean()
    torch.linalg.norm({A})
    {A}.numel()
    {A}.var(0, unbiased=False)
0.1 P 0.3
    {V}.sort().values
    {V}.topk(3).values
    {V}.argmax()
    torch.median({V})
""")
PRODUCTS = table("""
3 K
    {A} @ {W}
    F.linear({A}, {W}.t())
    torch.mm({A}, {W})
    {A}.matmul({R})
    {A} @ {W} + {s}
2 P
    {A}.t() @ {B}
    torch.einsum('ni,nj->ij', {A}, {B})
    {A}.T @ {V}
    torch.mm({A}.t(), {B})
1 P
    ({A}[{ids}] * {A}[{ids2}]).sum(-1).sigmoid().sum()
    {V} @ {A}
    {V}.dot({V})
1 P
    ({A}[{ids}] @ {A}.t()).sum()
    ({A}[{ids}] @ {A}[{ids2}].t()).sum(1).sum()
0.7 P
    torch.cdist({A}, {Q}).min(1).values.sum()
    torch.cdist({A}[{ids}], {Q}).mean()
2 P
    {A}.new_zeros(4, {A}.shape[1]).index_add_(0, {Y}, {A})
    {A}.new_zeros(4, 4).index_put_(({Y}, {Y}), {A}.new_ones(()), accumulate=True)
    torch.bincount({Y} * 3 + {Y}, minlength=9).view(3, 3)
    scatter({A}, {Y}, dim_size=4, reduce='mean')
    global_add_pool({A}, {Y}, size=3)
    torch.stack([{A}[{Y} == i].sum(0) for i in range(3)])
1 K
    draw(3, 4, seed={seed})[{Y}]
    F.embedding({Y}, draw(3, 2, seed={seed}))
    F.bilinear({A}, {B}, draw(2, {A}.shape[1], {A}.shape[1], seed={seed}))
    torch.stack([{A}, {B}], 1).softmax(1).sum(1)
1.5 E
    ({N}[edge_index[0]] * {N}[edge_index[1]]).sum(-1)
    {N}[edge_index[0]] - {N}[edge_index[1]]
    softmax(({N}[edge_index[0]] * {N}[edge_index[1]]).sum(-1), edge_index[1])
1.5 N
    scatter({N}[edge_index[0]], edge_index[1], dim_size={N}.shape[0], reduce='sum')
    degree(edge_index[1], {N}.shape[0]).double()
    LGConv()({N}, edge_index)
    LGConv()({N}, edge_index, data.edge_weight)
0.7 K
    torch.cdist({A}, {Q})
    {A} @ {Q}.t()
    {A} @ ({A}.t() @ {B})
0.5 P 0.5
    torch.bmm({A}[{table}], {A}[{ids_of_table}].unsqueeze(2)).sum()
    ({A} @ {A}.t()).diagonal().sum()
""")
LOSSES = table("""
3 P
    F.cross_entropy({Z}[{M}], {Y}[{M}])
    F.cross_entropy({Z}, {Y})
    F.mse_loss({A}, {B}.detach())
2 P
    F.cross_entropy({Z}[{M}], {Y}[{M}], weight=draw({Z}.shape[1], seed={seed}).abs())
2 P
    F.nll_loss(F.log_softmax({Z}, 1)[{M}], {Y}[{M}])
    F.cross_entropy({Z}[{ids}], {Y}[{ids}], label_smoothing=0.1)
2 P
    -F.logsigmoid(({A}[{ids}] * ({A}[{ids2}] - {A}[{ids3}])).sum(1)).mean()
1 P
    -F.log_softmax({Z}, 1)[torch.arange({Z}.shape[0]), {Y}].mean()
    ({A}[{ids}] - {A}[{ids2}]).pow(2).sum()
3 P
    F.cross_entropy(({A}[{ids_of_table}].unsqueeze(1) * {A}[{table}]).sum(-1), ids(1, \
{table_rows}, 0))
    F.cross_entropy({A}[{ids}] @ {A}[{ids2}].t() / 0.5, torch.arange({A}[{ids}].shape[0], \
device={A}[{ids}].device))
    F.binary_cross_entropy_with_logits(({A}[{ids}] * {R} * {A}[{ids2}]).sum(-1), ids(2, \
len({ids}), {seed}).double())
1 P
    F.smooth_l1_loss({A}, {B})
    F.l1_loss({A}, torch.zeros_like({A}))
    F.kl_div(F.log_softmax({A}, 1), F.softmax({B}, 1), reduction='batchmean')
2 P
    F.cross_entropy({Z}, {Y}, reduction='none')[{M}].mean()
    F.cosine_embedding_loss({A}, {B}, torch.ones_like({V}))
    checkpoint(lambda h: F.elu(h @ {W}), {A}, use_reentrant=False).pow(2).mean()
    F.margin_ranking_loss({V}, {V} * 0.5, torch.ones_like({V}))
""")
WRITES = table("""
4 - 0.15
    {A}[{J}] = {s}
    {A}[{J}] = {A}[{J}] * 2
    {A}[{J}] = 0
    {T}[{J}] = {T}[{J}]
3 - 0.12
    {A}[{J}, {c}] = {s}
    {A}[{J}, {cs}] = 1.5
    {A}[:, {c}] = {V}
    {A}[:, {cs}] *= 0.5
2 - 0.12
    {A}[{row}] = {R}
    {A}[{row}, {c}] = {s}
    {A}[{row}][{c}] = {s}
    {A}[{row}] += 1
3 - 0.09
    {A}[{slice}].zero_()
    {A}[{slice}] += {s}
    {A}[{slice}].mul_(0.5)
    {A}[{slice}, {c}] = {s}
2 - 0.09
    part = {A}[{slice}]; part += 1; del part
    part = {A}[:, {c}]; part.fill_({s}); del part
    part = {A}.t(); part[{c}] = {s}; del part
2 - 0.3
    {A}.add_({B})
    {A} += {s} * {B}
    {A}.mul_({V}[:, None])
    {A}.copy_({B})
    {A}.clamp_(-1, 1)
2 - 0.3
    {A}.masked_fill_({M}.unsqueeze(1), {s})
    {A}[{M}] = {B}[{M}]
    {A}[{M}] += 1
2 - 0.09
    {A}.index_add_(0, {ids}, {A}[{ids}] * 0.5)
    {A}.index_fill_(0, {ids}, {s})
    {A}.index_copy_(0, {distinct}, {A}[{distinct}] + 1)
1 - 0.09
    {A}.index_put_(({distinct}, {distinct} % {A}.shape[1]), {A}.new_full((), {s}))
    {A}[{distinct}, {distinct} % {A}.shape[1]] = {s}
1.5 - 0.09
    {A}.index_put_(({ids},), {A}[{ids}] * 0.5, accumulate=True)
    {A}.index_put_(({M},), {A}.new_full((), {s}), accumulate=True)
    {A}.index_put_(({M}, torch.tensor({c})), {A}.new_full((), {s}), accumulate=True)
    {A}.index_put_(({ids}, torch.tensor({c})), {A}.new_full((), {s}))
1 - 0.15
    {A}.addcmul_({A}, {B}, value=0.1)
    {A}.lerp_({B}, 0.3)
    {A}.scatter_add_(1, ({Y} % {A}.shape[1]).unsqueeze(1), {B})
    {A}.scatter_reduce_(1, ({Y} % {A}.shape[1]).unsqueeze(1), {B}, reduce='amax')
    {A}.masked_scatter_({M}[:, None], {B})
1 - 0.09
    {A}.scatter_(1, ({Y} % {A}.shape[1]).unsqueeze(1), {s})
    {A}.unbind(1)[{c}].zero_()
    {A}.split(1, 1)[0].add_(1)
1 - 0.12
    {A}.view(-1, {A}.shape[1])[{row}] = 0
    {A}.fill_({s})
    {A}.zero_()
    {A}.detach()[{J}] = {s}
1 - 0.09
    {A}.data.mul_(0.5)
    {A}.data[{J}] = {s}
    {A}.data += 0.1
    F.relu_({A})
    {A}.narrow(1, 0, 1).zero_()
0.4 - 0.05
    {A}[{A} > {s}] = 0.25
""")
EDITS = table("""
4 -
    mask[{distinct}] = True
    mask[{slice}] = True
    mask[{row}] = False
    mask |= {M}
    mask[{PM}] = True
3 -
    mask.copy_({M})
    mask &= ~data.val_mask
    mask.logical_not_()
    mask[y == {k}] = True
    mask[mask.clone()] = True
2 -
    mask.data[{distinct}] = True
    mask.data.logical_or_({M})
    mask.fill_(True)
    mask[0] = True
3 -
    y[{distinct}] = {k} % 3
    y[mask] = 1
    y.add_(1).remainder_(3)
    y[data.val_mask] = x.argmax(1)[data.val_mask] % 3
2 -
    y.data.fill_(2)
    y.data[{slice}] = 0
    y.copy_({Y})
    y[{row}] = 2
    y[{slice}].zero_()
4 -
    plain_ids.add_(1).remainder_(x.shape[0])
    plain_ids[:] = plain_ids.flip(0)
    plain_mask[{row}] = True
    plain_mask |= {PM}
2 -
    plain_rows.mul_(0.5)
    plain_rows.data.add_(0.1)
1 -
    data.edge_weight.mul_(0.9)
    data.edge_weight.data.add_(0.1)
    data.edge_mask[{edge}] = False
    data.edge_mask.logical_not_()
    data.edge_weight[{edge}] = 0.5
""")
# Autograd of plain tensors reads ids again: gradients are wrong after a change that is not counted.
UNCOUNTED = table("""
2 -
    plain_ids.data[0] = 3
    plain_mask.data.logical_not_(); plain_mask[0] = True
    by_numpy(plain_ids)[:] = 2
    by_numpy(plain_mask)[1:3] = True
""")
# torch ends with a segmentation fault where a hook is registered with a view whose base has changed
# in place, unless something has read the grad_fn of the view since.
GRADIENTS = table("""
3 -
    {L}.backward(retain_graph=True)
    {L}.backward()
    torch.autograd.backward([{L}])
2 K
    torch.autograd.grad({L}, {X}, retain_graph=True)[0].clone()
0.5 K 0.1
    torch.autograd.grad(torch.autograd.grad({L}, {X}, create_graph=True)[0].pow(2).sum(), \
{X}, allow_unused=True)[0]
    torch.autograd.grad({L}, {X}, create_graph=True)[0] * 2
1 P
    torch.autograd.grad({L}, list(model.parameters()), retain_graph=True, allow_unused=True)
1 - 0.1
    {A}.grad_fn; seen = []; {A}.register_hook(lambda g: seen.append(g.sum()))
    {A}.grad_fn; {A}.register_hook(lambda g: g * 0.5)
1 K
    {A}.detach().clone().requires_grad_()
    {A}.detach().requires_grad_()
    torch.zeros_like({A}, requires_grad=True)
0.7 -
    {X}.grad = None
    {X}.grad.zero_()
0.3 - 0.2
    {A}.retain_grad()
""")
EXPRESSIONS = {
    "read": (READS, 5.0),
    "pointwise": (POINTWISE, 4.0),
    "rows": (ROWS, 4.0),
    "reduction": (REDUCTIONS, 3.0),
    "product": (PRODUCTS, 2.0),
    "loss": (LOSSES, 1.5),
    "write": (WRITES, 4.0),
    "edit": (EDITS, 2.0),
    "gradient": (GRADIENTS, 1.5),
}
