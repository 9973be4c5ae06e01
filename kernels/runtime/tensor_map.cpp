#include "kernels/runtime/tensor_map.hpp"

#include <string>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                           cudaEnableDefault, &found),
          "cudaGetDriverEntryPoint(cuTensorMapEncodeTiled)");
    if (found != cudaDriverEntryPointSuccess) {
      throw RuntimeFailure("cuTensorMapEncodeTiled: the driver does not have it");
    }
    return reinterpret_cast<EncodeTiled>(symbol);
  }();
  return function;
}

CUtensorMapDataType map_type(int bytes) {
  if (bytes == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

}  // namespace

CUtensorMap tensor_map(const void* data, int bytes, std::initializer_list<MapExtent> extents,
                       CUtensorMapSwizzle swizzle) {
  constexpr int kMaxRank = 5;
  cuuint64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
  cuuint32_t box[kMaxRank] = {}, steps[kMaxRank] = {};
  cuuint32_t rank = 0;
  for (const MapExtent& extent : extents) {
    sizes[rank] = static_cast<cuuint64_t>(extent.size);
    strides[rank] = static_cast<cuuint64_t>(extent.stride * bytes);
    box[rank] = static_cast<cuuint32_t>(extent.box);
    steps[rank] = 1;
    ++rank;
  }
  CUtensorMap map{};
  const CUresult status =
      encode_tiled()(&map, map_type(bytes), rank, const_cast<void*>(data), sizes, strides + 1, box,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw RuntimeFailure("cuTensorMapEncodeTiled: error " + std::to_string(status));
  }
  return map;
}

}  // namespace fp8lab::cuda
