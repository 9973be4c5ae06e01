// A Hopper GPU in software, for device code compiled by the host's compiler: no speed, every order.
//
//   launch      blocks are taken in order by a few host threads
//   block       its threads are fibers of that host thread; one runs until it has to wait, and the
//               next one is drawn at random, so that what barriers do not order comes out in any
//               order
//   warp        no lockstep: lanes meet in warp instructions alone
//   shared      dynamic shared memory is filled with 0xA5 before each block
//   copies      bulk copies land when nothing else in the block can run: as late as the hardware
//               could, and what they will overwrite is spoilt when they are issued
//   wgmma       computed when the warpgroup waits for it; until then its accumulators are spoilt
//
// What cannot be reported as an exception of a thread of the device ends the program with a
// message: a deadlock, lanes that do not meet, an address outside shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace fp8lab::simulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// What a launch asks for.
struct Shape {
  Index grid, block;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory
  unsigned cluster = 1;          ///< blocks along x
};

inline constexpr int kMultiprocessors = 4;  ///< as the runtime tells
inline constexpr int kBlocksAtOnce = 8;     ///< which a cluster of the largest size needs
inline constexpr std::size_t kMostSharedBytes = 232448;  ///< of a block, compute capability 9.0
inline constexpr unsigned kWarp = 32, kWarpgroupThreads = 128;

/// Runs `kernel` once for every thread of the grid and returns when all are done.
void run_grid(const char* name, const Shape& shape, const std::function<void()>& kernel);

/// Ends the program with what went wrong in which kernel and thread.
[[noreturn]] void fail(const char* what);

// --- called by a thread of the device -----------------------------------------------------------

/// Where the calling thread is.
struct Place {
  Index thread, block, block_extent, grid_extent;
};
const Place& place();

/// Waits for all threads of the block that have not returned; the bitwise or of their values.
int sync_threads(int value = 0);

/// Which warp instruction lanes meet in; lanes that meet in different ones are an error.
enum class Meeting : std::uint8_t { sync, shuffle, vote, reduce, match, load_matrices, multiply };

/// Waits for the lanes of `mask`, the caller among them, and returns what each of them gave. The
/// last one runs `together` on that before any of them goes on.
using Together = std::function<void(const std::uint64_t* of_lane)>;
const std::uint64_t* exchange(Meeting meeting, unsigned mask, std::uint64_t value,
                              const Together& together = {});

/// The caller's lane, and its place in the block.
unsigned lane();
unsigned thread_of_block();

/// Waits for the 128 threads of the warpgroup, one of which runs `together` with what each gave.
void meet_in_warpgroup(void* mine, const std::function<void(void* const* of_thread)>& together);

/// Barrier `id` for `threads` arrivals: with or without waiting for them.
void named_sync(int id, int threads);
void named_arrive(int id, int threads);

/// Waits until `ready`, which somebody else makes true.
void wait_until(const std::function<bool()>& ready);

/// Dynamic shared memory of the block, 1024-byte aligned, and addresses in it from 0 on.
std::byte* shared_memory();
std::uint32_t shared_address(const void* pointer);
std::byte* shared_pointer(std::uint32_t address);
/// The same place in the shared memory of another block of the cluster.
std::byte* shared_of(unsigned rank, const void* pointer);

unsigned cluster_rank();
/// The barrier of the cluster, in two parts.
void cluster_arrive();
void cluster_wait();

/// Runs `copy` when nothing else in the block can, or when the block ends.
void copy_later(std::function<void()> copy);

/// What instructions leave pending, in groups of which the last is open: bulk stores and
/// asynchronous copies of the calling thread, and products of its warpgroup.
std::vector<std::vector<std::function<void()>>>& pending_stores();
std::vector<std::vector<std::function<void()>>>& pending_copies();
std::vector<std::vector<std::function<void()>>>& pending_products();

}  // namespace fp8lab::simulator
