#include "tests/simulator/device.hpp"

#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace fp8lab::simulator {
namespace {

using boost::context::fiber;

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr int kNamedBarriers = 16;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kPoison = 0xA5;

/// Numbers without quality: the order of threads.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::size_t below(std::size_t count) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>((state_ >> 32) * count >> 32);
  }

 private:
  std::uint64_t state_;
};

std::uint64_t first_seed() {
  const char* text = std::getenv("FP8LAB_SIMULATOR_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

/// A stack, as AddressSanitizer has to know it when it is left and entered.
struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* kept = nullptr;  ///< the sanitizer's own

  void leave_for([[maybe_unused]] const Stack& other) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&kept, other.bottom, other.size);
#endif
  }
  /// `from`: the stack that was left for this one, whose place is learnt.
  void entered([[maybe_unused]] Stack& from) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(kept, &from.bottom, &from.size);
#endif
  }
};

/// Blocks that share a distributed shared memory.
struct Cluster {
  std::atomic<unsigned> arrived{0}, generation{0};
  std::vector<std::atomic<std::byte*>> windows;
  explicit Cluster(unsigned blocks) : windows(blocks) {}
};

struct Grid {
  const char* name;
  Shape shape;
  const std::function<void()>& kernel;
  std::uint64_t seed;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::atomic<std::uint64_t> next{0};

  std::uint64_t blocks() const { return std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z; }
};

enum class State : std::uint8_t { ready, waiting, polling, done };

struct Thread {
  Place place;
  unsigned number = 0;  ///< in the block
  State state = State::done;
  fiber self, scheduler;
  Stack stack;
  std::uint64_t received[kWarp];
  std::vector<std::vector<std::function<void()>>> stores, copies;
  unsigned cluster_generation = 0;  ///< when it arrived at the barrier of the cluster
};

/// Lanes that gather for a warp instruction.
struct Gathering {
  unsigned mask = 0, arrived = 0;
  Meeting meeting{};
  const Together* together = nullptr;
  std::uint64_t given[kWarp];
};
struct Warp {
  unsigned live = 0;
  Gathering gatherings[kWarp];  ///< by the lowest lane of the mask
};
struct Warpgroup {
  unsigned arrived = 0;
  void* given[kWarpgroupThreads];
  std::vector<std::vector<std::function<void()>>> products;
};
struct NamedBarrier {
  int arrived = 0;
  std::vector<Thread*> waiting;
};

/// One block after the other, on one host thread.
class Multiprocessor {
 public:
  Multiprocessor() : memory_(static_cast<std::byte*>(std::aligned_alloc(1024, window_bytes()))) {}
  ~Multiprocessor() { std::free(memory_); }
  Multiprocessor(const Multiprocessor&) = delete;
  Multiprocessor& operator=(const Multiprocessor&) = delete;

  void run(Grid& grid, std::uint64_t block);

  // Called from fibers.
  void wait() {
    current->state = State::waiting;
    leave();
  }
  void poll() {
    current->state = State::polling;
    leave();
  }
  void leave() {
    Thread& self = *current;
    self.stack.leave_for(stack_);
    self.scheduler = std::move(self.scheduler).resume();
    self.stack.entered(stack_);
  }
  void wake(Thread& thread) {
    thread.state = State::ready;
    ready_.push_back(&thread);
  }

  int sync_threads(int value);
  const std::uint64_t* exchange(Meeting meeting, unsigned mask, std::uint64_t value,
                                const Together& together);
  void meet_in_warpgroup(void* mine, const std::function<void(void* const*)>& together);
  void arrive(int id, int threads, bool waits);
  void cluster_arrive();
  void cluster_wait();

  static std::size_t window_bytes() { return (kMostSharedBytes + 1023) / 1024 * 1024; }

  Thread* current = nullptr;
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;
  unsigned rank = 0;
  std::byte* memory() const { return memory_; }
  std::vector<std::function<void()>> copies;
  std::vector<Warpgroup> warpgroups;

 private:
  void start(std::size_t threads, std::uint64_t block);
  void run_one(Thread& thread);
  void finish(Thread& thread);
  void complete_copy();
  void resume_polling();
  void release_block();
  void release_if_complete(Warp& warp, Gathering& gathering);
  Index index_of(std::uint64_t number, const Index& extent) const;

  std::byte* memory_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> ready_;
  std::vector<Warp> warps_;
  NamedBarrier named_[kNamedBarriers];
  std::size_t count_ = 0, alive_ = 0;
  std::vector<Thread*> at_barrier_;
  int barrier_value_ = 0, released_value_ = 0;
  Draw draw_{1};
  Stack stack_;  ///< of the scheduler
  unsigned cluster_arrived_ = 0;
  Cluster alone_{1};  ///< of a block without others
};

