// Benchmark of tensor copies to and from the GPU, compared with the CUDA runtime's own copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

/// One direction and size; speeds are medians in 1e9 bytes per second.
struct DeviceCopyRow {
  std::string direction;  ///< "upload" or "download"
  std::int64_t bytes = 0;
  double own = 0;          ///< speed of the backend, to or from pageable host memory
  double pageable = 0;     ///< cudaMemcpy between the same buffers
  double page_locked = 0;  ///< cudaMemcpy with page-locked memory: the speed of the link
  double ratio = 0;        ///< own / page_locked
};

struct DeviceCopyBench {
  std::string device;
  std::vector<DeviceCopyRow> rows;  ///< by direction, then by size
};

/// Copies tensors of 1 MiB to 1 GiB, `repeats` times after a warm-up, alternately by the
/// backend and by cudaMemcpy, and waits for each copy. All memory has been written before.
/// Throws Error if there is no device.
DeviceCopyBench bench_device_copy(int repeats);

}  // namespace fp8lab
