// Copies between host and device over a stream that does nothing before somebody waits for it: what
// is read or written too early or too late shows, as with streams that run at once it does not.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/runtime/staging.hpp"

struct SimulatedEvent {
  std::size_t recorded = 0;  ///< how much of the stream's work is before it
};

namespace {

using namespace fp8lab;
using cuda::Collection;
using cuda::Staging;
using Bytes = std::vector<std::byte>;

/// The only stream, and what it was asked for.
struct LateStream {
  std::vector<std::function<void()>> work;
  std::size_t done = 0;
  std::size_t refused = SIZE_MAX;       ///< number of the copy that fails
  std::vector<std::size_t> after_wait;  ///< by wait for an event: work that is left after it

  void run_until(std::size_t count) {
    while (done < count) work[done++]();
  }
  cudaError_t enqueue(std::function<void()> copy) {
    if (work.size() == refused) return cudaErrorInvalidValue;
    work.push_back(std::move(copy));
    return cudaSuccess;
  }
};
LateStream late;

Bytes drawn_bytes(std::size_t count, std::mt19937& generator) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

/// Uploads bytes that are no longer there when it returns.
void upload(Staging& staging, std::byte* to, Bytes bytes) {
  staging.upload(to, bytes.size(), bytes.data(), bytes.size(), 1, nullptr);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
}

Bytes downloaded(const Staging& staging, const std::byte* from, std::size_t count) {
  Bytes bytes(count);
  Collection collection(staging, nullptr);
  collection.add(bytes.data(), from, count, count, 1);
  collection.finish();
  return bytes;
}

constexpr std::size_t kChunk = Staging::kChunkBytes;
constexpr std::size_t kSlot = std::size_t{1} << 18;
constexpr std::size_t kSlots = Staging::kChunks * kChunk / kSlot;

}  // namespace

const char* cudaGetErrorString(cudaError_t) { return "refused"; }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  *memory = std::calloc(1, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  return late.enqueue([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t) {
  return late.enqueue([=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  late.run_until(late.work.size());
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new SimulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->recorded = late.work.size();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  late.run_until(event->recorded);
  late.after_wait.push_back(late.work.size() - event->recorded);
  return cudaSuccess;
}

TEST_CASE("uploads and downloads in any order bring what was there") {
  late = {};
  std::mt19937 generator(1);
  Staging staging;
  const std::size_t sizes[] = {1, 1000, kSlot, kSlot + 1, 3 * kSlot, kChunk - 1, 2 * kChunk + 7};
  constexpr std::size_t kPlaces = 4, kLargest = 2 * kChunk + 7;
  std::vector<Bytes> device(kPlaces, Bytes(kLargest)), expected = device;
  for (int round = 0; round < 300; ++round) {
    const std::size_t place = generator() % kPlaces, count = sizes[generator() % 7];
    const std::size_t at = generator() % (kLargest - count + 1);
    if (generator() % 3 != 0) {
      const Bytes source = drawn_bytes(count, generator);
      upload(staging, device[place].data() + at, source);
      std::copy(source.begin(), source.end(),
                expected[place].begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      const Bytes found = downloaded(staging, device[place].data() + at, count);
      REQUIRE(std::memcmp(found.data(), expected[place].data() + at, count) == 0);
    }
  }
  cudaStreamSynchronize(nullptr);
  CHECK((device == expected));
}

TEST_CASE("an upload waits for its own slots alone") {
  late = {};
  Staging staging;
  Bytes device(kSlots * kSlot);
  upload(staging, device.data(), Bytes(4 * kSlot));
  for (std::size_t slot = 4; slot < kSlots; ++slot) upload(staging, device.data(), Bytes(1));
  CHECK(late.done == 0);
  for (int slot = 0; slot < 4; ++slot) {  // those of the first copy
    upload(staging, device.data(), Bytes(1));
    CHECK(late.done == 1);
  }
  upload(staging, device.data(), Bytes(3 * kSlot));
  CHECK(late.done == 4);
}

TEST_CASE("the stream has three chunks to fill while the host copies from the fourth") {
  late = {};
  std::mt19937 generator(2);
  const Bytes device = drawn_bytes(10 * kChunk, generator);
  const Staging staging;
  CHECK((downloaded(staging, device.data(), device.size()) == device));
  CHECK(late.after_wait == std::vector<std::size_t>{3, 3, 3, 3, 3, 3, 3, 2, 1, 0});
}

TEST_CASE("small tensors share a chunk and a wait") {
  late = {};
  std::mt19937 generator(3);
  const Bytes device = drawn_bytes(100 * 1001, generator);
  Bytes found(device.size());
  const Staging staging;
  Collection collection(staging, nullptr);
  for (std::size_t i = 0; i < 100; ++i) {
    collection.add(found.data() + i * 1001, device.data() + i * 1001, 1001, 1001, 1);
  }
  CHECK(late.done == 0);
  collection.finish();
  CHECK((found == device));
  CHECK(late.after_wait.size() == 1);
}

TEST_CASE("whichever copy is refused, nothing is under way after the exception") {
  constexpr std::size_t kFirst = 1000;  // a tensor in the same chunk as the next one
  const Bytes device(6 * kChunk);
  Bytes found(device.size());
  const Staging staging;
  for (std::size_t refused = 0; refused < 6; ++refused) {
    late = {};
    late.refused = refused;
    const auto download = [&] {
      Collection collection(staging, nullptr);
      for (const std::size_t count : {kFirst, device.size()}) {
        collection.add(found.data(), device.data(), count, count, 1);
      }
      collection.finish();
    };
    CHECK_THROWS_AS(download(), RuntimeFailure);
    CHECK(late.work.size() == refused);
    CHECK(late.done == refused);
  }
}