thread_local Multiprocessor* here = nullptr;

Multiprocessor& device() {
  if (here == nullptr || here->current == nullptr) {
    std::fprintf(stderr, "simulator: device code was called by the host\n");
    std::abort();
  }
  return *here;
}

Index Multiprocessor::index_of(std::uint64_t number, const Index& extent) const {
  return {static_cast<unsigned>(number % extent.x),
          static_cast<unsigned>(number / extent.x % extent.y),
          static_cast<unsigned>(number / extent.x / extent.y)};
}

void Multiprocessor::start(std::size_t threads, std::uint64_t block) {
  count_ = alive_ = threads;
  warps_.assign((threads + kWarp - 1) / kWarp, {});
  warpgroups.assign((threads + kWarpgroupThreads - 1) / kWarpgroupThreads, {});
  ready_.clear();
  at_barrier_.clear();
  barrier_value_ = 0;
  cluster_arrived_ = 0;
  for (NamedBarrier& barrier : named_) barrier = {};
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(memory_, window_bytes());
  ASAN_POISON_MEMORY_REGION(memory_ + grid->shape.shared_bytes,
                            window_bytes() - grid->shape.shared_bytes);
#endif
  std::memset(memory_, kPoison, grid->shape.shared_bytes);
  const Index block_index = index_of(block, grid->shape.grid);
  while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
  for (std::size_t i = 0; i < threads; ++i) {
    Thread& thread = *threads_[i];
    thread.number = static_cast<unsigned>(i);
    thread.place = {index_of(i, grid->shape.block), block_index, grid->shape.block,
                    grid->shape.grid};
    thread.stores.clear();
    thread.copies.clear();
    warps_[i / kWarp].live |= 1u << i % kWarp;
    if (!thread.self) {
      boost::context::fixedsize_stack allocator(kStackBytes);
      const boost::context::stack_context memory = allocator.allocate();
      thread.stack.bottom = static_cast<std::byte*>(memory.sp) - memory.size;
      thread.stack.size = memory.size;
      thread.self =
          fiber(std::allocator_arg, boost::context::preallocated(memory.sp, memory.size, memory),
                allocator, [this, &thread](fiber&& scheduler) {
                  thread.scheduler = std::move(scheduler);
                  thread.stack.entered(stack_);
                  while (true) {
                    grid->kernel();
                    thread.state = State::done;
                    leave();
                  }
                  return fiber{};
                });
    }
    wake(thread);
  }
}

void Multiprocessor::run_one(Thread& thread) {
  current = &thread;
  stack_.leave_for(thread.stack);
  thread.self = std::move(thread.self).resume();
  stack_.entered(thread.stack);
  current = nullptr;
  if (thread.state == State::done) finish(thread);
}

void Multiprocessor::finish(Thread& thread) {
  current = &thread;  // whose stores these are
  for (auto& group : thread.stores) {
    for (const auto& store : group) store();
  }
  current = nullptr;
  --alive_;
  Warp& warp = warps_[thread.number / kWarp];
  warp.live &= ~(1u << thread.number % kWarp);
  for (Gathering& gathering : warp.gatherings) release_if_complete(warp, gathering);
  if (!at_barrier_.empty() && at_barrier_.size() == alive_) release_block();
}

void Multiprocessor::complete_copy() {
  const std::size_t chosen = draw_.below(copies.size());
  std::swap(copies[chosen], copies.back());
  const std::function<void()> copy = std::move(copies.back());
  copies.pop_back();
  copy();
}

void Multiprocessor::run(Grid& of, std::uint64_t block) {
  here = this;
  grid = &of;
  const Shape& shape = of.shape;
  rank = static_cast<unsigned>(block % shape.cluster);
  cluster = of.clusters.empty() ? &alone_ : of.clusters[block / shape.cluster].get();
  cluster->windows[rank] = memory_;
  draw_ = Draw(of.seed * 1000003 + block);
  start(std::size_t{shape.block.x} * shape.block.y * shape.block.z, block);
  auto progress = std::chrono::steady_clock::now();
  while (alive_ > 0) {
    if (!ready_.empty()) {
      const std::size_t chosen = draw_.below(ready_.size());
      Thread& thread = *ready_[chosen];
      ready_[chosen] = ready_.back();
      ready_.pop_back();
      run_one(thread);
      continue;
    }
    if (!copies.empty()) {
      complete_copy();
      progress = std::chrono::steady_clock::now();
    }
    const std::size_t alive = alive_;
    std::size_t polling = 0, still = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      Thread& thread = *threads_[i];
      if (thread.state != State::polling) continue;
      ++polling;
      run_one(thread);
      if (thread.state == State::polling) ++still;
    }
    if (still < polling || alive_ < alive || !ready_.empty() || !copies.empty()) {
      progress = std::chrono::steady_clock::now();
      continue;
    }
    if (alive_ == 0) break;
    current = nullptr;
    if (polling == 0) fail("deadlock: every thread waits for another one");
    if (std::chrono::steady_clock::now() - progress > kPatience) {
      fail("deadlock: no barrier has completed for a minute");
    }
    std::this_thread::yield();
  }
  while (!copies.empty()) complete_copy();
  for (Warpgroup& group : warpgroups) {
    if (!group.products.empty()) fail("a warpgroup ends with products that it did not wait for");
  }
  grid = nullptr;
}

