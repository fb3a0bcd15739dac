"""Statements about models, their parameters and optimizers; see `statements` for the places."""

from __future__ import annotations

from tests.fullgraph.fuzz.statements import table

PARAMETERS = table("""
3 -
    for p in model.parameters(): p.data.mul_(0.9)
    for p in model.parameters(): p.data.clamp_(-0.3, 0.3)
2 -
    with torch.no_grad(): [p.mul_(0.5).add_(0.1) for p in model.parameters()]
    for p in model.parameters(): p.data = p.data * 0.5
4 -
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 0.7, \
model.parameters())
    model.load_state_dict({n: v * 0.8 if v.is_floating_point() else v for n, v in \
model.state_dict().items()})
4 -
    reset(model, {seed})
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch._foreach_mul_(list(model.parameters()), 0.9)
    for p in model.parameters(): by_numpy(p)[...] *= 0.9
1 -
    teacher = copy.deepcopy(model)
    for a, b in zip(teacher.parameters(), model.parameters()): a.data.mul_(0.5).add_(b.data, \
alpha=0.5)
""")
OPTIMIZERS = table("""
1 P
    OptimizerPair(torch.optim.SGD(model.first.parameters(), lr=0.1), \
torch.optim.Adam(model.second.parameters(), lr=0.05, eps=1e-3))
    torch.optim.Adam([{'params': model.first.parameters(), 'lr': 0.01}, \
{'params': model.second.parameters(), 'weight_decay': 0.1}], lr=0.05, eps=1e-3, {how})
2 P
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
3 P
    torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3, {how})
    torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-3, {how})
1 P
    torch.optim.Adagrad(model.parameters(), lr=0.1, eps=1e-3)
    torch.optim.RMSprop(model.parameters(), lr=0.02, eps=1e-2)
""")
MODULE_HOOKS = table("""
2 -
    model.second.register_forward_hook(lambda m, a, out: out * 0.5)
    model.first.register_forward_pre_hook(lambda m, a: (a[0] * 2, *a[1:]))
1 -
    seen = []; model.second.register_full_backward_hook(lambda m, i, o: seen.append(o[0].sum()))
    model.norm.register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,))
""")
