#include "tests/simulator/mbarrier.hpp"

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/simulator/device.hpp"

namespace fp8lab::simulator {
namespace {

constexpr int kSpoilt = 0xFF;  ///< NaN of every format that is copied

/// The word of a barrier.
struct Fields {
  std::int32_t bytes;     ///< expected and not yet here; copies may be faster than expect
  std::uint16_t pending;  ///< arrivals
  std::uint16_t arrivals : 15, phase : 1;

  void end_phase() {
    if (pending != 0 || bytes != 0) return;
    pending = arrivals;
    phase ^= 1;
  }
};
static_assert(sizeof(Fields) == sizeof(std::uint64_t));

Fields fields_of(std::uint64_t word) {
  Fields fields;
  std::memcpy(&fields, &word, sizeof fields);
  return fields;
}

/// Where the byte of a box lies that would have this address in shared memory without a swizzle:
/// the 16-byte pieces of a line change places by the line's number (PTX ISA, "swizzling modes").
std::uint32_t swizzled(std::uint32_t address, CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: return address;
    case CU_TENSOR_MAP_SWIZZLE_32B: return address ^ (address >> 7 & 1) << 4;
    case CU_TENSOR_MAP_SWIZZLE_64B: return address ^ (address >> 7 & 3) << 4;
    case CU_TENSOR_MAP_SWIZZLE_128B: return address ^ (address >> 7 & 7) << 4;
  }
  fail("an unknown swizzle");
}

std::uint32_t bytes_of(const CUtensorMap& map) {
  return map.box[0] * map.box[1] * map.box[2] * map.element_bytes;
}

/// Calls visit(byte in the box, global memory, or null outside the tensor) for each element.
template <class Visit>
void for_each_element(const CUtensorMap& map, const Corner& corner, const Visit& visit) {
  std::uint32_t byte = 0;
  for (std::uint32_t z = 0; z < map.box[2]; ++z) {
    for (std::uint32_t y = 0; y < map.box[1]; ++y) {
      for (std::uint32_t x = 0; x < map.box[0]; ++x, byte += map.element_bytes) {
        const std::int64_t at[3] = {std::int64_t{corner.at[0]} + x, std::int64_t{corner.at[1]} + y,
                                    std::int64_t{corner.at[2]} + z};
        std::byte* global = map.data;
        for (int i = 0; i < 3 && global != nullptr; ++i) {
          const bool inside = at[i] >= 0 && at[i] < static_cast<std::int64_t>(map.sizes[i]);
          global = inside ? global + at[i] * static_cast<std::int64_t>(map.strides[i]) : nullptr;
        }
        visit(byte, global);
      }
    }
  }
}

void check_box(const void* shared) {
  if (shared_address(shared) % 128 != 0) {
    fail("a bulk copy to or from shared memory that is not 128-byte aligned");
  }
}

/// Does all groups but the last `pending` and the open one.
void finish(std::vector<std::vector<std::function<void()>>>& groups, int pending) {
  while (groups.size() > static_cast<std::size_t>(pending) + 1) {
    for (const auto& one : groups.front()) one();
    groups.erase(groups.begin());
  }
}

}  // namespace

template <class Change>
void Mbarrier::change(const Change& change) {
  std::atomic_ref<std::uint64_t> word(*word_);
  std::uint64_t seen = word.load();
  std::uint64_t next = 0;
  do {
    Fields fields = fields_of(seen);
    change(fields);
    std::memcpy(&next, &fields, sizeof next);
  } while (!word.compare_exchange_weak(seen, next));
}

void Mbarrier::init(std::uint32_t arrivals) {
  if (arrivals == 0 || arrivals > 0x7FFF) fail("an mbarrier takes 1 to 32767 arrivals here");
  Fields fields{};
  fields.pending = static_cast<std::uint16_t>(arrivals);
  fields.arrivals = static_cast<std::uint16_t>(arrivals & 0x7FFF);
  std::uint64_t next = 0;
  std::memcpy(&next, &fields, sizeof next);
  std::atomic_ref<std::uint64_t>(*word_).store(next);
}

