#include "tests/simulator/tensor_core.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulation/cpu/attention/bf16_chain.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/numerics/host_device.hpp"
#include "kernels/probes/mma_forms.hpp"
#include "tests/simulator/device.hpp"

namespace fp8lab::simulator {
namespace {

using cuda::WgmmaTypes;

constexpr int kRows = 64;
constexpr int kBytesK = 32;
constexpr std::uint32_t kSpoilt = 0xFFFFFFFF;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Accumulators of a warpgroup while products of them are pending, (64, n).
struct Accumulators {
  std::vector<std::uint32_t*> of_thread;
  std::vector<float> values;
  int n, uses = 0;

  /// Where element i of a thread lies.
  float& at(std::size_t thread, int i) {
    const int lane = static_cast<int>(thread % 32), warp = static_cast<int>(thread / 32);
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    return values[static_cast<std::size_t>(row * n + column)];
  }
};

/// Codes of an operand, (rows, 32 bytes of K).
template <class Code>
struct Codes {
  static constexpr int kLength = kBytesK / static_cast<int>(sizeof(Code));
  std::vector<Code> codes;
};

/// One output of an mma.sync of Hopper from 32 bytes of each operand.
std::uint32_t multiply_row(cuda::MmaTypes types, const std::uint32_t* a, const std::uint32_t* b,
                           std::uint32_t c) {
  using cuda::MmaTypes;
  const cuda::MmaForm& form = cuda::form_of(types);
  std::uint32_t x[kBytesK], y[kBytesK];
  const int bytes = kBytesK / form.k;
  for (int i = 0; i < form.k; ++i) {
    x[i] = y[i] = 0;
    std::memcpy(&x[i], reinterpret_cast<const char*>(a) + i * bytes,
                static_cast<std::size_t>(bytes));
    std::memcpy(&y[i], reinterpret_cast<const char*>(b) + i * bytes,
                static_cast<std::size_t>(bytes));
    if (types == MmaTypes::tf32_f32) {
      x[i] >>= 13;  // of FP32, which the unit does not read whole
      y[i] >>= 13;
    }
  }
  if (cuda::is_fp8(types)) {
    const auto output =
        form.to_f16 ? numerics::OutputKind::f16_nearest : numerics::OutputKind::f32_truncated;
    return numerics::mma_sync_fp8(output, form.a, form.b, x, y, form.k, c);
  }
  const auto group = [&](const numerics::GroupModel& model) {
    return numerics::fused_group(model, form.a, form.b, x, y, form.k, c);
  };
  switch (types) {
    case MmaTypes::bf16_f32: return group(numerics::kSm90Bf16F32);
    case MmaTypes::f16_f32: return group(numerics::kSm90Fp16F32);
    case MmaTypes::f16_f16: return group(numerics::kSm90Fp16F16);
    default: return group(numerics::kSm90Tf32F32);
  }
}

/// The tile that a descriptor names (operand_descriptor and line_descriptor of
/// kernels/ptx/wgmma.cuh).
template <class Code>
Codes<Code> read_tile(std::uint64_t descriptor, int rows, bool by_rows) {
  const auto mode = static_cast<std::uint32_t>(descriptor >> 62);
  if (mode != 1 && (mode != 2 || by_rows)) fail("a descriptor in an unknown swizzle");
  const std::uint32_t line = mode == 1 ? 128 : 64;
  const auto swizzled = [&](std::uint32_t address) {
    return address ^ (address >> 7 & (mode == 1 ? 7u : 3u)) << 4;
  };
  const auto begin = static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4;
  const auto leading = static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) << 4;
  const auto stride = static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  Codes<Code> tile;
  tile.codes.reserve(static_cast<std::size_t>(rows * tile.kLength));
  for (std::uint32_t row = 0; row < static_cast<std::uint32_t>(rows); ++row) {
    for (std::uint32_t k = 0; k < static_cast<std::uint32_t>(tile.kLength); ++k) {
      const std::uint32_t address =
          by_rows ? begin + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                  : begin + row / 8 * stride + row % 8 * line +
                        k * static_cast<std::uint32_t>(sizeof(Code));
      Code code;
      std::memcpy(&code, shared_pointer(swizzled(address)), sizeof code);
      tile.codes.push_back(code);
    }
  }
  return tile;
}

/// A from the registers of 128 threads: fragments of m16n8k16 or m16n8k32, one for each warp.
template <class Code>
Codes<Code> read_registers(const std::vector<std::uint32_t>& registers) {
  constexpr int kLength = Codes<Code>::kLength, kOfRegister = kLength / 8;
  Codes<Code> tile{std::vector<Code>(static_cast<std::size_t>(kRows * kLength))};
  for (int thread = 0; thread < 128; ++thread) {
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * kOfRegister;
    for (int i = 0; i < 4; ++i) {
      const int at = (row + i % 2 * 8) * kLength + column + i / 2 * (kLength / 2);
      std::memcpy(&tile.codes[static_cast<std::size_t>(at)],
                  &registers[static_cast<std::size_t>(thread * 4 + i)], sizeof registers[0]);
    }
  }
  return tile;
}

// The products are the emulator's vectorised chains of one group.

/// sums (m, n) += a (m, 16) b (n, 16)^T.
void multiply_bf16(const std::uint16_t* a, int m, const std::uint16_t* b, int n, float* sums) {
  thread_local cpu::Bf16Panel panel;
  thread_local cpu::Bf16Chain chain;
  panel.pack({b, 1, 16}, 16, n);
  chain.multiply({a, 16, 1}, m, panel, 0, 16, 0, n, sums, n);
}

void multiply_fp8(const Codes<std::uint8_t>& a, cpu::Fp8Format format_a,
                  const Codes<std::uint8_t>& b, cpu::Fp8Format format_b, int n, float* sums) {
  const cpu::GemmKernels& kernels = cpu::gemm_kernels();
  constexpr std::size_t kRowBytes = cpu::kFp8Group * cpu::kFp8ProductBytes;
  const std::int64_t width = kernels.fp8_columns;
  alignas(64) std::byte rows[kRows * kRowBytes];
  const cpu::Fp8Source of_a{a.codes.data(), kBytesK, format_a};
  for (std::int64_t i = 0; i < kRows; ++i) {
    kernels.pack_fp8_row(&of_a, i, kBytesK, kBytesK, rows + i * kRowBytes, kRowBytes);
  }
  thread_local cpu::AlignedBuffer panel_memory, sum_memory;
  auto* panel = panel_memory.reserve_as<std::byte>(
      static_cast<std::size_t>(width * kBytesK * cpu::kFp8PanelBytes));
  auto* inside = sum_memory.reserve_as<float>(static_cast<std::size_t>(kRows * width));
  const cpu::Fp8Source of_b{b.codes.data(), kBytesK, format_b};
  const cpu::TowardZero rounding;
  for (std::int64_t first = 0; first < n; first += width) {
    const std::int64_t columns = std::min<std::int64_t>(width, n - first);
    kernels.pack_fp8_panel(&of_b, first, n, kBytesK, panel);
    std::fill_n(inside, kRows * width, 0.0f);
    for (std::int64_t i = 0; i < kRows; ++i) {
      std::copy_n(sums + i * n + first, columns, inside + i * width);
    }
    cpu::ChainTile tile{};
    tile.a = rows;
    tile.a_row_bytes = tile.a_group_bytes = kRowBytes;
    tile.rows = kRows;
    tile.b = panel;
    tile.k = kBytesK;
    tile.c = inside;
    tile.start = sums + first;
    tile.start_stride = n;
    tile.last_column = columns;
    kernels.chain(cpu::ChainKind::fp8_32, tile);
    for (std::int64_t i = 0; i < kRows; ++i) {
      std::copy_n(inside + i * width, columns, sums + i * n + first);
    }
  }
}

/// In 32 bits, which wrap around.
void multiply_s8(const Codes<std::uint8_t>& a, const Codes<std::uint8_t>& b, int n, float* sums) {
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < n; ++column) {
      float& place = sums[row * n + column];
      auto total = numerics::float_bits(place);
      for (int k = 0; k < kBytesK; ++k) {
        total += static_cast<std::uint32_t>(
            static_cast<std::int8_t>(a.codes[static_cast<std::size_t>(row * kBytesK + k)]) *
            static_cast<std::int8_t>(b.codes[static_cast<std::size_t>(column * kBytesK + k)]));
      }
      place = numerics::bits_float(total);
    }
  }
}

