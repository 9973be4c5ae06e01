// Memory of the device: reserved pieces, uploads that do not wait, and downloads.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda_backend.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;

TEST_CASE("what was reserved makes one piece") {
  if (test::device_backend() == nullptr) return;
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
  if (test::device_backend() == nullptr) return;
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

namespace {

/// Bytes that say where they come from.
std::vector<std::byte> drawn_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

/// Puts bytes into a contiguous tensor, or takes them, without the backend.
void put(const TensorView& tensor, const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  cuda::check(cudaMemcpy(tensor.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
              "cudaMemcpy");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}
std::vector<std::byte> taken(const TensorView& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
  if (bytes.empty()) return bytes;
  cuda::check(cudaMemcpy(bytes.data(), tensor.data, bytes.size(), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
  return bytes;
}

struct Shape {
  std::int64_t rows, cols, stride;

  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols); }
};

constexpr auto kChunk = static_cast<std::int64_t>(cuda::Staging::kChunkBytes);
constexpr std::int64_t kAllChunks = kChunk * std::int64_t{cuda::Staging::kChunks};

/// Of bytes: around a chunk and all of them, with gaps between narrow and wide rows.
constexpr Shape kShapes[] = {{1, 1, 1},
                             {1, kChunk - 1, kChunk - 1},
                             {0, 8, 8},
                             {1, kChunk, kChunk},
                             {1, kChunk + 1, kChunk + 1},
                             {1, kAllChunks, kAllChunks},
                             {3, 2 * kChunk - 7, 2 * kChunk - 7},
                             {5, 3, 7},
                             {70'001, 129, 256},
                             {5, 1'000'003, 1'000'019},
                             {2, kChunk, kChunk + 512},
                             {3, kChunk + 513, kChunk + 1000}};

/// The rows of a shape without the gaps.
std::vector<std::byte> without_gaps(const std::vector<std::byte>& whole, const Shape& shape) {
  std::vector<std::byte> bytes(shape.bytes());
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    std::copy_n(whole.begin() + row * shape.stride, shape.cols, bytes.begin() + row * shape.cols);
  }
  return bytes;
}

}  // namespace

TEST_CASE("downloads of any size and shape come whole, alone and many at once") {
  if (test::device_backend() == nullptr) return;
  cuda::CudaBackend backend(0);
  std::vector<TensorView> tensors;
  std::vector<std::vector<std::byte>> expected;
  for (const Shape& shape : kShapes) {
    const TensorView whole = backend.allocate(DType::u8, shape.rows, shape.stride);
    backend.synchronize();
    const auto seed = static_cast<std::uint32_t>(tensors.size());
    const std::vector<std::byte> bytes = drawn_bytes(static_cast<std::size_t>(whole.size()), seed);
    put(whole, bytes);
    tensors.push_back(whole.columns(0, shape.cols));
    expected.push_back(without_gaps(bytes, shape));
  }
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kUntouched{0x5A};
  std::vector<std::vector<std::byte>> found;
  std::vector<Download> downloads;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    found.emplace_back(expected[i].size() + 2 * kGuard, kUntouched);
    downloads.push_back({found.back().data() + kGuard, tensors[i]});
  }
  const bool together = GENERATE(false, true);
  if (together) {
    backend.download_all(downloads);
  } else {
    for (const Download& one : downloads) backend.download(one.destination, one.source);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto begin = found[i].begin() + kGuard, end = found[i].end() - kGuard;
    const auto is_untouched = [&](std::byte byte) { return byte == kUntouched; };
    INFO("shape " << i << (together ? ", together" : ""));
    CHECK(std::equal(begin, end, expected[i].begin(), expected[i].end()));
    CHECK(std::all_of(found[i].begin(), begin, is_untouched));
    CHECK(std::all_of(end, found[i].end(), is_untouched));
  }
}

TEST_CASE("uploads of any size and shape arrive, and the source may be reused at once") {
  if (test::device_backend() == nullptr) return;
  cuda::CudaBackend backend(0);
  for (int round = 0; round < 2; ++round) {  // from other places of the ring
    std::uint32_t seed = 0;
    for (const Shape& shape : kShapes) {
      const TensorView whole = backend.allocate(DType::u8, shape.rows, shape.stride);
      backend.synchronize();
      std::vector<std::byte> expected = drawn_bytes(static_cast<std::size_t>(whole.size()), ++seed);
      put(whole, expected);
      const std::vector<std::byte> source = drawn_bytes(shape.bytes(), ++seed);
      std::vector<std::byte> lent = source;
      backend.upload(whole.columns(0, shape.cols), lent.data());
      std::fill(lent.begin(), lent.end(), std::byte{0});
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        std::copy_n(source.begin() + row * shape.cols, shape.cols,
                    expected.begin() + row * shape.stride);
      }
      backend.synchronize();
      INFO("shape " << &shape - kShapes << ", round " << round);
      CHECK((taken(whole) == expected));
    }
    backend.release_to(0);
  }
}

TEST_CASE("uploads and downloads take turns in the same page-locked memory") {
  if (test::device_backend() == nullptr) return;
  cuda::CudaBackend backend(0);
  constexpr std::int64_t kCols = kChunk + 12'345;
  const TensorView rows = backend.allocate(DType::u8, 2, kCols);
  std::vector<std::byte> before, found(static_cast<std::size_t>(kCols));
  for (std::uint32_t round = 0; round < 12; ++round) {
    const std::vector<std::byte> source = drawn_bytes(found.size(), round);
    std::vector<std::byte> lent = source;
    backend.upload(rows.row_range(round % 2, 1), lent.data());
    std::fill(lent.begin(), lent.end(), std::byte{0});
    if (round > 0) {
      backend.download(found.data(), rows.row_range((round + 1) % 2, 1));
      CHECK((found == before));
    }
    before = source;
  }
}

TEST_CASE("a copy that is refused fails, and the next one is whole") {
  if (test::device_backend() == nullptr) return;
  cuda::CudaBackend backend(0);
  constexpr std::int64_t kCols = 3 * kChunk + 5;
  const TensorView tensor = backend.allocate(DType::u8, 1, kCols);
  backend.synchronize();
  const std::vector<std::byte> expected = drawn_bytes(static_cast<std::size_t>(kCols), 1);
  put(tensor, expected);
  const TensorView overlapping{tensor.data, DType::u8, 4, 100, 10};
  std::vector<std::byte> found(expected.size()), small(400);
  const Download downloads[] = {{found.data(), tensor}, {small.data(), overlapping}};
  CHECK_THROWS_AS(backend.download_all(downloads), RuntimeFailure);
  CHECK_THROWS_AS(backend.upload(overlapping, small.data()), RuntimeFailure);
  cudaGetLastError();
  std::fill(found.begin(), found.end(), std::byte{0});
  backend.download(found.data(), tensor);
  CHECK((found == expected));
  backend.upload(tensor, found.data());
  backend.synchronize();
  CHECK((taken(tensor) == expected));
}
