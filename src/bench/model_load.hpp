// Benchmark of loading a model's files: speed and memory, compared with a plain read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// One way of loading. Times are the smallest of the repetitions, in wall time and processor
/// time; the latter is more meaningful on a busy machine. Memory is the process's increase in
/// peak resident memory (VmHWM in Linux's /proc/self/status) over its value before the
/// destination was allocated.
struct ModelLoadRow {
  std::string operation;
  double seconds = 0;
  double processor_seconds = 0;    ///< user and system
  std::uint64_t result_bytes = 0;  ///< size of the loaded result
  std::uint64_t peak_bytes = 0;    ///< peak resident memory
};

struct ModelLoadBench {
  std::uint64_t file_bytes = 0;
  std::int64_t files = 0, tensors = 0;
  std::vector<ModelLoadRow> rows;  ///< plain read first
};

/// Reads the files of `path` (TensorStore) with read(2), then loads all their tensors into memory
/// of `backend`: in their own type, and as FP32 like master weights. Precondition: all tensors are
/// F32, BF16, F16 or FP8. All destinations are allocated, and thus written once, before the clock
/// starts. A first read brings the files into the page cache.
ModelLoadBench bench_model_load(Backend& backend, const std::filesystem::path& path,
                                int repetitions);

}  // namespace fp8lab
