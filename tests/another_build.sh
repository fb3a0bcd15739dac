#!/usr/bin/env bash
# Compiles the CPU part in a folder of its own and runs tests with it:
#   tests/another_build.sh FOLDER [options of cmake] -- [options of pytest]
# TEST_ENVIRONMENT has variables for the tests alone. What is compiled already is not compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="$PWD/$1" && shift
mkdir -p "$folder"
options=()
while [ "$1" != -- ]; do options+=("$1") && shift; done
shift

python="$PWD/.venv/bin/python"
export PATH="$PWD/.venv/bin:$PATH"
cmake -S csrc -B "$folder" -G Ninja -DPEERGRAPH_CUDA=OFF -DPython_EXECUTABLE="$python" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" "${options[@]}" >"$folder/configure.log" 2>&1 ||
  { cat "$folder/configure.log" && exit 1; }
cmake --build "$folder"

# An environment in which this build comes before the installed one.
mkdir -p "$folder/package"
cp -R plugin/peergraph "$folder/package"
rm -f "$folder"/package/peergraph/_C.*.so # cmake takes a copy of the same second for this build's
cmake --install "$folder" --prefix "$folder/package" >/dev/null
python -m venv --without-pip --clear "$folder/venv"
site="$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
{
  printf '%s\n' "$folder/package" "$PWD/adapters"
  python -c 'import sys; print(*(p for p in sys.path if p.endswith("site-packages")), sep="\n")'
} >"$site/build.pth"
# shellcheck disable=SC2086  # several variables
env ${TEST_ENVIRONMENT:-} "$folder/venv/bin/python" -m pytest "$@"
