"""Where a test of several ranks runs: on the CPU, and on GPUs."""

import pytest


def cpu_and_gpus(count: int) -> pytest.MarkDecorator:
    """Runs a test on the CPU, then on so many GPUs, by its argument `device_type`."""
    gpus = pytest.param("cuda", marks=pytest.mark.gpus(count), id=f"{count}-gpus")
    return pytest.mark.parametrize("device_type", ["cpu", gpus])
