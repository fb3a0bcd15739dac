"""PyG's layers, with messages that are reduced where they are made.

Constructors, attributes, ``state_dict`` and ``forward`` are PyG's own code. Of several neighbours
with the same extremum (``aggr="max"`` or ``"min"``) the first has the gradient, where PyG divides
it among them on some devices.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.aggregate import Csc, g_sddmm, g_spmm, message, spmm_add_self
from peergraph.integration import Unsupported, note

from ..data.lazy_features import gathered
from .degrees import degrees_of, normalised_sum, weighs_edges, weighted_sum, weights_of
from .layer import (
    Ends,
    FastLayer,
    Size,
    can_be_kept,
    ends_of,
    is_plain,
    kind_of,
    known_by,
    refuse,
    without_autocast,
)
from .projected import are_first_rows, check_projection, check_weight, project, run
from .structure import derived_from

# Values of messages from which on writing them costs more than a transpose.
_MANY = 1 << 28


class SAGEConv(FastLayer, pyg.SAGEConv):  # type: ignore[misc]
    """PyG's SAGEConv; aggr "mean", "sum", "add", "max" or "min" runs on Peergraph."""

    pyg_class = pyg.SAGEConv

    def forward(self, x: Any, edge_index: Any, size: Size = None) -> Any:
        """As PyG's; where nothing looks at the products of the two maps, they add up as made."""

        def at_once() -> Tensor:
            refuse(self.project, "features are projected before")
            refuse(not self.root_weight, "there is no own term")
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            out = project(self, ends, edge_index, size, self.lin_l, self.lin_r)
            return F.normalize(out, p=2.0, dim=-1) if self.normalize else out

        return self._at_once(at_once, lambda: pyg.SAGEConv.forward(self, x, edge_index, size))


class GCNConv(FastLayer, pyg.GCNConv):  # type: ignore[misc]
    """PyG's GCNConv; without weights of edges, rows of dense graphs are scaled instead of edges.

    With weights, or ``cached=True``, normalisation and its cache are PyG's.
    """

    pyg_class = pyg.GCNConv

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """As PyG's. Structure and degrees are kept for as long as `edge_index` lives."""
        if edge_weight is None and self.normalize and not self.cached:
            return self._either(
                "forward",
                lambda: self._by_degrees(x, edge_index),
                lambda: self._by_weights(x, edge_index, None),
            )
        return self._by_weights(x, edge_index, edge_weight)

    def _by_degrees(self, x: Any, edge_index: Any) -> Tensor:
        refuse(self._check_settings(by_columns=True) != "sum", f"aggr is {self.aggr}")
        self._check_steps("propagate")
        refuse(not isinstance(x, Tensor), f"x is a {kind_of(x)}")
        csc = self._structure(edge_index, None, Ends(x, None), None)
        refuse(csc.num_destinations != csc.num_sources, f"there is {csc}")
        degrees = degrees_of(csc, edge_index, self.add_self_loops, x.dtype)
        h = self.lin(x)
        if weighs_edges(csc, x.dtype):
            how, weights = "edges weighted", weights_of(csc, edge_index, degrees)
            out = without_autocast(lambda: weighted_sum(csc, weights, h, self.bias))
        else:
            how = "rows scaled"
            out = without_autocast(lambda: normalised_sum(csc, degrees, h, self.bias))
        note(f"forward: peergraph, sum over {csc}, {how} by the degrees")
        return out

    def _by_weights(self, x: Any, edge_index: Any, edge_weight: Tensor | None) -> Any:
        # What cached=True keeps may come from another edge index than this one.
        changes = self.normalize and self.add_self_loops and not self.cached
        with known_by(edge_index, "GCNConv", changes):
            return super().forward(x, edge_index, edge_weight)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return _weighted(kwargs)


class GINConv(FastLayer, pyg.GINConv):  # type: ignore[misc]
    """PyG's GINConv."""

    pyg_class = pyg.GINConv

    def forward(self, x: Any, edge_index: Any, size: Size = None) -> Any:
        """As PyG's; the own term is added to the sums where they are."""

        def at_once() -> Tensor:
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            refuse(self._check_settings() != "sum", f"aggr is {self.aggr}")
            self._check_steps("propagate")
            refuse(not are_first_rows(ends.x_dst, ends.x_src), "destinations are other rows")
            refuse(ends.x_src.dim() != 2, f"x is {list(ends.x_src.shape)}")
            csc = self._structure(edge_index, size, ends, None)
            out = without_autocast(lambda: spmm_add_self(csc, ends.x_src, 1 + self.eps))
            note(f"propagate: peergraph, sum over {csc}")
            return out

        def in_steps() -> Tensor:
            result: Tensor = pyg.GINConv.forward(self, x, edge_index, size)
            return result

        return self._at_once(lambda: self.nn(at_once()), in_steps)


