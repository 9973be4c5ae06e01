// What the simulated GPU has to notice: it is worth as much as the errors that it does not hide.
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/ptx/ptx.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "tests/simulator/device.hpp"
#include "tests/simulator/mbarrier.hpp"

namespace {

using namespace fp8lab;
using simulator::place;
using simulator::run_grid;
using simulator::Shape;

Shape shape(unsigned blocks, unsigned threads, std::size_t shared = 0, unsigned cluster = 1) {
  return {{blocks, 1, 1}, {threads, 1, 1}, shared, cluster};
}

/// Sums that a block of 64 threads finds in shared memory, of 1 from each, over some launches.
std::set<unsigned> sums_of_ones(bool with_barrier) {
  std::set<unsigned> found;
  for (int launch = 0; launch < 8; ++launch) {
    unsigned sum = 0;
    run_grid("sum", shape(1, 64, 256), [&] {
      auto* const ones = reinterpret_cast<unsigned*>(simulator::shared_memory());
      ones[place().thread.x] = 1;
      if (with_barrier) __syncthreads();
      if (place().thread.x != 5) return;
      for (int i = 0; i < 64; ++i) sum += ones[i];
    });
    found.insert(sum);
  }
  return found;
}

}  // namespace

TEST_CASE("a missing barrier shows: threads run in any order") {
  CHECK(sums_of_ones(true) == std::set<unsigned>{64});
  CHECK(sums_of_ones(false).size() > 1);
}

TEST_CASE("a warp has no lockstep: a missing __syncwarp shows") {
  bool differed = false;
  for (int launch = 0; launch < 8; ++launch) {
    run_grid("neighbours", shape(1, 32, 128), [&] {
      auto* const words = reinterpret_cast<unsigned*>(simulator::shared_memory());
      const unsigned lane = place().thread.x;
      words[lane] = lane;
      if (words[lane ^ 1] != (lane ^ 1)) differed = true;
    });
  }
  CHECK(differed);
}

TEST_CASE("shuffles, votes and reductions of a warp and of a part of it") {
  std::vector<unsigned> down(32), in_eights(32), votes(32), largest(32), up(32);
  run_grid("warp", shape(1, 32), [&] {
    const unsigned lane = place().thread.x;
    down[lane] = __shfl_down_sync(~0u, lane, 3);
    up[lane] = __shfl_up_sync(~0u, lane, 1, 16);
    in_eights[lane] = __shfl_sync(~0u, lane, 2, 8);
    votes[lane] = __ballot_sync(~0u, lane % 3 == 0);
    if (lane < 10) largest[lane] = __reduce_max_sync(0x3FFu, lane * 7 % 10);
  });
  for (unsigned lane = 0; lane < 32; ++lane) {
    CHECK(down[lane] == (lane + 3 < 32 ? lane + 3 : lane));
    CHECK(up[lane] == (lane % 16 == 0 ? lane : lane - 1));
    CHECK(in_eights[lane] == lane / 8 * 8 + 2);
    CHECK(votes[lane] == 0x49249249u);
    CHECK(largest[lane] == (lane < 10 ? 9u : 0u));
  }
}

