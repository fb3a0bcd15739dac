"""Numbers of CPU ranks and of GPUs that a test takes as ranks."""

import pytest

GPU_NUMBERS = [pytest.param(n, marks=pytest.mark.gpus(n), id=f"{n}-gpus") for n in (1, 2, 4)]


def each_place(*numbers: int) -> pytest.MarkDecorator:
    """Runs a test with `world_size` CPU ranks, then GPUs, of the `device_type`."""
    cpus = [pytest.param(n, "cpu", id=str(n)) for n in numbers]
    gpus = [pytest.param(*p.values, "cuda", marks=p.marks, id=p.id) for p in GPU_NUMBERS]
    return pytest.mark.parametrize(("world_size", "device_type"), [*cpus, *gpus])
