// Barriers in shared memory, the bulk copies that complete on them, and copies of single threads:
// PTX ISA 8.x, sections "mbarrier", "cp.async.bulk" and "cp.async".
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace fp8lab::simulator {

/// A 64-bit word in shared memory. Atomic: blocks of a cluster reach it from other host threads.
class Mbarrier {
 public:
  explicit Mbarrier(void* word) : word_(static_cast<std::uint64_t*>(word)) {}

  void init(std::uint32_t arrivals);
  /// Expects `bytes` more in this phase, and arrives.
  void arrive(std::uint32_t bytes);
  /// Expects `bytes` more in this phase.
  void expect(std::uint32_t bytes);
  /// `bytes` have come.
  void complete(std::uint32_t bytes);
  /// Whether the phase of this parity is over.
  bool passed(std::uint32_t parity) const;

 private:
  template <class Change>
  void change(const Change& change);

  std::uint64_t* word_;
};

/// First element of a box along each extent of its tensor.
struct Corner {
  int at[3];
};

/// The box into shared memory of the block, or of every block of the cluster whose bit is set in
/// `blocks`, completing on the barrier at the same place there. Outside the tensor are zeros.
void load_box(void* destination, const CUtensorMap& map, std::uint64_t* barrier, Corner corner,
              std::uint16_t blocks);
void load_bytes(void* destination, const void* source, std::uint64_t* barrier, std::uint32_t bytes);

/// Shared memory into the box, when the calling thread waits for it: elements outside are left.
void store_box(const void* source, const CUtensorMap& map, Corner corner);
void store_commit();
void store_wait(int pending);

/// Bytes of global memory into static or dynamic shared memory, when the calling thread waits.
void copy_bytes(void* destination, const void* source, std::size_t bytes);
void copy_commit();
void copy_wait(int pending);

}  // namespace fp8lab::simulator
