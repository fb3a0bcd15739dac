"""The build backend: when it takes a CUDA compiler from pip, and how it points CMake at it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

CMAKE_FILES = Path(__file__).parent.parent / "csrc" / "cmake"
BACKEND = CMAKE_FILES / "build_backend.py"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The backend on a machine with a GPU and no toolkit; scikit-build-core needs one package."""
    package, build = ModuleType("scikit_build_core"), ModuleType("scikit_build_core.build")
    for hook in (
        "build_sdist",
        "get_requires_for_build_sdist",
        "prepare_metadata_for_build_editable",
        "prepare_metadata_for_build_wheel",
    ):
        setattr(build, hook, None)
    build.get_requires_for_build_wheel = lambda config: ["ninja"]  # type: ignore[attr-defined]
    package.build = build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, build.__name__, build)
    for variable in ("PEERGRAPH_PIP_NVCC", "PEERGRAPH_CUDA", "CUDACXX", "LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    module = load(BACKEND)
    monkeypatch.setattr(module, "TOOLKIT_NVCC", Path("/nowhere/nvcc"))
    monkeypatch.setattr(module, "GPU_FILE", Path("/dev/null"))
    return module


def test_takes_nvcc_from_pip_for_a_gpu_without_toolkit(backend: ModuleType) -> None:
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.NVCC_PACKAGES]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PEERGRAPH_PIP_NVCC", "0"), ("PEERGRAPH_CUDA", "off"), ("CUDACXX", "/opt/nvcc")],
)
def test_leaves_nvcc_to_the_user(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert backend.get_requires_for_build_wheel() == ["ninja"]


def test_needs_a_gpu_or_to_be_forced(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "GPU_FILE", Path("/nowhere/nvidiactl"))
    assert not backend.wants_pip_nvcc()
    monkeypatch.setenv("PEERGRAPH_PIP_NVCC", "1")
    assert backend.wants_pip_nvcc()
    monkeypatch.setenv("PEERGRAPH_PIP_NVCC", "yes")
    with pytest.raises(SystemExit, match="must be 0 or 1, not 'yes'"):
        backend.wants_pip_nvcc()


def test_points_cmake_at_the_compiler(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIBRARY_PATH", "/opt/lib")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(SystemExit, match="lacks nvidia-cuda-nvcc"):
        backend.use_pip_nvcc()
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    backend.use_pip_nvcc()
    assert os.environ.pop("CUDACXX") == str(nvcc)
    assert os.environ["LIBRARY_PATH"] == f"{nvcc.parent.parent / 'lib'}:/opt/lib"


@pytest.mark.parametrize("status", [0, 3])
def test_make_shows_the_log_of_a_failed_build(
    backend: ModuleType,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "build_backend", backend)
    make = load(CMAKE_FILES / "make_editable.py")
    make.BUILD = f"print('[1/2] one'); print('what went wrong'); raise SystemExit({status})"
    assert make.build(tmp_path) == status
    out = capsys.readouterr().out
    assert out.startswith("compiling the C++ core")
    assert ("what went wrong" in out) == (status != 0)
    assert "what went wrong" in (tmp_path / "compile.log").read_text()


@pytest.mark.parametrize(
    ("option", "gpu", "reason"),
    [
        ("OFF", "/dev/null", "PEERGRAPH_CUDA was OFF"),
        ("AUTO", "/nowhere/nvidiactl", "no GPU was found"),
        ("AUTO", "/dev/null", "no nvcc was found"),
        ("ON", "/nowhere/nvidiactl", None),
    ],
)
def test_cuda_is_compiled_for_a_gpu_or_if_asked(
    tmp_path: Path, option: str, gpu: str, reason: str | None
) -> None:
    cmake = shutil.which("cmake", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("cmake is not installed")
    script = tmp_path / "script.cmake"
    # No nvcc can be found.
    script.write_text(
        f"set(PEERGRAPH_CUDA {option})\nset(PEERGRAPH_GPU_FILE {gpu})\n"
        "macro(find_program)\nendmacro()\n"
        f'include({CMAKE_FILES / "cuda.cmake"})\nmessage(STATUS "reason: ${{PEERGRAPH_NO_CUDA}}")\n'
    )
    environment = {name: value for name, value in os.environ.items() if name != "CUDACXX"}
    command = [cmake, "-P", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if reason is None:
        assert done.returncode != 0
        assert "PEERGRAPH_CUDA=ON, but there is no nvcc" in done.stderr
    else:
        assert f"reason: {reason}\n" in done.stdout, done.stderr
