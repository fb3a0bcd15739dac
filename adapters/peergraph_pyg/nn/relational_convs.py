"""PyG's RGCNConv and FastRGCNConv: the relations of a homogeneous graph as one operation."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.aggregate import (
    RelationBlocks,
    RelationColumns,
    Structure,
    TracedStructure,
    layers,
    supports,
)
from peergraph.aggregate.layers import without_autocast
from peergraph.fullgraph import PartitionedEdgeIndex
from peergraph.integration import Unsupported, has_static_shapes, is_explaining, note, require

from ..data.batch_structures import attached
from ..data.csc_cache import (
    FINDER,
    cache_key,
    can_be_cached,
    joined_structure,
)
from ..data.lazy_features import is_plain
from ..data.tailed_rows import whole_rows
from .features import Ends, ends_of, kind_of, self_rows, table_rows_or_tensor
from .isolated_rows import with_isolated_rows
from .layer import FastLayer
from .linear_maps import as_in_float32, product_dtype, require_weight
from .partitioned import relation_structures
from .typed_inputs import groups_of, is_edge_index, is_matrix, need_gradients, rows_in_place


class RelationalConv(FastLayer):
    """What both layers have in common."""

    _reads_ids = True
    """Whether ids of sources choose rows of weights; else their numbers do, as PyG has it."""

    def _explained(self, x: Any, edge_index: Tensor, edge_type: Tensor, otherwise: str) -> Tensor:
        """Returns the layer's result; notes for ``explain`` why it is computed otherwise."""
        try:
            return self._joined_relations(x, edge_index, edge_type)
        except Unsupported as reason:
            note(f"forward: {otherwise}, {reason}")
            raise

    def _joined_relations(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Returns the layer's result, of all relations at once; raises Unsupported."""
        raise NotImplementedError

    def _joined(self, x: Any, edge_index: Any, edge_type: Any) -> Tensor:
        """Returns the layer's result without its dtype; raises Unsupported.

        Args:
            x, edge_index, edge_type: as for ``forward``.
        """
        require(not has_static_shapes(), "the batch has a static shape")
        reduce = self._require_settings()
        require(reduce in ("sum", "mean"), f"aggr is {self.aggr}")
        self._require_steps("propagate")
        require(is_edge_index(edge_index), f"edge_index is a {kind_of(edge_index)}")
        typed = is_plain(edge_type) and edge_type.dtype in (torch.int32, torch.int64)
        require(typed and edge_type.shape == edge_index.shape[1:], "types do not fit")
        require(edge_type.device == edge_index.device, "types are on another device")
        require(supports(edge_index.device) and self.num_relations >= 1, "there is no relation")
        require(self.num_blocks is None, "weights are blocks")
        parameters = [self.weight, self.comp, self.root, self.bias]
        there = [each for each in parameters if each is not None]
        plain = all(is_plain(each) and each.device == edge_index.device for each in there)
        require(plain and len({each.dtype for each in there}) == 1, "weights are of other kinds")
        pair = tuple(map(whole_rows, x if isinstance(x, tuple) else (x, x)))
        tensors = all(each is None or isinstance(each, Tensor) for each in pair)
        require(len(pair) == 2 and tensors, f"x is a {kind_of(x)}")
        if pair[0] is None or not pair[0].is_floating_point():
            return self._of_ids(pair, edge_index, edge_type, reduce)
        return self._of_features(pair, edge_index, edge_type, reduce)

    def _weights(self) -> Tensor:
        """Returns [relations, in, out]."""
        if self.num_bases is None:
            return self.weight  # type: ignore[no-any-return]
        shape = self.num_relations, self.in_channels_l, self.out_channels
        weights: Tensor = self.comp @ self.weight.view(self.num_bases, -1)
        return weights.view(shape)

    def _of_features(
        self, pair: tuple[Any, Any], edge_index: Tensor, edge_type: Tensor, reduce: str
    ) -> Tensor:
        device = edge_index.device
        for end, weight in zip(pair, (self.weight, self.root), strict=True):
            fits = is_matrix(end) and end.device == device and end.shape[1] > 0
            require(fits, f"x is a {kind_of(end)}")
            if weight is not None:
                require(weight.shape[-2] == end.shape[1], "weights do not fit")
        dtype = product_dtype(device, self.weight.dtype, *(end.dtype for end in pair))
        if dtype is None:
            raise Unsupported(f"x is {pair[0].dtype}")
        ends = list(pair if pair[1] is not pair[0] and self.root is not None else pair[:1])
        features = [rows_in_place(end, edge_index.shape[1], dtype) for end in ends]
        groups, num_rows = groups_of(features), [len(end) for end in ends]
        own = None if self.root is None else len(ends) - 1
        weights, size = self._weights(), len(pair[1])
        edges = joined_structure(
            [edge_index, edge_type],
            ("edge types", self.num_relations, *num_rows, size, own, *groups),
            lambda _, gradients: _blocks(
                edge_index,
                edge_type,
                self.num_relations,
                num_rows,
                size,
                own,
                groups,
                gradients and need_gradients(features),
            ),
        )
        result = without_autocast(
            lambda: layers.typed_rgcn(
                edges,
                features,
                weights,
                reduce=reduce,
                self_weight=self.root,
                bias=self.bias,
                dtype=dtype,
            )
        )
        if is_explaining():
            relations = f"{self.num_relations} relations in one pass"
            note(f"propagate: peergraph, {reduce} of {relations}, {edges.groups[0].matrix}")
        return with_isolated_rows(result, pair[1])

    def _of_ids(
        self, pair: tuple[Any, Any], edge_index: Tensor, edge_type: Tensor, reduce: str
    ) -> Tensor:
        """Nodes without features: rows of the weights."""
        ids, own = pair
        if own is None:
            own = torch.arange(self.in_channels_l, device=edge_index.device)
        for each in (ids, own):
            is_supported = each is None or (is_plain(each) and each.dim() == 1)
            is_supported = is_supported and (
                each is None or each.dtype in (torch.int32, torch.int64)
            )
            require(is_supported, f"x is a {kind_of(each)}")
            require(each is None or each.device == edge_index.device, "x is on another device")
        sizes = self.in_channels_l if ids is None else len(ids), len(own)
        if not self._reads_ids:
            ids = None
        require(ids is not None or sizes[0] <= self.in_channels_l, "there are more nodes than ids")
        edges = joined_structure(
            [edge_index, edge_type] if ids is None else [edge_index, edge_type, ids],
            ("ids", self.num_relations, self.in_channels_l, *sizes),
            lambda *_: _columns(
                edge_index, edge_type, ids, self.num_relations, self.in_channels_l, *sizes
            ),
        )
        weight = self._weights()
        out = without_autocast(lambda: layers.rgcn_of_ids(edges, weight, reduce=reduce))
        if is_explaining():
            relations = f"{self.num_relations} relations in one pass"
            note(f"propagate: peergraph, {reduce} of {relations}, {edges.matrix}")
        if self.root is not None:
            out = out + self.root[own]
        return out if self.bias is None else out + self.bias


def _blocks(
    edge_index: Tensor,
    edge_type: Tensor,
    num_relations: int,
    num_rows: list[int],
    size: int,
    own: int | None,
    groups: list[int],
    gradients: bool,
) -> RelationBlocks:
    _require_types(edge_type, num_relations)
    return RelationBlocks.of_edge_types(
        edge_index,
        edge_type,
        num_relations,
        num_rows,
        size,
        own,
        groups,
        check=attached(edge_index) is None,
        gradients=gradients,
    )


def _columns(
    edge_index: Tensor,
    edge_type: Tensor,
    ids: Tensor | None,
    num_relations: int,
    num_ids: int,
    num_sources: int,
    num_destinations: int,
) -> RelationColumns:
    _require_types(edge_type, num_relations)
    sizes = num_relations, num_ids, num_sources, num_destinations
    return RelationColumns.of_ids(edge_index, edge_type, ids, *sizes)


def _require_types(edge_type: Tensor, num_relations: int) -> None:
    """Raises Unsupported for types of no relation, whose edges PyG's loop leaves out."""
    if edge_type.numel():
        low, high = map(int, torch.aminmax(edge_type))
        require(low >= 0 and high < num_relations, "there are types of no relation")


class RGCNConv(RelationalConv, pyg.RGCNConv):  # type: ignore[misc]
    """PyG's RGCNConv; sums and means of all relations are one operation.

    Maxima and minima, compiled layers and full graphs over several ranks add the products of the
    relations one by one, as do blocks of weights in PyG's code.
    """

    pyg_class = pyg.RGCNConv

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Any:
        """As PyG's. Structures are kept for as long as `edge_index` and `edge_type` live."""
        partitioned = isinstance(edge_index, PartitionedEdgeIndex)
        is_compiled = torch.compiler.is_compiling() and is_plain(edge_index) and is_plain(edge_type)
        is_supported = partitioned or is_compiled or can_be_cached(edge_index, edge_type)
        if edge_type is None or not is_supported:
            return super().forward(x, edge_index, edge_type)

        def by_loop() -> Any:
            with cache_key("RGCNConv", edge_index, edge_type):
                return self._fused_or_fallback(
                    lambda: self._by_relation(x, edge_index, edge_type),
                    lambda: pyg.RGCNConv.forward(self, x, edge_index, edge_type),
                )

        if partitioned or torch.compiler.is_compiling():
            return by_loop()
        return self._fused_or_fallback(
            lambda: self._explained(x, edge_index, edge_type, "relation by relation"), by_loop
        )

    def _joined_relations(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        by_segments = torch_geometric.backend.use_segment_matmul is not False
        may_multiply = torch_geometric.typing.WITH_SEGMM and by_segments
        require(not may_multiply, "pyg-lib may multiply")
        # PyG adds to zeros of torch's default dtype.
        dtype, default = self.weight.dtype, torch.get_default_dtype()
        require(torch.promote_types(dtype, default) == dtype, f"weights are {dtype}")
        out = self._joined(x, edge_index, edge_type)
        return out if out.dtype == dtype else out.to(dtype)

    def _by_relation(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """PyG's loop over relations, whose products are added as they are made."""
        require(self.num_blocks is None and self.num_relations >= 1, "weights are blocks")
        by_segments = torch_geometric.backend.use_segment_matmul is not False
        may_multiply = torch_geometric.typing.WITH_SEGMM and by_segments
        require(not may_multiply, "pyg-lib may multiply")
        pair = x if isinstance(x, tuple) else (x, x)
        both = len(pair) == 2 and all(isinstance(end, Tensor) for end in pair)
        require(both, "x is not given")
        ends = Ends(*pair)
        reduce = self._require_projection(ends, edge_index)
        # PyG adds products to zeros of float32.
        require(not torch.is_autocast_enabled(ends.x_src.device.type), "there is autocast")
        # PyG starts with zeros of torch's default dtype.
        dtype = ends.x_src.dtype
        wide = torch.promote_types(dtype, torch.get_default_dtype()) == dtype
        require(dtype.is_floating_point and wide, f"x is {dtype}")
        require_weight(self.weight, ends.x_src, 1)
        self_weight = None
        if self.root is not None:
            require_weight(self.root, pair[1], 0)
            self_weight = self.root.t()
        fits = edge_index.dim() == 2 and edge_type.shape == edge_index.shape[1:]
        require(fits, "types do not fit")
        size = (pair[0].shape[0], pair[1].shape[0])
        structures: list[Structure]
        if isinstance(edge_index, PartitionedEdgeIndex):
            self._structure(edge_index, size, ends, None)
            structures = [*relation_structures(edge_index, edge_type, self.num_relations)]
        elif torch.compiler.is_compiling():
            self._structure(edge_index, size, ends, None)
            structures = [
                TracedStructure(
                    FINDER, edge_index, size[1], size[0], edge_type=edge_type, relation=relation
                )
                for relation in range(self.num_relations)
            ]
        else:
            structures = [
                self._structure(edge_index[:, edge_type == relation], size, ends, None)
                for relation in range(self.num_relations)
            ]
        typed = edge_index.shape[1]
        if not torch.compiler.is_compiling():
            typed = sum(csc.num_edges for csc in structures)
            require(typed == edge_index.shape[1], "there are types of no relation")
        weight = self.weight
        if self.num_bases is not None:
            require_weight(self.comp, self.comp, 1)
            flat = self.comp @ weight.view(self.num_bases, -1)
            weight = flat.view(self.num_relations, self.in_channels_l, self.out_channels)
        weights = [each.t() for each in weight.unbind()]
        out = layers.rgcn(
            structures,
            table_rows_or_tensor(ends.x_src, typed),
            weights,
            reduce=reduce,
            self_weight=self_weight,
            self_x=None if self_weight is None else self_rows(ends),
            bias=self.bias,
        )
        for csc in structures:
            if is_explaining():
                note(f"propagate: peergraph, {reduce} over {csc}")
        return out

    def _makes_edges(self) -> bool:
        return True

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        require(kwargs["edge_type_ptr"] is None, "pyg-lib multiplies by segments")
        return ends_of(kwargs["x"]), None


class FastRGCNConv(RelationalConv, pyg.FastRGCNConv):  # type: ignore[misc]
    """PyG's FastRGCNConv; all relations are one operation, without a weight for each edge."""

    pyg_class = pyg.FastRGCNConv
    _reads_ids = False

    def forward(self, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Any:
        """As PyG's. The structure is kept for as long as `edge_index` and `edge_type` live."""

        def by_pyg() -> Any:
            return pyg.FastRGCNConv.forward(self, x, edge_index, edge_type)

        if edge_type is None or not can_be_cached(edge_index, edge_type):
            return by_pyg()
        return self._fused_or_fallback(
            lambda: self._explained(x, edge_index, edge_type, "PyG"), by_pyg
        )

    def _joined_relations(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        require(self.aggr in ("add", "sum", "mean"), f"aggr is {self.aggr}")
        out = self._joined(x, edge_index, edge_type)
        if self.aggr == "mean":
            out = as_in_float32(out)
        # Weights of ids, and biases, are added as they are.
        return out if self.bias is None else out.to(torch.promote_types(out.dtype, self.bias.dtype))

    def _is_compiled(self, step: str | None) -> bool:
        return False

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        raise Unsupported("messages are of several relations")