TEST_CASE("a bulk copy is not there before its barrier, and zeros lie outside the tensor") {
  std::vector<std::uint16_t> matrix(6 * 64);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<std::uint16_t>(i);
  alignas(16) static std::uint16_t source[6 * 64];
  std::copy(matrix.begin(), matrix.end(), source);
  const cuuint64_t sizes[2] = {64, 6}, strides[1] = {128};
  const cuuint32_t box[2] = {64, 8}, steps[2] = {1, 1};
  CUtensorMap map;
  const auto encode = [&](void* data, const cuuint64_t* of_rows) {
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, sizes, of_rows,
                                  box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  const cuuint64_t odd[1] = {126};
  CHECK(encode(source, odd) != CUDA_SUCCESS);
  CHECK(encode(source + 1, strides) != CUDA_SUCCESS);
  REQUIRE(encode(source, strides) == CUDA_SUCCESS);

  std::vector<std::uint16_t> early(32), late(8 * 64);
  run_grid("copy", shape(1, 32, 2048), [&] {
    std::byte* const tile = simulator::shared_memory();
    auto* const barrier = reinterpret_cast<std::uint64_t*>(tile + 1024);
    const unsigned lane = place().thread.x;
    if (lane == 0) {
      cuda::barrier_init(barrier, 1);
      cuda::barrier_expect(barrier, 1024);
      cuda::copy_box(tile, &map, barrier, 0, 1);
    }
    __syncwarp();
    std::memcpy(&early[lane], tile + lane * 2, 2);
    cuda::barrier_wait(barrier, 0);
    for (unsigned i = lane; i < 8 * 64; i += 32) {
      const unsigned byte = i * 2;
      std::memcpy(&late[i], tile + (byte ^ (byte >> 7 & 7) << 4), 2);
    }
  });
  for (const std::uint16_t word : early) CHECK(word == 0xFFFF);
  for (std::size_t i = 0; i < late.size(); ++i) {
    CHECK(late[i] == (i < 5 * 64 ? matrix[i + 64] : 0));
  }
}

TEST_CASE("a copy of one thread is not there before the thread waits for its group") {
  alignas(16) static float source[2 * 32];
  for (int i = 0; i < 64; ++i) source[i] = static_cast<float>(i);
  std::vector<float> early(64), between(64), late(64);
  run_grid("copies", shape(1, 32, 256), [&] {
    auto* const here = reinterpret_cast<float*>(simulator::shared_memory());
    const unsigned lane = place().thread.x;
    const auto read = [&](std::vector<float>& values) {
      for (const unsigned i : {lane, lane + 32}) values[i] = here[i];
    };
    for (const unsigned i : {lane, lane + 32}) {
      __pipeline_memcpy_async(here + i, source + i, sizeof(float));
      __pipeline_commit();
    }
    read(early);
    __pipeline_wait_prior(1);
    read(between);
    __pipeline_wait_prior(0);
    read(late);
  });
  for (unsigned i = 0; i < 64; ++i) {
    CHECK(std::isnan(early[i]));
    CHECK((i < 32 ? between[i] == source[i] : std::isnan(between[i])));
    CHECK(late[i] == source[i]);
  }
}

TEST_CASE("accumulators are spoilt until the wait, and operands are read as late") {
  float before = 0, after = 0, overwritten = 0;
  for (const bool overwrite : {false, true}) {
    run_grid("product", shape(1, 128, 64 * 128 + 128 * 128), [&] {
      std::byte* const a = simulator::shared_memory();
      std::byte* const b = a + 64 * 128;
      const unsigned thread = place().thread.x;
      constexpr std::uint16_t kOne = 0x3F80;
      for (unsigned i = thread; i < 192 * 64; i += 128) std::memcpy(a + i * 2, &kOne, 2);
      __syncthreads();
      float d[64] = {};
      cuda::wgmma<cuda::WgmmaTypes::bf16, 128>(d, cuda::operand_descriptor<false>(a),
                                               cuda::operand_descriptor<false>(b), true);
      cuda::wgmma_commit();
      if (thread == 0) before = d[0];
      if (overwrite) {
        __syncthreads();
        std::memset(a + thread * 64, 0, 64);
        __syncthreads();
      }
      cuda::wgmma_wait<0>();
      if (thread == 0) (overwrite ? overwritten : after) = d[0];
    });
    CHECK(before != before);
  }
  CHECK(after == 16.0f);
  CHECK(overwritten == 0.0f);
}

TEST_CASE("blocks of a cluster reach each other's shared memory") {
  std::vector<unsigned> seen(8);
  run_grid("cluster", shape(8, 32, 1024, 2), [&] {
    auto* const barrier = reinterpret_cast<std::uint64_t*>(simulator::shared_memory());
    if (place().thread.x == 0) cuda::barrier_init(barrier, 2);
    cuda::cluster_sync();
    const bool early = cuda::barrier_passed(barrier, 0);
    cuda::cluster_sync();
    for (unsigned rank : {0u, 1u}) {
      cuda::barrier_arrive_at_if(place().thread.x == 0, barrier, rank);
    }
    cuda::barrier_wait(barrier, 0);
    const bool passed = !early && cuda::barrier_passed(barrier, 0);
    if (place().thread.x == 0) seen[place().block.x] = passed ? cuda::cluster_rank() + 1 : 0;
    cuda::cluster_sync();
  });
  for (unsigned block = 0; block < 8; ++block) CHECK(seen[block] == block % 2 + 1);
}

TEST_CASE("a launch that the hardware refuses is refused") {
  const auto status = [](const Shape& of) {
    return simulator::enqueue_kernel("refused", of, nullptr, [] {});
  };
  CHECK(status(shape(1, 32)) == cudaSuccess);
  CHECK(status(shape(0, 32)) == cudaErrorInvalidConfiguration);
  CHECK(status(shape(1, 1025)) == cudaErrorInvalidConfiguration);
  CHECK(status(shape(1, 32, 232449)) == cudaErrorInvalidConfiguration);
  CHECK(status(shape(3, 32, 0, 2)) == cudaErrorInvalidConfiguration);
}