void Mbarrier::arrive(std::uint32_t bytes) {
  change([&](Fields& fields) {
    if (fields.pending == 0) fail("an mbarrier has more arrivals than it expects in a phase");
    fields.bytes += static_cast<std::int32_t>(bytes);
    --fields.pending;
    fields.end_phase();
  });
}

void Mbarrier::expect(std::uint32_t bytes) {
  change([&](Fields& fields) { fields.bytes += static_cast<std::int32_t>(bytes); });
}

void Mbarrier::complete(std::uint32_t bytes) {
  change([&](Fields& fields) {
    fields.bytes -= static_cast<std::int32_t>(bytes);
    fields.end_phase();
  });
}

bool Mbarrier::passed(std::uint32_t parity) const {
  return fields_of(std::atomic_ref<std::uint64_t>(*word_).load()).phase != (parity & 1);
}

void load_box(void* destination, const CUtensorMap& map, std::uint64_t* barrier, Corner corner,
              std::uint16_t blocks) {
  check_box(destination);
  const std::uint32_t address = shared_address(destination);
  for (unsigned rank = 0; rank < 16; ++rank) {
    if (blocks != 0 && (blocks >> rank & 1) == 0) continue;
    const unsigned to_rank = blocks == 0 ? cluster_rank() : rank;
    std::byte* const to = shared_of(to_rank, destination);
    std::byte* const there = shared_of(to_rank, barrier);
    std::memset(to, kSpoilt, bytes_of(map));
    copy_later([=, map = map] {
      for_each_element(map, corner, [&](std::uint32_t byte, const std::byte* global) {
        std::byte* const at = to - address + swizzled(address + byte, map.swizzle);
        if (global == nullptr) {
          std::memset(at, 0, map.element_bytes);
        } else {
          std::memcpy(at, global, map.element_bytes);
        }
      });
      Mbarrier(there).complete(bytes_of(map));
    });
    if (blocks == 0) break;
  }
}

void load_bytes(void* destination, const void* source, std::uint64_t* barrier,
                std::uint32_t bytes) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(source) % 16 == 0 && bytes % 16 == 0 &&
                       shared_address(destination) % 16 == 0;
  if (!aligned) fail("a bulk copy that is not a multiple of 16 bytes");
  std::memset(destination, kSpoilt, bytes);
  copy_later([=] {
    std::memcpy(destination, source, bytes);
    Mbarrier(barrier).complete(bytes);
  });
}

void store_box(const void* source, const CUtensorMap& map, Corner corner) {
  check_box(source);
  const std::uint32_t address = shared_address(source);
  const auto* from = static_cast<const std::byte*>(source);
  auto& groups = pending_stores();
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back([=, map = map] {
    for_each_element(map, corner, [&](std::uint32_t byte, std::byte* global) {
      if (global == nullptr) return;
      const std::byte* const at = from - address + swizzled(address + byte, map.swizzle);
      std::memcpy(global, at, map.element_bytes);
    });
  });
}

void store_commit() { pending_stores().emplace_back(); }
void store_wait(int pending) { finish(pending_stores(), pending); }

void copy_bytes(void* destination, const void* source, std::size_t bytes) {
  const bool aligned = (bytes == 4 || bytes == 8 || bytes == 16) &&
                       reinterpret_cast<std::uintptr_t>(source) % bytes == 0 &&
                       reinterpret_cast<std::uintptr_t>(destination) % bytes == 0;
  if (!aligned) fail("an asynchronous copy that is not of 4, 8 or 16 aligned bytes");
  std::memset(destination, kSpoilt, bytes);
  auto& groups = pending_copies();
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back([=] { std::memcpy(destination, source, bytes); });
}
void copy_commit() {
  auto& groups = pending_copies();
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
void copy_wait(int pending) { finish(pending_copies(), pending); }

}  // namespace fp8lab::simulator
