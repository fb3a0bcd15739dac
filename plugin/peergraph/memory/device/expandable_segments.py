"""A setting of torch's allocator that keeps the memory which it reserves close to what is used."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_SETTING = "expandable_segments"


def use_expandable_segments() -> None:
    """Lets torch's allocator grow segments of GPU memory, for all that this process allocates next.

    Tensors of chunks have many sizes. Without this setting torch keeps a block of GPU memory for
    each size: up to twice the bytes of the tensors. Other settings of the user are kept, and so is
    the user's own choice of this setting in ``PYTORCH_ALLOC_CONF``. No effect if torch uses the
    allocator of the driver (``cudaMallocAsync``). The caller has a GPU.
    """
    settings = settings_with_segments(os.environ)
    if settings is None or torch.cuda.get_allocator_backend() != "native":
        return
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # torch >= 2.9
    if set_settings is None:
        set_settings = torch.cuda.memory._set_allocator_settings
    set_settings(settings)


def expand_segments_in_little_memory(device: torch.device) -> None:
    """Lets torch's allocator grow its segments if less than a third of a GPU's memory is free.

    Beside a large store there is no room for a block for each size of a batch: torch would wait for
    the driver to free blocks, and run out of memory with half of what it reserves unused. See
    :func:`use_expandable_segments`.

    Args:
        device: of the rank whose store has been built; any, of which only GPUs count.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 3:
        use_expandable_segments()


def settings_with_segments(environment: Mapping[str, str]) -> str | None:
    """Returns the user's settings of torch's allocator with expandable segments.

    Args:
        environment: environment variables of the process.

    Returns:
        The settings, or None if the user has chosen this setting.
    """
    settings = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    if _SETTING in settings:
        return None
    # torch sets what the text does not name to its default.
    return ",".join(part for part in (settings.strip(" ,"), f"{_SETTING}:True") if part)
