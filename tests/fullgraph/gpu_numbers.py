"""Numbers of GPUs that a test takes as ranks."""

import pytest

GPU_NUMBERS = [pytest.param(n, marks=pytest.mark.gpus(n), id=f"{n}-gpus") for n in (1, 2, 4)]