int Multiprocessor::sync_threads(int value) {
  if (at_barrier_.empty()) barrier_value_ = 0;
  barrier_value_ |= value;
  at_barrier_.push_back(current);
  if (at_barrier_.size() == alive_) {
    Thread* const self = current;
    release_block();
    // The last to arrive was woken with the others: it waits for its turn like them.
    current = self;
    leave();
  } else {
    wait();
  }
  return released_value_;
}

void Multiprocessor::release_block() {
  released_value_ = barrier_value_;
  barrier_value_ = 0;
  for (Thread* thread : at_barrier_) wake(*thread);
  at_barrier_.clear();
}

void Multiprocessor::release_if_complete(Warp& warp, Gathering& gathering) {
  if (gathering.arrived == 0 || gathering.arrived != (gathering.mask & warp.live)) return;
  const std::size_t first = static_cast<std::size_t>(&warp - warps_.data()) * kWarp;
  const unsigned arrived = gathering.arrived;
  gathering.arrived = 0;
  if (*gathering.together) (*gathering.together)(gathering.given);
  for (unsigned i = 0; i < kWarp; ++i) {
    if ((arrived >> i & 1u) == 0) continue;
    Thread& thread = *threads_[first + i];
    std::memcpy(thread.received, gathering.given, sizeof thread.received);
    wake(thread);
  }
}

const std::uint64_t* Multiprocessor::exchange(Meeting meeting, unsigned mask, std::uint64_t value,
                                              const Together& together) {
  Thread& self = *current;
  Warp& warp = warps_[self.number / kWarp];
  const unsigned lane = self.number % kWarp;
  if ((mask >> lane & 1u) == 0) fail("a lane is not in the mask of its warp instruction");
  Gathering& gathering = warp.gatherings[static_cast<unsigned>(__builtin_ctz(mask))];
  if (gathering.arrived == 0) {
    gathering.mask = mask;
    gathering.meeting = meeting;
    std::memset(gathering.given, 0, sizeof gathering.given);
  } else if (gathering.mask != mask || gathering.meeting != meeting) {
    fail("lanes of a warp meet in different instructions");
  }
  gathering.given[lane] = value;
  gathering.together = &together;
  gathering.arrived |= 1u << lane;
  self.state = State::waiting;
  release_if_complete(warp, gathering);
  leave();
  return self.received;
}

void Multiprocessor::meet_in_warpgroup(void* mine,
                                       const std::function<void(void* const*)>& together) {
  Warpgroup& group = warpgroups[current->number / kWarpgroupThreads];
  group.given[current->number % kWarpgroupThreads] = mine;
  if (++group.arrived < kWarpgroupThreads) return wait();
  group.arrived = 0;
  together(group.given);
  const std::size_t first = current->number / kWarpgroupThreads * kWarpgroupThreads;
  for (std::size_t i = first; i < first + kWarpgroupThreads; ++i) wake(*threads_[i]);
  leave();
}

void Multiprocessor::arrive(int id, int threads, bool waits) {
  if (id < 1 || id >= kNamedBarriers) fail("a named barrier has a number from 1 to 15");
  NamedBarrier& barrier = named_[id];
  ++barrier.arrived;
  if (waits) barrier.waiting.push_back(current);
  if (barrier.arrived == threads) {
    const std::vector<Thread*> waiting = std::move(barrier.waiting);
    barrier = {};
    for (Thread* thread : waiting) wake(*thread);
    if (waits) leave();
    return;
  }
  if (barrier.arrived > threads) fail("too many threads arrive at a named barrier");
  if (waits) wait();
}

