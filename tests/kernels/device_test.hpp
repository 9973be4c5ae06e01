// Cases of the tests of the kernels, and their comparison: emulation/cases/compare_case.hpp with
// the CPU backend on one side and the device on the other.
#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <ios>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/compare_case.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "kernels/cuda_backend.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab::test {

/// The CUDA backend, and its context for kernels that no operation calls alone.
struct DeviceBackend final : cuda::CudaBackend {
  using CudaBackend::CudaBackend;
  cuda::Context& context() { return context_; }
};

/// The backend of the tests on the device; null, with a message that ctest takes for a skip, where
/// no device is.
inline DeviceBackend* device_backend() {
  static const std::unique_ptr<DeviceBackend> backend = [] {
    int count = 0;
    const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    return found ? std::make_unique<DeviceBackend>(0) : nullptr;
  }();
  if (backend == nullptr) WARN("skipped: no CUDA device");
  return backend.get();
}

/// What random bits a matrix is filled with.
enum class Fill : std::uint8_t {
  ordinary,   ///< uniform in (-3, 3)
  difficult,  ///< ordinary with NaN, infinities, subnormals, zeros of both signs, large numbers
  any_bits,   ///< every bit pattern of the type
};

/// Writes an element.
inline void put(HostTensor& tensor, std::int64_t row, std::int64_t col, double value) {
  const std::size_t size = size_of(tensor.dtype);
  Matrix element(tensor.dtype, 1, 1);
  element.set(0, value);
  std::memcpy(tensor.data.data() + static_cast<std::size_t>(row * tensor.cols + col) * size,
              element.bytes().data(), size);
}

/// A tensor that a case may write, with random contents.
inline HostTensor filled(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill,
                         std::uint32_t seed, RowLayout layout = {}) {
  static constexpr double kSpecial[] = {HUGE_VAL,   -HUGE_VAL, NAN,  0x1p-130, -0x1p-133,
                                        0x1.8p-149, 0.0,       -0.0, 3e38,     -1e-20};
  HostTensor tensor{dtype, rows, cols, {}, true, false, layout};
  tensor.data.resize(static_cast<std::size_t>(rows * cols) * size_of(dtype));
  std::mt19937 generator(seed);
  for (std::byte& byte : tensor.data) byte = static_cast<std::byte>(generator());
  for (std::int64_t i = 0; i < rows * cols && fill != Fill::any_bits; ++i) {
    const auto bits = static_cast<std::uint32_t>(generator());
    const bool is_special = fill == Fill::difficult && bits % 29 == 0;
    put(tensor, i / cols, i % cols,
        is_special ? kSpecial[bits / 29 % 10] : 3.0 * (static_cast<double>(bits) * 0x1p-31 - 1.0));
  }
  return tensor;
}

/// A tensor with the elements of a host matrix.
inline HostTensor tensor_of(const Matrix& matrix, DType dtype, RowLayout layout = {}) {
  return {dtype, matrix.rows(), matrix.cols(), matrix.bytes(), true, false, layout};
}

/// Random integers of [0, limit).
inline HostTensor integers(std::int64_t count, std::int64_t limit, std::uint32_t seed) {
  HostTensor tensor = filled(DType::i32, 1, count, Fill::any_bits, seed);
  std::mt19937 generator(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    put(tensor, 0, i, static_cast<double>(generator() % static_cast<std::uint64_t>(limit)));
  }
  return tensor;
}

/// Returns a tensor in memory of `backend`, without gaps.
inline TensorView uploaded(Backend& backend, const HostTensor& tensor) {
  const TensorView view = backend.allocate(tensor.dtype, tensor.rows, tensor.cols);
  backend.upload(view, tensor.data.data());
  return view;
}

/// Runs the operations of `run` on both backends, from the same bytes, and checks that every byte
/// of all tensors, gaps between rows included, is the same afterwards.
template <class Run>
void check_between(Backend& expected, Backend& tested, const std::string& name,
                   std::vector<HostTensor> tensors, const Run& run) {
  std::uint64_t compared = 0;
  const OperationCase one{name, {}, std::move(tensors), run};
  const auto mismatch = compare_case(one, expected, tested, {}, 1, compared);
  if (mismatch) {
    const HostTensor& tensor = one.tensors[mismatch->tensor];
    const RowLayout layout = tensor.layout.value_or(RowLayout{});
    UNSCOPED_INFO(name << ": tensor " << mismatch->tensor << ", " << name_of(tensor.dtype) << " ("
                       << tensor.rows << ", " << tensor.cols << "), gap " << layout.gap
                       << ", offset " << layout.offset << ", at (" << mismatch->row << ", "
                       << mismatch->col << "): expected 0x" << std::hex << mismatch->expected
                       << ", found 0x" << mismatch->actual << std::dec << "; " << mismatch->count
                       << " differ");
  }
  CHECK_FALSE(mismatch);
}

/// As above: the CPU's bytes are expected of device_backend().
template <class Run>
void check_same(const std::string& name, std::vector<HostTensor> tensors, const Run& run) {
  static cpu::CpuBackend cpu(0);
  check_between(cpu, *device_backend(), name, std::move(tensors), run);
}

/// One element; odd; whole groups; more than one chunk of a tree sum; several blocks of a column
/// sum.
inline constexpr MatrixShape kShapes[] = {{1, 1},    {3, 7},     {5, 33},   {130, 64}, {4, 4096},
                                          {3, 4097}, {2, 13000}, {523, 24}, {257, 95}};
inline constexpr DType kTypes[] = {DType::bf16, DType::f32};
/// Without gaps; odd row starts; wide rows with gaps; wide rows that start unaligned.
inline constexpr RowLayout kLayouts[] = {{0, 0}, {3, 0}, {8, 8}, {8, 1}};

/// Calls run(shape, type, other type, layout, seed) for all combinations; `other` for the tensors
/// whose type may differ.
template <class Run>
void for_all(const Run& run) {
  std::uint32_t seed = 1;
  for (const MatrixShape& shape : kShapes) {
    for (const DType type : kTypes) {
      for (const DType other : kTypes) {
        for (const RowLayout& layout : kLayouts) run(shape, type, other, layout, seed += 10);
      }
    }
  }
}

}  // namespace fp8lab::test
