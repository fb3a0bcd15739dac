"""Names that are private to another library: each is listed, with an object that must have it.

The list is gone through in every environment of tests/versions.py, so that a release which lacks
one is told of here, and not by a layer at work.
"""

from __future__ import annotations

import ast
import inspect
import multiprocessing.util
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.named_case import named_case

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "torch_geometric", "dgl")
# Of Python itself, which documents them.
PYTHONS = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_replace"}


def own_and_used() -> tuple[set[str], set[str]]:
    """Private names that our modules give to something, and those that they ask for."""
    own, used = set(), set()
    for path in [*ROOT.glob("plugin/**/*.py"), *ROOT.glob("adapters/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute):
                is_ours = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in (
                    "self",
                    "cls",
                )
                (own if is_ours else used).add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                used.update(_imported(node))
    return own, {name for name in used if name.startswith("_") and not name.startswith("__")}


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    module = node.module or ""
    if node.level == 0 and module.split(".")[0] in LIBRARIES:
        for alias in node.names:
            yield from f"{module}.{alias.name}".split(".")


def _geometric(path: str) -> Callable[[], Any]:
    def find() -> Any:
        pyg = pytest.importorskip("torch_geometric")
        from torch_geometric.nn.models import GraphSAGE

        data = pyg.data.Data(x=torch.ones(1), edge_index=torch.zeros(2, 1, dtype=torch.int64))
        return {
            "data": data,
            "storage": data._store,
            "graph store": pyg.data.HeteroData(),
            "hetero": pyg.data.HeteroData(),
            "layer": pyg.nn.SAGEConv(1, 1),
            "model": GraphSAGE(1, 1, 2),
            "clusters": pyg.loader.ClusterData,
            "utils": pyg.utils,
        }[path]

    return find


def _dgl(path: str) -> Callable[[], Any]:
    def find() -> Any:
        pytest.importorskip("peergraph_dgl", exc_type=ImportError)  # DGL alone asks for GraphBolt
        import dgl
        from dgl.nn.pytorch import GATConv, GINConv, GraphConv, SAGEConv

        graph = dgl.graph((torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)))
        return {
            "graph": graph,
            "frame": graph._node_frames[0],
            "frames": dgl.frame,
            "nodes": graph.nodes,
            "index": dgl.heterograph_index,
            "pickled": graph._graph,
            "attention": GATConv(1, 1, 1),
            "convolution": GraphConv(1, 1),
            "gin": GINConv(None, "sum"),
            "sage": SAGEConv(1, 1, "mean"),
        }[path]

    return find


def _torch(path: str) -> Callable[[], Any]:
    def find() -> Any:
        value: Any = torch
        for name in path.split(".")[1:]:
            value = getattr(value, name)
        return value

    return find


def _of_newer_torch(name: str) -> Callable[[], Any]:
    """An operation that is used where there is one."""
    return lambda: (
        torch.ops.aten if hasattr(torch.ops.aten, name) else SimpleNamespace(**{name: None})
    )


def _of_frames(name: str) -> Any:
    """torch's module, where torch can be told not to compile a function."""
    frames = torch._C._dynamo.eval_frame
    newer = hasattr(frames, "set_code_exec_strategy")
    return frames if newer else SimpleNamespace(**{name: None})


def _with_cuda(name: str) -> Any:
    """torch's module, where torch is compiled for GPUs."""
    return torch._C if torch.version.cuda else SimpleNamespace(**{name: None})


def _of_distributed(name: str) -> Any:
    """What DistributedDataParallel's constructor makes; to call it takes a process group."""
    source = inspect.getsource(torch.nn.parallel.DistributedDataParallel.__init__)
    return SimpleNamespace(**({name: None} if f"self.{name}" in source else {}))


def _of_scaler(name: str) -> Any:
    """What a scaler's step asks of an optimizer, which has it only if it is fused."""
    source = inspect.getsource(torch.amp.GradScaler.step)
    return SimpleNamespace(**({name: None} if name in source else {}))


TENSOR, MODULE = _torch("torch.Tensor"), lambda: torch.nn.Linear(1, 1)
LOADER = lambda: iter(torch.utils.data.DataLoader([1]))  # noqa: E731
SCALER = lambda: torch.amp.GradScaler("cpu")  # noqa: E731
KNOWN: dict[str, Callable[[], Any]] = {
    "_BatchNorm": _torch("torch.nn.modules.batchnorm"),
    "_C": _torch("torch"),
    "_conj": _torch("torch.ops.aten"),
    "_comm_hooks": lambda: _of_distributed("_comm_hooks"),
    "_delay_all_reduce_params": lambda: _of_distributed("_delay_all_reduce_params"),
    "_DropoutNd": _torch("torch.nn.modules.dropout"),
    "_EnableTorchFunction": _torch("torch._C"),
    "_FrameAction": lambda: _of_frames("_FrameAction"),
    "_FrameExecStrategy": lambda: _of_frames("_FrameExecStrategy"),
    "_VariableFunctions": _torch("torch._C"),
    "_are_functorch_transforms_active": _torch("torch._C"),
    "_autograd": _torch("torch._C"),
    "_backward_cls": _torch("torch.autograd.Function"),
    "_backward_hooks": MODULE,
    "_backward_pre_hooks": MODULE,
    "_cdata": lambda: torch.ones(1).untyped_storage(),
    "_dataset_fetcher": LOADER,
    "_cuda_getCurrentRawStream": lambda: _with_cuda("_cuda_getCurrentRawStream"),
    "_current_graph_task_id": _torch("torch._C"),
    "_current_level": _torch("torch.autograd.forward_ad"),
    "_disable_current_modes": _torch("torch.utils._python_dispatch"),
    "_disabled_torch_function_impl": _torch("torch._C"),
    "_flush_std_streams": lambda: multiprocessing.util,
    "_forward_hooks": MODULE,
    "_forward_pre_hooks": MODULE,
    "_foreach_copy_": _torch("torch"),
    "_functorch": _torch("torch._C"),
    "_fused_rms_norm": _of_newer_torch("_fused_rms_norm"),
    "_fused_rms_norm_backward": _of_newer_torch("_fused_rms_norm_backward"),
    "_get_current_dispatch_mode_stack": _torch("torch.utils._python_dispatch"),
    "_get_backend": _torch("torch.distributed.ProcessGroup"),
    "_get_iterator": _torch("torch.utils.data.DataLoader"),
    "_get_default_store": _torch("torch.distributed.distributed_c10d"),
    "_global_backward_hooks": _torch("torch.nn.modules.module"),
    "_global_backward_pre_hooks": _torch("torch.nn.modules.module"),
    "_global_forward_hooks": _torch("torch.nn.modules.module"),
    "_global_forward_pre_hooks": _torch("torch.nn.modules.module"),
    "_has_storage": _torch("torch._C"),
    "_index_put_impl_": _torch("torch.ops.aten"),
    "_int_mm": _torch("torch"),
    "_is_all_true": _torch("torch.ops.aten"),
    "_is_any_true": _torch("torch.ops.aten"),
    "_is_profiler_enabled": _torch("torch.autograd.profiler"),
    "_is_view": TENSOR,
    "_is_zerotensor": TENSOR,
    "_len_torch_dispatch_stack": _torch("torch._C"),
    "_local_scalar_dense": _torch("torch.ops.aten"),
    "_log_softmax": _torch("torch.ops.aten"),
    "_log_softmax_backward_data": _torch("torch.ops.aten"),
    "_make_wrapper_subclass": TENSOR,
    "_native_batch_norm_legit": _torch("torch.ops.aten"),
    "_ops": _torch("torch"),
    "_python_dispatch": _torch("torch.utils"),
    "_pop_saved_tensors_default_hooks": _torch("torch._C._autograd"),
    "_push_saved_tensors_default_hooks": _torch("torch._C._autograd"),
    "_pytree": _torch("torch.utils"),
    "_reduction": _torch("torch.nn"),
    "_reshape_alias": lambda: torch.ops.aten,
    "_sampler_iter": LOADER,
    "_scale": SCALER,
    "_growth_tracker": SCALER,
    "_step_supports_amp_scaling": lambda: _of_scaler("_step_supports_amp_scaling"),
    "_SingleProcessDataLoaderIter": _torch("torch.utils.data.dataloader"),
    "_set_throw_on_mutable_data_ptr": _torch("torch._C"),
    "_SetExcludeDispatchKeyGuard": _torch("torch._C"),
    "_set_allocator_settings": _torch("torch.cuda.memory"),
    "_schema": lambda: torch.ops.aten.add.Tensor,
    "_softmax": _torch("torch.ops.aten"),
    "_softmax_backward_data": _torch("torch.ops.aten"),
    "_sparse_addmm": _torch("torch.ops.aten"),
    "_sparse_mm": _torch("torch.ops.aten"),
    "_top_saved_tensors_default_hooks": _torch("torch._C._autograd"),
    "_unsafe_preserve_version_counter": _torch("torch.autograd"),
    "_unsafe_view": lambda: torch.ops.aten,
    "_dispatch_has_kernel_for_dispatch_key": _torch("torch._C"),
    "_dispatch_key_parse": _torch("torch._C"),
    "_dynamo": _torch("torch._C"),
    "_edge_attr_cls": _geometric("graph store"),
    "_edge_store_dict": _geometric("hetero"),
    "_node_store_dict": _geometric("hetero"),
    "_global_store": _geometric("hetero"),
    "_lift": _geometric("layer"),
    "_mapping": _geometric("storage"),
    "_parent": _geometric("storage"),
    "_partition": _geometric("clusters"),
    "_set_size": _geometric("layer"),
    "_tensor_attr_cls": _geometric("data"),
    "_to_canonical": _geometric("hetero"),
    "_trim": _geometric("model"),
    "_trim_to_layer": _geometric("utils"),
    "_CAPI_DGLCreateHeteroPickleStates": _dgl("index"),
    "_CAPI_DGLHeteroEdges": _dgl("index"),
    "_CAPI_DGLHeteroForkingPickle": _dgl("index"),
    "_CAPI_DGLHeteroForkingUnpickle": _dgl("index"),
    "_CAPI_DGLHeteroGetAdj": _dgl("index"),
    "_CAPI_DGLHeteroGetCreatedFormats": _dgl("index"),
    "_LazyIndex": _dgl("frames"),
    "_activation": _dgl("convolution"),
    "_aggre_type": _dgl("sage"),
    "_aggregator_type": _dgl("gin"),
    "_allow_zero_in_degree": _dgl("attention"),
    "_batch_num_edges": _dgl("graph"),
    "_batch_num_nodes": _dgl("graph"),
    "_default_initializer": _dgl("frame"),
    "_columns": _dgl("frame"),
    "_in_feats": _dgl("convolution"),
    "_in_src_feats": _dgl("sage"),
    "_initializers": _dgl("frame"),
    "_norm": _dgl("convolution"),
    "_num_heads": _dgl("attention"),
    "_out_feats": _dgl("attention"),
    "_typeid_getter": _dgl("nodes"),
}
# Ours: given to an index that a child process is to have, and to the rows of a sample.
WRITTEN = {"_forking_pk_state", "_peergraph_csc"}


def test_all_are_listed() -> None:
    own, used = own_and_used()
    # A name that is also ours, of something else, is not looked for.
    assert used - own - PYTHONS - WRITTEN == set(KNOWN) - own


def test_objects_have_them() -> None:
    for name, find in KNOWN.items():
        # Objects of a library that is not installed are skipped.
        with named_case(name), suppress(pytest.skip.Exception):
            assert hasattr(find(), name)
