#!/bin/sh
# Sets up fp8lab on a fresh Debian 12 machine. Asks nothing; needs a network only where a
# distribution package is missing.
#   ./quickstart.sh          builds the program, runs the default study, writes its report
#   ./quickstart.sh build    builds the program
#   ./quickstart.sh test     builds everything and runs the tests
# The program is built for this processor's best instruction set, with CUDA code where a GPU and
# nvcc are found; FP8LAB_CUDA=ON or OFF decides otherwise. The tests are built for all instruction
# sets, with CUDA code wherever nvcc is.
set -eu
cd "$(dirname "$0")"
action="${1:-study}"

packages="g++ cmake ninja-build libboost-program-options-dev libeigen3-dev libfmt-dev
libtomlplusplus-dev nlohmann-json3-dev libhdf5-dev libxxhash-dev libzip-dev"
report_packages="python3 python3-numpy python3-h5py python3-matplotlib python3-scipy python3-jinja2"
test_packages="make catch2 libboost-context-dev libmpfr-dev libopenblas-dev python3-pytest python3-nbclient
python3-ipykernel python3-mistune python3-dev pybind11-dev"

install_missing() {
  missing=""
  for package in "$@"; do
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

# build PRESET OPTION...
build() {
  preset=$1
  shift
  build_dir=build/$preset
  echo "quickstart: building ($preset)"
  cmake --preset "$preset" "$@" >"configure.log" 2>&1 || {
    cat configure.log >&2
    exit 1
  }
  grep 'fp8lab:' configure.log || true
  rm -f configure.log
  cmake --build "$build_dir"
}

build_program() {
  cuda=OFF
  if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then cuda=ON; fi
  build program "-DFP8LAB_CUDA=${FP8LAB_CUDA:-$cuda}"
}

# shellcheck disable=SC2086
case "$action" in
  build)
    install_missing $packages
    build_program
    echo "quickstart: the program is $build_dir/src/fp8lab"
    ;;
  study)
    install_missing $packages $report_packages
    build_program
    "$build_dir/src/fp8lab" ablate --study experiments/studies/quickstart.toml --out runs/quickstart
    "$build_dir/src/fp8lab" report runs/quickstart --out runs/quickstart/report
    echo "quickstart: open runs/quickstart/report/index.html"
    ;;
  test)
    install_missing $packages $report_packages $test_packages
    if command -v nvcc >/dev/null; then build cuda-sm90a; else build cpu-release; fi
    # Two tests at a time share the processors: idle threads must not spin.
    export OMP_WAIT_POLICY=passive
    exec ctest --test-dir "$build_dir" -L '^(ci|exhaustive)$' --output-on-failure -j "$(nproc)"
    ;;
  *)
    echo "usage: ./quickstart.sh [build|study|test]" >&2
    exit 2
    ;;
esac
