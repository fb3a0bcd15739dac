"""Statements for programs on DGL graphs and on graphs of two node types.

`statements` explains placeholders such as ``{N}``.
"""

from __future__ import annotations

from tests.fullgraph.fuzz.statements import table

DGL = table("""
1.5 N
    dgl.ops.copy_u_sum(g, {N})
    dgl.ops.copy_u_mean(g, {N})
    dgl.ops.copy_u_max(g, {N})
    dgl.ops.u_mul_e_sum(g, {N}, data.edge_weight)
1 N
    g.out_degrees().double()
    (g.update_all(fn.copy_u('x', 'm'), fn.sum('m', 'out')), g.ndata.pop('out'))[1]
    (g.ndata.update(h={N}), g.update_all(fn.u_mul_e('h', 'edge_weight', 'm'), fn.mean('m', 'o')), \
g.ndata.pop('h'), g.ndata.pop('o'))[3]
1.5 E
    dgl.ops.u_dot_v(g, {N}, {N})
    dgl.ops.edge_softmax(g, dgl.ops.u_dot_v(g, {N}, {N}))
    dgl.ops.u_sub_v(g, {N}, {N})
    (g.apply_edges(lambda e: {'m': e.src['x'] * e.dst['x']}), g.edata.pop('m'))[1]
0.5 P
    dgl.sum_nodes(g, 'x')
    dgl.mean_nodes(g, 'x')
""")
TYPED = table("""
1.5 N
    scatter(z[edges['b', 'of', 'a'][0]], edges['b', 'of', 'a'][1], dim_size=x.shape[0])
    x + scatter(z[edges['b', 'of', 'a'][0]], edges['b', 'of', 'a'][1], dim_size=x.shape[0], \
reduce='mean')
    degree(edges['b', 'of', 'a'][1], x.shape[0]).double()
1.5 Z
    scatter({N}[edges['a', 'at', 'b'][0]], edges['a', 'at', 'b'][1], dim_size=z.shape[0])
    z.tanh()
1 P
    (x.mean(0) @ z.t()).sum()
    (x.mean(0) - z.mean(0)).pow(2).sum()
""")
