"""The modes of torch that matter to a batch; each thread has its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Modes:
    """Those of the thread that made this, for another one to enter."""

    grad: bool
    inference: bool
    device: torch.device
    autocast: dict[str, torch.dtype]
    """By the type of a device for which it is on."""

    @classmethod
    def current(cls) -> Modes:
        """Those of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_device(),
            {
                kind: torch.get_autocast_dtype(kind)
                for kind in ("cpu", "cuda")
                if torch.is_autocast_enabled(kind)
            },
        )

    def enter(self, stack: ExitStack) -> None:
        """Has this thread work in them, until the stack is left."""
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        if self.device.type != "cpu":
            stack.enter_context(self.device)
        for kind, dtype in self.autocast.items():
            # Weights that were cast once would be handed from stream to stream unordered.
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