/// `registers`: A, or empty.
void multiply(const Product& product, const std::vector<std::uint32_t>& registers, float* sums) {
  using cpu::Fp8Format;
  if (!product.add) std::fill_n(sums, kRows * product.n, 0.0f);
  if (product.types == WgmmaTypes::bf16) {
    const auto a = product.a_in_registers
                       ? read_registers<std::uint16_t>(registers)
                       : read_tile<std::uint16_t>(product.a, kRows, product.a_by_rows);
    const auto b = read_tile<std::uint16_t>(product.b, product.n, product.b_by_rows);
    return multiply_bf16(a.codes.data(), kRows, b.codes.data(), product.n, sums);
  }
  const auto a = product.a_in_registers ? read_registers<std::uint8_t>(registers)
                                        : read_tile<std::uint8_t>(product.a, kRows, false);
  const auto b = read_tile<std::uint8_t>(product.b, product.n, false);
  const auto fp8 = [&](Fp8Format of_a, Fp8Format of_b) {
    multiply_fp8(a, of_a, b, of_b, product.n, sums);
  };
  switch (product.types) {
    case WgmmaTypes::e4m3_e4m3: return fp8(Fp8Format::e4m3, Fp8Format::e4m3);
    case WgmmaTypes::e4m3_e5m2: return fp8(Fp8Format::e4m3, Fp8Format::e5m2);
    case WgmmaTypes::e5m2_e4m3: return fp8(Fp8Format::e5m2, Fp8Format::e4m3);
    case WgmmaTypes::e5m2_e5m2: return fp8(Fp8Format::e5m2, Fp8Format::e5m2);
    case WgmmaTypes::s8: return multiply_s8(a, b, product.n, sums);
    case WgmmaTypes::bf16: break;
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
  const auto d = [&](std::size_t i) {
    return static_cast<std::uint32_t*>(static_cast<const Part*>(parts[i])->d);
  };
  std::shared_ptr<Accumulators>& sums = pending()[d(0)];
  if (sums == nullptr) {
    sums = std::make_shared<Accumulators>();
    sums->n = n;
    sums->values.resize(static_cast<std::size_t>(kRows * n));
    for (std::size_t thread = 0; thread < kWarpgroupThreads; ++thread) {
      sums->of_thread.push_back(d(thread));
      for (int i = 0; i < n / 2; ++i) {
        sums->at(thread, i) = numerics::bits_float(std::exchange(d(thread)[i], kSpoilt));
      }
    }
  }
  ++sums->uses;
  return sums;
}

void deliver(Accumulators& sums) {
  if (--sums.uses > 0) return;
  for (std::size_t thread = 0; thread < kWarpgroupThreads; ++thread) {
    for (int i = 0; i < sums.n / 2; ++i) {
      sums.of_thread[thread][i] = numerics::float_bits(sums.at(thread, i));
    }
  }
  pending().erase(sums.of_thread[0]);
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
      multiply(product, registers, sums->values.data());
      deliver(*sums);
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
             float sums[16][8];
             const auto lane_of = [&](int i) -> const Lane& {
               return *reinterpret_cast<const Lane*>(of_lane[i]);
             };
             const auto for_each_sum = [&](const auto& visit) {
               for (int lane = 0; lane < 32; ++lane) {
                 for (int i = 0; i < 4; ++i) {
                   visit(lane_of(lane).d[i], sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
                 }
               }
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
             for_each_sum([](float& of_lane_sum, float& sum) { sum = of_lane_sum; });
             multiply_bf16(left[0], 16, right[0], 8, sums[0]);
             for_each_sum([](float& of_lane_sum, float& sum) { of_lane_sum = sum; });
           });
}

void multiply_tile_in_warp(int number, const std::uint32_t* a, const std::uint32_t* b,
                           std::uint32_t* d) {
  const auto types = static_cast<cuda::MmaTypes>(number);
  struct Lane {
    const std::uint32_t *a, *b;
    std::uint32_t* d;
  };
  Lane mine{a, b, d};
  exchange(Meeting::multiply, kAllLanes, reinterpret_cast<std::uintptr_t>(&mine),
           [types](const std::uint64_t* of_lane) {
             std::uint32_t left[16][kBytesK / 4], right[8][kBytesK / 4], sums[16][8];
             const bool to_f16 = cuda::form_of(types).to_f16;
             const auto lane_of = [&](int i) -> const Lane& {
               return *reinterpret_cast<const Lane*>(of_lane[i]);
             };
             // Element i of a lane: its register, the shift in it, its place in the tile.
             const auto for_each_sum = [&](const auto& visit) {
               for (int lane = 0; lane < 32; ++lane) {
                 for (int i = 0; i < 4; ++i) {
                   std::uint32_t& word = lane_of(lane).d[to_f16 ? i / 2 : i];
                   visit(word, to_f16 ? i % 2 * 16 : 0,
                         sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
                 }
               }
             };
             for (int lane = 0; lane < 32; ++lane) {
               const int g = lane / 4, t = lane % 4;
               for (int i = 0; i < 4; ++i) left[g + i % 2 * 8][t + i / 2 * 4] = lane_of(lane).a[i];
               for (int i = 0; i < 2; ++i) right[g][t + i * 4] = lane_of(lane).b[i];
             }
             for_each_sum([&](const std::uint32_t& word, int shift, std::uint32_t& sum) {
               sum = to_f16 ? word >> shift & 0xFFFFu : word;
             });
             for (int row = 0; row < 16; ++row) {
               for (int column = 0; column < 8; ++column) {
                 sums[row][column] =
                     multiply_row(types, left[row], right[column], sums[row][column]);
               }
             }
             for_each_sum([&](std::uint32_t& word, int shift, const std::uint32_t& sum) {
               word = to_f16 ? (word & ~(0xFFFFu << shift)) | sum << shift : sum;
             });
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
