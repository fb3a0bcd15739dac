"""Functions of lists of tensors, as optimizers call them with ``foreach=True``: one by one."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.registry import Rule, function_rule

_OTHERS: dict[str, Rule] = {
    "maximum_": lambda x, other: x.copy_(torch.maximum(x, other)),
    "minimum_": lambda x, other: x.copy_(torch.minimum(x, other)),
    "norm": torch.linalg.vector_norm,
}


def _one_by_one(name: str, function: Rule) -> Rule:
    """Returns the rule of ``torch._foreach_NAME``."""

    def run(*lists: Any, **options: Any) -> Any:
        first = next(part for part in lists if isinstance(part, (list, tuple)))
        results = []
        for place in range(len(first)):
            args = [part[place] if isinstance(part, (list, tuple)) else part for part in lists]
            keywords = dict(options)
            if name.startswith("addc") and len(args) > 3:
                keywords["value"] = args.pop()
            results.append(function(*args, **keywords))
        return lists[0] if name.endswith("_") else results

    return run


def _refuse_fused(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "optimizers with fused=True do not update partitioned rows: pass fused=False (or None)"
    )


for _name in dir(torch):
    _base = _name.removeprefix("_foreach_")
    _in_place = getattr(Tensor, _base, None) if _base.endswith("_") else getattr(torch, _base, None)
    _function = _OTHERS.get(_base, _in_place)
    if _base != _name and _function is not None:
        function_rule(getattr(torch, _name), anywhere=True)(_one_by_one(_base, _function))
    elif _name in ("_fused_adam_", "_fused_adamw_", "_fused_adagrad_", "_fused_sgd_"):
        function_rule(getattr(torch, _name), anywhere=True)(_refuse_fused)
