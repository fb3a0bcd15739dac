"""scikit-build-core, plus a CUDA compiler from pip where there is a GPU but no toolkit.

PEERGRAPH_PIP_NVCC=1 takes the compiler from pip in any case, 0 never does.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from scikit_build_core import build as backend
from scikit_build_core.build import (  # noqa: F401  (hooks that need nothing added)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

Config = dict[str, "str | list[str]"]

# All of one toolkit release: mixed releases do not compile.
NVCC_PACKAGES = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]
GPU_FILE = Path("/dev/nvidiactl")
TOOLKIT_NVCC = Path("/usr/local/cuda/bin/nvcc")


def wants_pip_nvcc() -> bool:
    forced = os.environ.get("PEERGRAPH_PIP_NVCC")
    if forced is not None:
        if forced not in ("0", "1"):
            raise SystemExit(f"PEERGRAPH_PIP_NVCC must be 0 or 1, not {forced!r}")
        return forced == "1"
    has_nvcc = "CUDACXX" in os.environ or shutil.which("nvcc") or TOOLKIT_NVCC.exists()
    is_off = os.environ.get("PEERGRAPH_CUDA", "").upper() == "OFF"
    return GPU_FILE.exists() and not has_nvcc and not is_off


def use_pip_nvcc() -> None:
    """Points CMake at the nvcc of this build environment, if that is the one to use."""
    if not wants_pip_nvcc():
        return
    roots = [Path(entry) / "nvidia" / "cu13" for entry in sys.path]
    root = next((root for root in roots if (root / "bin" / "nvcc").exists()), None)
    if root is None:
        raise SystemExit(f"the build environment lacks {', '.join(NVCC_PACKAGES)}")
    os.environ["CUDACXX"] = str(root / "bin" / "nvcc")
    # pip's layout has lib, where nvcc looks for lib64.
    libraries = [str(root / "lib"), *filter(None, [os.environ.get("LIBRARY_PATH")])]
    os.environ["LIBRARY_PATH"] = os.pathsep.join(libraries)


def get_requires_for_build_wheel(config_settings: Config | None = None) -> list[str]:
    extra = NVCC_PACKAGES if wants_pip_nvcc() else []
    return backend.get_requires_for_build_wheel(config_settings) + extra


def get_requires_for_build_editable(config_settings: Config | None = None) -> list[str]:
    extra = NVCC_PACKAGES if wants_pip_nvcc() else []
    return backend.get_requires_for_build_editable(config_settings) + extra


def build_wheel(
    wheel_directory: str,
    config_settings: Config | None = None,
    metadata_directory: str | None = None,
) -> str:
    use_pip_nvcc()
    return backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Config | None = None,
    metadata_directory: str | None = None,
) -> str:
    use_pip_nvcc()
    return backend.build_editable(wheel_directory, config_settings, metadata_directory)
