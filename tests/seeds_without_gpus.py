"""Has ``torch.manual_seed`` leave out devices that are not there.

torch would keep the seed for them with the text of the stack, whose files each process reads anew.
"""

from __future__ import annotations

import torch


def _leave_out(seed: int) -> None:
    pass


for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():
        _device.manual_seed_all = _leave_out  # type: ignore[attr-defined]
