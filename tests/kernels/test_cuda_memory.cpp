// Memory of the device: reserved pieces, and uploads that do not wait.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <vector>

#include "kernels/cuda_backend.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;

TEST_CASE("what was reserved makes one piece") {
  if (test::device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  const std::size_t a_bytes = backend.allocation_bytes(DType::f32, 3, 1000);
  const std::size_t b_bytes = backend.allocation_bytes(DType::bf16, 1, 1);
  backend.reserve(a_bytes + b_bytes);
  const TensorView a = backend.allocate(DType::f32, 3, 1000);
  const TensorView b = backend.allocate(DType::bf16, 1, 1);
  CHECK(static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data) ==
        static_cast<std::ptrdiff_t>(a_bytes));
  CHECK(backend.memory_bytes() == a_bytes + b_bytes);
  const std::size_t mark = backend.memory_mark();
  backend.allocate(DType::f32, 1, 1 << 20);  // beyond the piece
  backend.release_to(mark);
  CHECK(backend.memory_bytes() == a_bytes + b_bytes);
  backend.release_to(mark - 1);
  const TensorView again = backend.allocate(DType::bf16, 1, 1);
  CHECK(again.data == b.data);
  const std::vector<float> ones(3000, 1.0f);
  backend.upload(a, ones.data());
  backend.release_to(0);
  std::vector<float> values(3000);
  backend.download(values.data(), backend.allocate(DType::f32, 3, 1000));
  CHECK(values == std::vector<float>(3000, 0.0f));  // zeroed also where it was used before
}

TEST_CASE("the source of an upload may be reused at once") {
  if (test::device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  constexpr std::int64_t kCount = 300;  // several times round the ring
  const TensorView rows = backend.allocate(DType::i32, kCount, 50'000);
  std::vector<std::int32_t> source(50'000);
  for (std::int64_t r = 0; r < kCount; ++r) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::int32_t>(r * 1'000'003 + static_cast<std::int64_t>(i));
    }
    backend.upload(rows.row_range(r, 1), source.data());
    std::fill(source.begin(), source.end(), -1);
  }
  std::vector<std::int32_t> found(static_cast<std::size_t>(rows.size()));
  backend.download(found.data(), rows);
  std::size_t different = 0;
  for (std::int64_t r = 0; r < kCount; ++r) {
    for (std::int64_t i = 0; i < 50'000; ++i) {
      different += found[static_cast<std::size_t>(r * 50'000 + i)] !=
                   static_cast<std::int32_t>(r * 1'000'003 + i);
    }
  }
  CHECK(different == 0);
}

TEST_CASE("uploads of any shape leave what lies between their rows") {
  if (test::device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  struct Shape {
    std::int64_t rows, cols, stride;
  };
  for (const auto [rows, cols, stride] :
       {Shape{1, 1, 1}, Shape{7, 3, 5}, Shape{3, 100'000, 100'003}, Shape{2000, 129, 256},
        Shape{2, 400'000, 400'000}}) {
    const TensorView whole = backend.allocate(DType::f32, rows, stride);
    std::vector<float> source(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i + 1);
    backend.upload(whole.columns(0, cols), source.data());
    std::vector<float> found(static_cast<std::size_t>(rows * stride));
    backend.download(found.data(), whole);
    std::size_t different = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < stride; ++c) {
        const float expected = c < cols ? source[static_cast<std::size_t>(r * cols + c)] : 0.0f;
        different += found[static_cast<std::size_t>(r * stride + c)] != expected;
      }
    }
    INFO(rows << " x " << cols << " of " << stride);
    CHECK(different == 0);
  }
}
