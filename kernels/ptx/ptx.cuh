// Instructions of sm_90a without a C++ name: barriers, clusters and bulk copies. PTX ISA 8.x,
// sections "mbarrier", "barrier", "cp.async.bulk" and "setmaxnreg". wgmma.cuh has the tensor
// core's. tests/simulator/include defines the same functions for the simulated GPU.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fp8lab::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

inline constexpr int kWarpgroup = 128;  ///< threads

/// Tells the compiler that all threads of a warp have the same value, so that it computes derived
/// values once for the warp. Precondition: whole warps call it.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

/// Returns the value, opaque to the compiler, which therefore computes derived values here instead
/// of keeping them in registers from before a loop.
__device__ inline int computed_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Returns the value in a register: otherwise the compiler would reload a constant or a special
/// register in each iteration of a loop. Precondition: whole warps call it.
__device__ inline std::uint32_t held(std::uint32_t value) {
  // A value that the compiler cannot predict: a lane's number after a shuffle.
  std::uint32_t lane = threadIdx.x & 31u;
  asm volatile("shfl.sync.bfly.b32 %0, %0, 0, 0x1f, 0xffffffff;" : "+r"(lane));
  return value + (lane >> 5);
}
__device__ inline int held(int value) {
  return static_cast<int>(held(static_cast<std::uint32_t>(value)));
}

/// Returns the block's shared memory as one object, with its address kept in a register. The
/// address of a block's window depends on its rank in the cluster, and the compiler would reread
/// that (S2UR, about 30 cycles) before each access in a loop. Precondition: whole warps call it.
template <class T>
__device__ inline T& held_shared(void* memory) {
  int address = uniform(static_cast<int>(shared_address(memory)));
  asm volatile("" : "+r"(address));
  return *static_cast<T*>(__cvta_shared_to_generic(static_cast<std::uint32_t>(address)));
}

// --- mbarrier -----------------------------------------------------------------------------------

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
/// Makes initialised barriers visible to the asynchronous proxy.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives in threads with `arrives`, without a branch.
__device__ inline void barrier_arrive_if(bool arrives, std::uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.b32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(arrives ? 1 : 0)
      : "memory");
}
/// Arrives and announces `bytes` of copies that will complete on the barrier.
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Announces `bytes` without arriving; an arrival that ends the phase must follow.
__device__ inline void barrier_announce(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// Arrives, in threads with `arrives`, on the barrier at the same address in the shared memory of
/// block `rank` of the cluster.
__device__ inline void barrier_arrive_at_if(bool arrives, std::uint64_t* barrier,
                                            std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      ".reg .b32 remote;\n"
      "setp.ne.b32 arrives, %2, 0;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "@arrives mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank), "r"(arrives ? 1 : 0)
      : "memory");
}
/// Returns true if the phase of the given parity is complete; does not wait.
__device__ inline bool barrier_passed(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed != 0;
}
/// Waits until the phase of the given parity is complete.
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity), "r"(10000000)
      : "memory");
}

/// Position in a ring of stages, which are filled and read in turn. Each stage has a full and an
/// empty barrier. Readers wait for `parity`, writers for the other one.
template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- arithmetic ---------------------------------------------------------------------------------

/// Returns x * y, computed as an FMA. The compiler lets the warp scheduler switch to
/// another warp after an FMA, but not after a multiplication, which would delay the
/// products of the other warpgroup.
__device__ inline float yielding_product(float x, float y) {
  float product;
  asm("fma.rn.f32 %0, %1, %2, 0f80000000;" : "=f"(product) : "f"(x), "f"(y));  // x * y - 0
  return product;
}

/// Returns x * y rounded down; subnormal x, y and products count as zero.
__device__ inline float flushed_product_down(float x, float y) {
  float product;
  asm("mul.rm.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
  return product;
}

/// Converts the two BF16 of a word to FP64, the lower one first.
__device__ inline void widen_pair(std::uint32_t pair, double& low, double& high) {
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f64.bf16 %0, low;\n"
      "cvt.f64.bf16 %1, high;\n"
      "}\n"
      : "=d"(low), "=d"(high)
      : "r"(pair));
}

/// Returns 1 / x within one unit in the last place; subnormal x and results count as zero.
__device__ inline float approximate_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// --- named barriers and clusters ----------------------------------------------------------------

/// Waits at a named barrier for `threads` arrivals, this warp's included.
__device__ inline void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// Arrives at a named barrier without waiting.
__device__ inline void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Waits for every thread of the cluster; their earlier writes are visible afterwards.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

// --- bulk tensor copy ---------------------------------------------------------------------------

/// Copies the box at (x, y) of a two-dimensional tensor map to shared memory;
/// elements outside are zero.
__device__ inline void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier,
                                int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
/// Copies the box at (x, y, z) of a three-dimensional map.
__device__ inline void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier,
                                int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// Multicasts the box at (x, y) to the same address in every block of the cluster whose bit is set
/// in `blocks`. Each block's barrier at the same address counts the bytes.
__device__ inline void copy_box_to(void* destination, const CUtensorMap* map,
                                   std::uint64_t* barrier, int x, int y, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}
/// Copies `bytes` of global memory. Precondition: both addresses and `bytes` are multiples of 16.
__device__ inline void copy_bytes(void* destination, const void* source, std::uint64_t* barrier,
                                  std::uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::
          "r"(shared_address(destination)),
      "l"(source), "r"(shared_address(barrier)), "r"(bytes)
      : "memory");
}
/// Stores shared memory to the box at (x, y); does not write elements outside the tensor. Belongs
/// to the calling thread's next store_commit. L2 policy evict_first: the data is not re-read soon.
__device__ inline void store_box(const void* source, const CUtensorMap* map, int x, int y) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1],"
      " policy;\n"
      "}\n" ::"l"(map),
      "r"(shared_address(source)), "r"(x), "r"(y)
      : "memory");
}
/// Stores to the box at (x, y, z) of a three-dimensional map; default L2 policy,
/// the data is re-read soon.
__device__ inline void store_box(const void* source, const CUtensorMap* map, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(source)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most `kPending` of the thread's stores still read their shared memory.
template <int kPending>
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ inline void store_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// Makes this thread's ordinary writes to shared memory visible to bulk copies.
__device__ inline void async_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- the grid -----------------------------------------------------------------------------------

/// Signals another block's thread that the writes to global memory of this thread, and of those
/// that it has synchronised with, are visible.
__device__ inline void signal_set(unsigned* signal) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(signal) : "memory");
}
/// Waits for signal_set. Precondition: whole warps call it; they stay together.
__device__ inline void signal_await(const unsigned* signal) {
  unsigned set = 0;
  while (__any_sync(0xffffffffu, set == 0)) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(signal) : "memory");
  }
}
/// Lets the next kernel of the stream start as soon as there is room, if it was launched with
/// programmatic stream serialization.
__device__ inline void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits until the earlier kernels of the stream are done and their writes are visible. A kernel
/// launched with programmatic stream serialization may start before that.
__device__ inline void wait_for_earlier_kernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// --- registers of a warpgroup -------------------------------------------------------------------

template <int kRegisters>
__device__ inline void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace fp8lab::cuda
