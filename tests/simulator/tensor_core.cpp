#include "tests/simulator/tensor_core.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "emulation/numerics/mma.hpp"
#include "tests/simulator/device.hpp"

namespace fp8lab::simulator {
namespace {

using cuda::WgmmaTypes;
using numerics::FormatSpec;

constexpr int kRows = 64;
constexpr int kBytesK = 32;
constexpr std::uint32_t kSpoilt = 0xFFFFFFFF;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Accumulators of a warpgroup while products of them are pending.
struct Accumulators {
  std::vector<std::uint32_t*> of_thread;
  std::vector<std::uint32_t> values;  ///< (thread, n / 2)
  int count, uses = 0;

  std::uint32_t& at(int row, int column) {
    const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    const int element = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    return values[static_cast<std::size_t>(thread * count + element)];
  }
};

/// Codes of an operand, (rows, 32 bytes of K).
struct Codes {
  std::vector<std::uint16_t> codes;
  int k;
  const std::uint16_t* row(int i) const { return codes.data() + static_cast<std::size_t>(i) * k; }
};

std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

/// The tile that a descriptor names (operand_descriptor of kernels/ptx/wgmma.cuh).
Codes read_tile(std::uint64_t descriptor, int rows, int element_bytes, bool by_rows) {
  if (descriptor >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
  const auto begin = static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4;
  const auto leading = static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) << 4;
  const auto stride = static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  Codes tile{{}, kBytesK / element_bytes};
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < tile.k; ++k) {
      const auto r = static_cast<std::uint32_t>(row), i = static_cast<std::uint32_t>(k);
      const std::uint32_t address =
          by_rows ? begin + r / 64 * leading + i / 8 * stride + i % 8 * 128 + r % 64 * 2
                  : begin + r / 8 * stride + r % 8 * 128 +
                        i * static_cast<std::uint32_t>(element_bytes);
      const std::byte* at = shared_pointer(swizzled(address));
      std::uint16_t code = 0;
      std::memcpy(&code, at, static_cast<std::size_t>(element_bytes));
      tile.codes.push_back(code);
    }
  }
  return tile;
}

/// A from the registers of 128 threads: fragments of m16n8k16, one for each warp.
Codes read_registers(const std::vector<std::uint32_t>& registers) {
  Codes tile{std::vector<std::uint16_t>(kRows * 16), 16};
  for (int thread = 0; thread < 128; ++thread) {
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t pair = registers[static_cast<std::size_t>(thread * 4 + i)];
      const int at = (row + i % 2 * 8) * 16 + column + i / 2 * 8;
      tile.codes[static_cast<std::size_t>(at)] = static_cast<std::uint16_t>(pair);
      tile.codes[static_cast<std::size_t>(at + 1)] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
  return tile;
}

template <class Combine>
void for_each_sum(Accumulators& sums, const Codes& a, const Codes& b, int n,
                  const Combine& combine) {
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < n; ++column) {
      std::uint32_t& sum = sums.at(row, column);
      sum = combine(a.row(row), b.row(column), sum);
    }
  }
}

void multiply(const Product& product, const Codes& a, const Codes& b, Accumulators& sums) {
  const auto fp8 = [&](FormatSpec of_a, FormatSpec of_b) {
    for_each_sum(sums, a, b, product.n,
                 [&](const std::uint16_t* x, const std::uint16_t* y, std::uint32_t sum) {
                   return numerics::fused_group(numerics::kSm90WgmmaFp8F32, of_a, of_b, x, y, 32,
                                                product.add ? sum : 0u);
                 });
  };
  switch (product.types) {
    case WgmmaTypes::e4m3_e4m3: return fp8(numerics::kE4M3, numerics::kE4M3);
    case WgmmaTypes::e4m3_e5m2: return fp8(numerics::kE4M3, numerics::kE5M2);
    case WgmmaTypes::e5m2_e4m3: return fp8(numerics::kE5M2, numerics::kE4M3);
    case WgmmaTypes::e5m2_e5m2: return fp8(numerics::kE5M2, numerics::kE5M2);
    case WgmmaTypes::bf16:
      return for_each_sum(
          sums, a, b, product.n,
          [&](const std::uint16_t* x, const std::uint16_t* y, std::uint32_t sum) {
            return numerics::fused_group(numerics::kSm90Bf16F32, numerics::kBF16, numerics::kBF16,
                                         x, y, 16, product.add ? sum : 0u);
          });
    case WgmmaTypes::s8:
      return for_each_sum(
          sums, a, b, product.n,
          [&](const std::uint16_t* x, const std::uint16_t* y, std::uint32_t sum) {
            std::uint32_t total = product.add ? sum : 0u;
            for (int k = 0; k < 32; ++k) {
              const int term = static_cast<std::int8_t>(x[k]) * static_cast<std::int8_t>(y[k]);
              total += static_cast<std::uint32_t>(term);
            }
            return total;
          });
  }
}

/// What a thread brings to a product.
struct Part {
  void* d;
  const std::uint32_t* a;
};

/// Accumulators of the caller's warpgroup that are pending, by those of its first thread.
using Pending = std::map<void*, std::shared_ptr<Accumulators>>;
Pending& pending() {
  thread_local std::map<unsigned, Pending> of_warpgroup;
  return of_warpgroup[thread_of_block() / kWarpgroupThreads];
}

