// Speed and memory of loading a model's files beside a plain read of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// One way of loading. Times are the smallest of the repetitions, wall and processor alone: the
/// second says more on a machine that has other work. Memory is that of the process, from
/// Linux's /proc/self/status: what it has more at most (VmHWM) than before the destination was
/// allocated.
struct ModelLoadRow {
  std::string operation;
  double seconds = 0;
  double processor_seconds = 0;    ///< user and system
  std::uint64_t result_bytes = 0;  ///< the one copy that is wanted
  std::uint64_t peak_bytes = 0;    ///< resident at most
};

struct ModelLoadBench {
  std::uint64_t file_bytes = 0;
  std::int64_t files = 0, tensors = 0;
  std::vector<ModelLoadRow> rows;  ///< the plain read first
};

/// Reads the files of `path` (TensorStore) with read(2), then loads all their tensors, which must
/// be F32, BF16, F16 or FP8, into memory of `backend`: in their own type, and as FP32 as master
/// weights have it. All destinations are allocated, and so written once, before the clock starts.
/// A first reading brings the files into the page cache.
ModelLoadBench bench_model_load(Backend& backend, const std::filesystem::path& path,
                                int repetitions);

}  // namespace fp8lab
