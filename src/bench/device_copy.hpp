// How fast tensors go to the GPU and come back, beside the CUDA runtime's own copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

/// One direction of one size; speeds are medians in 1e9 bytes a second.
struct DeviceCopyRow {
  std::string direction;  ///< "upload" or "download"
  std::int64_t bytes = 0;
  double own = 0;          ///< of the backend, between it and pageable memory of the host
  double pageable = 0;     ///< cudaMemcpy, between the same two
  double page_locked = 0;  ///< cudaMemcpy with page-locked memory: what the link gives
  double ratio = 0;        ///< own over page_locked
};

struct DeviceCopyBench {
  std::string device;
  std::vector<DeviceCopyRow> rows;  ///< by direction, then by size
};

/// Copies tensors of 1 MiB to 1 GiB, `repeats` times after a warm-up, by the backend and by
/// cudaMemcpy in turn, each until the bytes are there. All memory has been written before. Throws
/// Error without a device.
DeviceCopyBench bench_device_copy(int repeats);

}  // namespace fp8lab
