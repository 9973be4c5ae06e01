// Tensor maps: descriptors of tensors for bulk copies of boxes between global and shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace fp8lab::cuda {

/// One extent of a tensor and of the boxes that are copied from it.
struct MapExtent {
  std::int64_t size;
  std::int64_t stride;  ///< elements from one index to the next; 1 for the first extent
  int box;
};

/// Returns the map of a tensor of codes, bf16 or f32, whose elements have `bytes` bytes; the
/// contiguous extent comes first. Precondition: address and strides are multiples of 16 bytes.
/// Throws RuntimeFailure if the driver refuses.
CUtensorMap tensor_map(const void* data, int bytes, std::initializer_list<MapExtent> extents,
                       CUtensorMapSwizzle swizzle);

}  // namespace fp8lab::cuda