void Multiprocessor::cluster_arrive() {
  current->cluster_generation = cluster->generation;
  if (++cluster_arrived_ == count_) {
    cluster_arrived_ = 0;
    if (++cluster->arrived == cluster->windows.size()) {
      cluster->arrived = 0;
      ++cluster->generation;
    }
  }
}
void Multiprocessor::cluster_wait() {
  while (cluster->generation == current->cluster_generation) poll();
}

/// Host threads that take blocks.
class Pool {
 public:
  Pool() {
    for (int i = 0; i < kBlocksAtOnce; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(Grid& grid) {
    std::unique_lock lock(mutex_);
    grid_ = &grid;
    ++launch_;
    busy_ = kBlocksAtOnce;
    changed_.notify_all();
    done_.wait(lock, [this] { return busy_ == 0; });
    grid_ = nullptr;
  }

 private:
  void work() {
    Multiprocessor multiprocessor;
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || launch_ != seen; });
      if (stopping_) return;
      seen = launch_;
      Grid& grid = *grid_;
      lock.unlock();
      for (std::uint64_t block = grid.next++; block < grid.blocks(); block = grid.next++) {
        multiprocessor.run(grid, block);
      }
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::vector<std::thread> workers_;
  Grid* grid_ = nullptr;
  std::uint64_t launch_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
};

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "simulator: %s\n", what);
  if (here != nullptr && here->grid != nullptr) {
    std::fprintf(stderr, "  kernel %s\n", here->grid->name);
    if (here->current != nullptr) {
      const Place& at = here->current->place;
      std::fprintf(stderr, "  block (%u, %u, %u), thread (%u, %u, %u)\n", at.block.x, at.block.y,
                   at.block.z, at.thread.x, at.thread.y, at.thread.z);
    }
  }
  std::abort();
}

void run_grid(const char* name, const Shape& shape, const std::function<void()>& kernel) {
  static std::mutex one_at_a_time;
  static Pool pool;
  static std::uint64_t seed = first_seed();
  const std::lock_guard lock(one_at_a_time);
  Grid grid{name, shape, kernel, seed++, {}, 0};
  if (shape.cluster > 1) {
    for (std::uint64_t i = 0; i < grid.blocks() / shape.cluster; ++i) {
      grid.clusters.push_back(std::make_unique<Cluster>(shape.cluster));
    }
  }
  pool.run(grid);
}

const Place& place() { return device().current->place; }
int sync_threads(int value) { return device().sync_threads(value); }
const std::uint64_t* exchange(Meeting meeting, unsigned mask, std::uint64_t value,
                              const Together& together) {
  return device().exchange(meeting, mask, value, together);
}
unsigned lane() { return device().current->number % kWarp; }
unsigned thread_of_block() { return device().current->number; }
void meet_in_warpgroup(void* mine, const std::function<void(void* const*)>& together) {
  device().meet_in_warpgroup(mine, together);
}
void named_sync(int id, int threads) { device().arrive(id, threads, true); }
void named_arrive(int id, int threads) { device().arrive(id, threads, false); }
void wait_until(const std::function<bool()>& ready) {
  while (!ready()) device().poll();
}

std::byte* shared_memory() { return device().memory(); }
std::uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const std::byte*>(pointer) - device().memory();
  if (offset < 0 || static_cast<std::size_t>(offset) >= device().grid->shape.shared_bytes) {
    fail("an address outside dynamic shared memory");
  }
  return static_cast<std::uint32_t>(offset);
}
std::byte* shared_pointer(std::uint32_t address) {
  if (address >= device().grid->shape.shared_bytes) {
    fail("an address outside dynamic shared memory");
  }
  return device().memory() + address;
}
std::byte* shared_of(unsigned rank, const void* pointer) {
  Multiprocessor& multiprocessor = device();
  const std::uint32_t address = shared_address(pointer);
  if (rank >= multiprocessor.cluster->windows.size()) fail("a rank outside the cluster");
  std::byte* const window = multiprocessor.cluster->windows[rank];
  if (window == nullptr) fail("a block of the cluster that has not started is addressed");
  return window + address;
}
unsigned cluster_rank() { return device().rank; }
void cluster_arrive() { device().cluster_arrive(); }
void cluster_wait() { device().cluster_wait(); }
void copy_later(std::function<void()> copy) { device().copies.push_back(std::move(copy)); }
std::vector<std::vector<std::function<void()>>>& pending_stores() {
  return device().current->stores;
}
std::vector<std::vector<std::function<void()>>>& pending_copies() {
  return device().current->copies;
}
std::vector<std::vector<std::function<void()>>>& pending_products() {
  return device().warpgroups[device().current->number / kWarpgroupThreads].products;
}

}  // namespace fp8lab::simulator
