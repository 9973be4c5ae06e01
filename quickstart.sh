#!/bin/sh
# Sets up fp8lab on a fresh Debian 12 machine, then runs the default study (no argument) or the
# tests ("test"). Asks nothing; needs a network only where a distribution package is missing.
set -eu
cd "$(dirname "$0")"

packages="g++ cmake ninja-build make libboost-program-options-dev libeigen3-dev libfmt-dev
libtomlplusplus-dev nlohmann-json3-dev libhdf5-dev libxxhash-dev catch2 libmpfr-dev libopenblas-dev
python3 python3-numpy python3-h5py python3-matplotlib python3-scipy python3-jinja2 python3-pytest
python3-nbclient python3-ipykernel python3-dev pybind11-dev"

install_missing() {
  missing=""
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  echo "quickstart: installing$missing"
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "quickstart: not root and no sudo; install these packages first:$missing" >&2
      exit 1
    }
    as_root="sudo"
  fi
  $as_root apt-get update -qq
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $missing >/dev/null
}

build() {
  preset=cpu-release
  build_dir=build/$preset
  if command -v nvcc >/dev/null 2>&1; then
    preset=cuda-sm90a
    build_dir=build/$preset
  fi
  echo "quickstart: building ($preset)"
  cmake --preset "$preset" >"configure.log" 2>&1 || {
    cat configure.log >&2
    exit 1
  }
  grep 'fp8lab:' configure.log || true
  rm -f configure.log
  cmake --build "$build_dir"
}

install_missing
build
case "${1:-study}" in
  test)
    # Two tests at a time share the processors: idle threads must not spin.
    export OMP_WAIT_POLICY=passive
    exec ctest --test-dir "$build_dir" -L '^(ci|exhaustive)$' --output-on-failure -j "$(nproc)"
    ;;
  study)
    "$build_dir/src/fp8lab" ablate --study experiments/studies/quickstart.toml --out runs/quickstart
    "$build_dir/src/fp8lab" report runs/quickstart --out runs/quickstart/report
    echo "quickstart: open runs/quickstart/report/index.html"
    ;;
  *)
    echo "usage: ./quickstart.sh [test]" >&2
    exit 2
    ;;
esac