std::shared_ptr<Accumulators> accumulators(void* const* parts, int n) {
  const auto d = [&](int i) {
    return static_cast<std::uint32_t*>(static_cast<const Part*>(parts[i])->d);
  };
  std::shared_ptr<Accumulators>& sums = pending()[d(0)];
  if (sums == nullptr) {
    sums = std::make_shared<Accumulators>();
    sums->count = n / 2;
    for (int i = 0; i < static_cast<int>(kWarpgroupThreads); ++i) {
      sums->of_thread.push_back(d(i));
      sums->values.insert(sums->values.end(), d(i), d(i) + n / 2);
      for (int j = 0; j < n / 2; ++j) d(i)[j] = kSpoilt;
    }
  }
  ++sums->uses;
  return sums;
}

void deliver(const std::shared_ptr<Accumulators>& sums) {
  if (--sums->uses > 0) return;
  for (std::size_t i = 0; i < kWarpgroupThreads; ++i) {
    std::memcpy(sums->of_thread[i],
                sums->values.data() + i * static_cast<std::size_t>(sums->count),
                static_cast<std::size_t>(sums->count) * sizeof(std::uint32_t));
  }
  pending().erase(sums->of_thread[0]);
}

}  // namespace

void issue(const Product& product, void* d, const std::uint32_t* a) {
  Part mine{d, a};
  meet_in_warpgroup(&mine, [&](void* const* parts) {
    auto& groups = pending_products();
    if (groups.empty()) groups.emplace_back();
    std::vector<std::uint32_t> registers;
    if (product.a_in_registers) {
      for (unsigned i = 0; i < kWarpgroupThreads; ++i) {
        const std::uint32_t* of_thread = static_cast<const Part*>(parts[i])->a;
        registers.insert(registers.end(), of_thread, of_thread + 4);
      }
    }
    groups.back().push_back([product, registers, sums = accumulators(parts, product.n)] {
      const int bytes = product.types == WgmmaTypes::bf16 ? 2 : 1;
      const Codes left = product.a_in_registers
                             ? read_registers(registers)
                             : read_tile(product.a, kRows, bytes, product.a_by_rows);
      const Codes right = read_tile(product.b, product.n, bytes, product.b_by_rows);
      multiply(product, left, right, *sums);
      deliver(sums);
    });
  });
}

void commit_products() {
  meet_in_warpgroup(nullptr, [](void* const*) { pending_products().emplace_back(); });
}

/// The last group is the open one.
void wait_for_products(int left) {
  meet_in_warpgroup(nullptr, [&](void* const*) {
    auto& groups = pending_products();
    while (groups.size() > static_cast<std::size_t>(left) + 1) {
      for (const auto& product : groups.front()) product();
      groups.erase(groups.begin());
    }
    if (groups.size() == 1 && groups.front().empty()) groups.clear();
  });
}

void multiply_in_warp(const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, float* d) {
  struct Lane {
    const std::uint32_t* a;
    std::uint32_t b[2];
    float* d;
  };
  Lane mine{a, {b0, b1}, d};
  exchange(Meeting::multiply, kAllLanes, reinterpret_cast<std::uintptr_t>(&mine),
           [](const std::uint64_t* of_lane) {
             std::uint16_t left[16][16], right[8][16];
             const auto lane_of = [&](int i) -> const Lane& {
               return *reinterpret_cast<const Lane*>(of_lane[i]);
             };
             for (int lane = 0; lane < 32; ++lane) {
               const int g = lane / 4, column = lane % 4 * 2;
               for (int i = 0; i < 4; ++i) {
                 std::memcpy(&left[g + i % 2 * 8][column + i / 2 * 8], &lane_of(lane).a[i], 4);
               }
               for (int i = 0; i < 2; ++i) {
                 std::memcpy(&right[g][column + i * 8], &lane_of(lane).b[i], 4);
               }
             }
             for (int lane = 0; lane < 32; ++lane) {
               for (int i = 0; i < 4; ++i) {
                 float& sum = lane_of(lane).d[i];
                 const auto* x = left[lane / 4 + i / 2 * 8];
                 const auto* y = right[lane % 4 * 2 + i % 2];
                 sum = numerics::bits_float(numerics::fused_group(
                     numerics::kSm90Bf16F32, numerics::kBF16, numerics::kBF16, x, y, 16,
                     numerics::float_bits(sum)));
               }
             }
           });
}

void load_matrices(const std::uint16_t* row, std::uint32_t* x, bool transposed) {
  struct Lane {
    const std::uint16_t* row;
    std::uint32_t* x;
  };
  Lane mine{row, x};
  exchange(Meeting::load_matrices, kAllLanes, reinterpret_cast<std::uintptr_t>(&mine),
           [&](const std::uint64_t* of_lane) {
             for (int lane = 0; lane < 32; ++lane) {
               const int g = lane / 4, t = lane % 4;
               const auto* to = reinterpret_cast<const Lane*>(of_lane[lane]);
               for (int i = 0; i < 4; ++i) {
                 const auto element = [&](int r, int c) {
                   return std::uint32_t{reinterpret_cast<const Lane*>(of_lane[8 * i + r])->row[c]};
                 };
                 to->x[i] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                                       : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
               }
             }
           });
}

}  // namespace fp8lab::simulator