class GINEConv(FastLayer, pyg.GINEConv):  # type: ignore[misc]
    """PyG's GINEConv; where CuPy is there, in one compiled kernel.

    Else, and over the structure of one mini-batch, sums are written and what relu leaves of them.
    """

    pyg_class = pyg.GINEConv

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Size = None
    ) -> Any:
        """As PyG's; the own term is added in one pass."""
        pair = (x, x) if isinstance(x, Tensor) else x
        if torch.compiler.is_compiling() or not is_plain(pair[1]):
            return super().forward(x, edge_index, edge_attr, size)
        out = self.propagate(edge_index, x=pair, edge_attr=edge_attr, size=size)
        return self.nn(torch.addcmul(out, pair[1], 1 + self.eps))

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        x, edge_attr = ends_of(kwargs["x"]), kwargs["edge_attr"]
        refuse(edge_attr is None or x.x_src.dim() != 2, "there are no edge features")
        return x, edge_attr

    def _aggregate(self, csc: Csc, reduce: str, x: Tensor, e: Tensor | None) -> Tensor:
        assert e is not None
        width = self.lin.out_channels if self.lin is not None else e.shape[-1]
        if e.dim() != 2 or width != x.shape[-1]:  # PyG says what is wrong.
            sources = without_autocast(lambda: g_sddmm(csc, "copy", gathered(x)))
            messages = self.message(sources, e)
        else:
            e = e if self.lin is None else self.lin(e)
            dtype = torch.promote_types(x.dtype, e.dtype)
            rows, edges = gathered(x).to(dtype), e.to(dtype)
            fused = message("relu(u + e)", reduce)
            # It runs over the transpose, which structures that serve once have not.
            often = not csc.transient or rows.shape[1] * csc.num_edges >= _MANY
            if fused.is_fused(csc) and often:
                note("messages: one compiled kernel, never written")
                return without_autocast(lambda: fused(csc, u=rows, e=edges))
            sums = without_autocast(lambda: g_sddmm(csc, "add", rows, edges, "u", "e"))
            messages = sums.relu()
        return without_autocast(lambda: g_spmm(csc, "copy_e", reduce, e=messages))


class GraphConv(FastLayer, pyg.GraphConv):  # type: ignore[misc]
    """PyG's GraphConv."""

    pyg_class = pyg.GraphConv

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        size: Size = None,
    ) -> Any:
        """As PyG's; where nothing looks at the products of the two maps, they add up as made."""

        def at_once() -> Tensor:
            refuse(edge_weight is not None, "there are weights")
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            return project(self, ends, edge_index, size, self.lin_rel, self.lin_root)

        def in_steps() -> Tensor:
            result: Tensor = pyg.GraphConv.forward(self, x, edge_index, edge_weight, size)
            return result

        return self._at_once(at_once, in_steps)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return _weighted(kwargs)


class RGCNConv(FastLayer, pyg.RGCNConv):  # type: ignore[misc]
    """PyG's RGCNConv; the structure of each relation is kept."""

    pyg_class = pyg.RGCNConv

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Any:
        """As PyG's. Structures are kept for as long as `edge_index` and `edge_type` live."""
        if edge_type is not None and can_be_kept(edge_index, edge_type):
            with derived_from("RGCNConv", edge_index, edge_type):
                return self._at_once(
                    lambda: self._by_relation(x, edge_index, edge_type),
                    lambda: pyg.RGCNConv.forward(self, x, edge_index, edge_type),
                )
        return super().forward(x, edge_index, edge_type)

    def _by_relation(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """PyG's loop over relations, whose products add up as they are made; raises Unsupported."""
        refuse(self.num_blocks is not None or self.num_relations < 1, "weights are blocks")
        by_segments = torch_geometric.backend.use_segment_matmul is not False
        refuse(torch_geometric.typing.WITH_SEGMM and by_segments, "pyg-lib may multiply")
        pair = x if isinstance(x, tuple) else (x, x)
        refuse(len(pair) != 2 or any(not isinstance(end, Tensor) for end in pair), "x is not given")
        ends = Ends(*pair)
        reduce = check_projection(self, ends, edge_index)
        # PyG starts with zeros of torch's default dtype.
        dtype = ends.x_src.dtype
        wide = torch.promote_types(dtype, torch.get_default_dtype()) == dtype
        refuse(not dtype.is_floating_point or not wide, f"x is {dtype}")
        check_weight(self.weight, ends.x_src, 1)
        self_weight = None
        if self.root is not None:
            check_weight(self.root, pair[1], 0)
            self_weight = self.root.t()
        refuse(edge_index.dim() != 2 or edge_type.shape != edge_index.shape[1:], "types do not fit")
        size = (pair[0].shape[0], pair[1].shape[0])
        structures = [
            self._structure(edge_index[:, edge_type == relation], size, ends, None)
            for relation in range(self.num_relations)
        ]
        typed = sum(csc.num_edges for csc in structures)
        refuse(typed != edge_index.shape[1], "there are types of no relation")
        weight = self.weight
        if self.num_bases is not None:
            check_weight(self.comp, self.comp, 1)
            flat = self.comp @ weight.view(self.num_bases, -1)
            weight = flat.view(self.num_relations, self.in_channels_l, self.out_channels)
        matrices = [each.t() for each in weight.unbind()]
        return run(structures, reduce, ends, matrices, self_weight, self.bias)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        if kwargs["edge_type_ptr"] is not None:
            raise Unsupported("pyg-lib multiplies by segments")
        return ends_of(kwargs["x"]), None


def _weighted(kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
    """A number for each edge, which PyG takes as [edges] or as [edges, 1]."""
    x, weight = ends_of(kwargs["x"]), kwargs["edge_weight"]
    if weight is None:
        return x, None
    refuse(not is_plain(weight) or x.x_src.dim() != 2, "there are weights and more than features")
    return x, weight.reshape(-1)
