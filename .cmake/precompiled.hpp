// What nearly every source includes, compiled once for all libraries of one set of flags
// (FP8LAB_PRECOMPILE). A source still includes what it uses: the presets cpu-debug and asan build
// without this file.
#include <fmt/format.h>

#include ".cmake/precompiled_standard.hpp"
