// Rows of tensors on the device: conversion to FP32 and back, and launches over groups of columns.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/codec.hpp"
#include "kernels/plan/limits.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

__device__ inline float widen(std::uint16_t bf16) { return numerics::from_bf16(bf16); }
__device__ inline float widen(float value) { return value; }

/// Rounds to T. bf16 uses the conversion instruction, which `validate codec` proves equal to
/// numerics::to_bf16 on all 2^32 inputs.
template <class T>
__device__ T narrow(float value) {
  if constexpr (sizeof(T) == 2) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    return numerics::canonical_nan(value);
  }
}
/// Rounds a group; pairs share an instruction.
template <class T>
__device__ void narrow(const float (&values)[kGroup], T (&bits)[kGroup]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
      std::memcpy(bits + i, &pair, sizeof pair);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) bits[i] = narrow<T>(values[i]);
  }
}

/// A matrix with elements of type T: std::uint16_t for bf16, float or double.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  bool wide;  ///< in every row, columns at multiples of kGroup are 16-byte aligned

  __device__ T* at(std::int64_t row, std::int64_t col) const { return data + row * stride + col; }
  __device__ float load(std::int64_t row, std::int64_t col) const { return widen(*at(row, col)); }
  __device__ void store(std::int64_t row, std::int64_t col, float value) const {
    *at(row, col) = narrow<T>(value);
  }

  /// Loads columns [col, col + count) and pads the group with zeros. Preconditions: count <=
  /// kGroup, and col is a multiple of kGroup.
  __device__ void load_bits(std::int64_t row, std::int64_t col, int count,
                            T (&values)[kGroup]) const {
    const T* source = at(row, col);
    if (wide && count == kGroup) {
      uint4 words[sizeof(values) / sizeof(uint4)];
      for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(uint4)); ++i) {
        words[i] = reinterpret_cast<const uint4*>(source)[i];
      }
      std::memcpy(values, words, sizeof(values));
    } else {
      for (int i = 0; i < kGroup; ++i) values[i] = i < count ? source[i] : T{};
    }
  }
  __device__ void store_bits(std::int64_t row, std::int64_t col, int count,
                             const T (&values)[kGroup]) const {
    T* destination = at(row, col);
    if (wide && count == kGroup) {
      uint4 words[sizeof(values) / sizeof(uint4)];
      std::memcpy(words, values, sizeof(values));
      for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(uint4)); ++i) {
        reinterpret_cast<uint4*>(destination)[i] = words[i];
      }
    } else {
      for (int i = 0; i < kGroup; ++i) {
        if (i < count) destination[i] = values[i];
      }
    }
  }

  /// As load_bits and store_bits, but with conversion to and from FP32.
  __device__ void load_group(std::int64_t row, std::int64_t col, int count,
                             float (&values)[kGroup]) const {
    T bits[kGroup];
    load_bits(row, col, count, bits);
    for (int i = 0; i < kGroup; ++i) values[i] = widen(bits[i]);
  }
  __device__ void store_group(std::int64_t row, std::int64_t col, int count,
                              const float (&values)[kGroup]) const {
    T bits[kGroup];
    narrow(values, bits);
    store_bits(row, col, count, bits);
  }
};

/// Precondition: T is the storage type of the view.
template <class T>
Rows<T> rows_of(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const auto row_bytes = static_cast<std::uintptr_t>(view.row_stride) * sizeof(T);
  const bool aligned_rows = view.rows <= 1 || row_bytes % sizeof(uint4) == 0;
  return {static_cast<T*>(view.data), view.row_stride,
          address % sizeof(uint4) == 0 && aligned_rows};
}

/// Calls launch(rows...) with the Rows of each view. Precondition: the views are bf16 or f32.
template <class Launch>
void with_rows(const Launch& launch) {
  launch();
}
template <class Launch, class... Views>
void with_rows(const Launch& launch, const TensorView& view, const Views&... others) {
  const auto bind = [&](const auto& rows) {
    with_rows([&](const auto&... more) { launch(rows, more...); }, others...);
  };
  if (view.dtype == DType::bf16) {
    bind(rows_of<std::uint16_t>(view));
  } else {
    bind(rows_of<float>(view));
  }
}

/// Calls body(row, col, count) for every group of columns; blockIdx.y and
/// threadIdx.y run over rows.
template <class Body>
__global__ void for_each_group(std::int64_t rows, std::int64_t cols, Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kGroup;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  for (std::int64_t row = first_row; row < rows; row += std::int64_t{gridDim.y} * blockDim.y) {
    for (std::int64_t col = first; col < cols; col += step) {
      body(row, col, cols - col < kGroup ? static_cast<int>(cols - col) : kGroup);
    }
  }
}

/// Returns the number of blocks along x or y of a grid for `items`; the
/// kernel's loop covers the rest.
inline unsigned grid_size(std::int64_t items, std::int64_t limit) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(items, 1, limit));
}
inline constexpr std::int64_t kGridYLimit = 65535;  ///< hardware limit

/// Runs `body` over the groups of a (rows, cols) matrix.
template <class Body>
void launch_groups(Context& context, std::int64_t rows, std::int64_t cols, const Body& body,
                   const char* name) {
  if (rows == 0 || cols == 0) return;
  constexpr std::int64_t kThreads = 128, kWarp = 32;
  const std::int64_t groups = (cols + kGroup - 1) / kGroup;
  const std::int64_t across = std::min((groups + kWarp - 1) / kWarp * kWarp, kThreads);
  const std::int64_t down = rows == 1 ? 1 : kThreads / across;  // short rows share a block
  const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 64;
  const dim3 grid(grid_size((groups + across - 1) / across, enough),
                  grid_size((rows + down - 1) / down, kGridYLimit));
  const dim3 block(static_cast<unsigned>(across), static_cast<unsigned>(down));
  for_each_group<<<grid, block, 0, context.stream()>>>(rows, cols, body);
  check_launch(name);
}

}  // namespace fp8lab::cuda
