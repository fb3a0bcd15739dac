"""The optimizers of embeddings: torch's for sparse gradients, with the same arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import peergraph._C as _C
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.embedding.sparse_optimizer import SparseOptimizer, non_negative, not_supported

Embeddings = Embedding | Iterable[Embedding] | Iterable[dict[str, Any]]


class SparseSGD(SparseOptimizer):
    """``torch.optim.SGD`` on the rows that have gradients.

    Momentum and weight decay would change rows without gradients: they raise NotImplementedError.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        reduce: str = "mean",
    ) -> None:
        """Collective.

        Args:
            embeddings: an embedding, several, or dicts ``{"params": embeddings, "lr": ...}``.
            lr, maximize: as in torch.
            momentum, dampening, weight_decay, nesterov: must be 0 or False.
            reduce: the way to combine the ranks' gradients of a row: ``"mean"``, the sum divided by
                the number of ranks as in DistributedDataParallel, or ``"sum"``.
        """
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(embeddings, defaults, reduce)

    def _check(self, group: dict[str, Any]) -> None:
        non_negative(lr=group["lr"])
        names = ("momentum", "dampening", "weight_decay", "nesterov")
        not_supported(**{name: group[name] for name in names})

    def _rule(self, group: dict[str, Any], step: int, grad_scale: float) -> _C.UpdateRule:
        return _C.UpdateRule(
            optimizer=_C.Optimizer.sgd, step_size=float(group["lr"]), grad_scale=grad_scale
        )


class SparseAdagrad(SparseOptimizer):
    """``torch.optim.Adagrad`` on the rows that have gradients. The state is one value per element.

    Weight decay is not supported for sparse gradients, as in torch: it raises NotImplementedError.
    """

    _state_names: ClassVar[tuple[str, ...]] = ("sum",)

    def __init__(
        self,
        embeddings: Embeddings,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        reduce: str = "mean",
    ) -> None:
        """Collective: allocates the state.

        Args:
            embeddings, reduce: as for :class:`SparseSGD`.
            lr, lr_decay, initial_accumulator_value, eps, maximize: as in torch.
            weight_decay: must be 0.
        """
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
        }
        super().__init__(embeddings, defaults, reduce)

    def _check(self, group: dict[str, Any]) -> None:
        names = ("lr", "lr_decay", "initial_accumulator_value", "eps")
        non_negative(**{name: group[name] for name in names})
        not_supported(weight_decay=group["weight_decay"])

    def _first_value(self, group: dict[str, Any]) -> float:
        return float(group["initial_accumulator_value"])

    def _rule(self, group: dict[str, Any], step: int, grad_scale: float) -> _C.UpdateRule:
        return _C.UpdateRule(
            optimizer=_C.Optimizer.adagrad,
            step_size=float(group["lr"]) / (1 + (step - 1) * group["lr_decay"]),
            grad_scale=grad_scale,
            eps=group["eps"],
        )


class SparseAdam(SparseOptimizer):
    """``torch.optim.SparseAdam``: moments of a row change only when it has gradients; bias
    correction uses the number of steps of the table. The state is two values per element.
    """

    _state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        embeddings: Embeddings,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
        *,
        reduce: str = "mean",
    ) -> None:
        """Collective: allocates the state.

        Args:
            embeddings, reduce: as for :class:`SparseSGD`.
            lr, betas, eps, maximize: as in torch.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize}
        super().__init__(embeddings, defaults, reduce)

    def _check(self, group: dict[str, Any]) -> None:
        non_negative(lr=group["lr"])
        if not group["eps"] > 0.0:
            raise ValueError(f"eps must be positive, got {group['eps']}")
        for i, beta in enumerate(group["betas"]):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"betas[{i}] must be in [0, 1), got {beta}")

    def _rule(self, group: dict[str, Any], step: int, grad_scale: float) -> _C.UpdateRule:
        beta1, beta2 = group["betas"]
        correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
        return _C.UpdateRule(
            optimizer=_C.Optimizer.adam,
            step_size=float(group["lr"]) * correction,
            grad_scale=grad_scale,
            eps=group["eps"],
            beta1=beta1,
            beta2=beta2,
        )


STATE_NAMES = {kind.__name__: kind._state_names for kind in (SparseSGD, SparseAdagrad, SparseAdam)}
"""Names of the state tensors, by the optimizer's name."""
