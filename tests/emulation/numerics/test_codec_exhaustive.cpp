#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#if defined(FP8LAB_HAVE_CUDA_FP8_HEADER)
// The toolkit's header is not written for these warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <cuda_fp8.h>
#pragma GCC diagnostic pop
#endif

#include "emulation/numerics/codec.hpp"
#include "src/validate/codec.hpp"
#include "src/validate/conv_hashes.hpp"

namespace numerics = fp8lab::numerics;

namespace {

constexpr std::uint32_t kChunks = 256;
constexpr std::uint32_t kChunkSize = 1u << 24;

// Hashes of conversion `index` in the order of tests/golden/README.md.
std::array<std::uint64_t, kChunks> recorded_hashes(int index) {
  std::ifstream file(std::string(FP8LAB_TEST_DATA) + "/golden/conv_hash.bin", std::ios::binary);
  file.seekg(static_cast<std::streamoff>(index) * kChunks * 8);
  std::array<std::uint64_t, kChunks> hashes{};
  file.read(reinterpret_cast<char*>(hashes.data()), sizeof(hashes));
  REQUIRE(file);
  return hashes;
}

void check_fp8(fp8lab::Fp8Format format, int saturating_index, int special_index) {
  const auto saturating = recorded_hashes(saturating_index);
  const auto special = recorded_hashes(special_index);
  std::vector<fp8lab::Fp8ChunkResult> results(kChunks);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    results[chunk] = fp8lab::sweep_fp8_chunk(format, chunk, fp8lab::kConversionHashSeed);
  }
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    INFO("floats from " << chunk << " * 2^24");
    CHECK(results[chunk].saturating_hash == saturating[chunk]);
    CHECK(results[chunk].special_hash == special[chunk]);
    CHECK(results[chunk].fast_mismatches == 0);
  }
}

// Chunks of magnitudes from two binades below half the smallest step to two above the maximum; a
// chunk holds two binades. All other magnitudes round to zero or overflow by a wide margin.
std::vector<std::uint32_t> interesting_chunks(numerics::FormatSpec format) {
  const int lowest = std::max(format.min_exponent() - format.mantissa_bits - 3, -127);
  const int highest = std::min(format.max_exponent() + 2, 127);
  std::vector<std::uint32_t> chunks = {0, 127};
  for (int field = (lowest + 127) / 2; field <= (highest + 127) / 2; ++field) {
    if (field > 0 && field < 127) chunks.push_back(static_cast<std::uint32_t>(field));
  }
  return chunks;
}

}  // namespace

TEST_CASE("e4m3: all 2^32 floats, both overflow policies, against the recorded hardware") {
  check_fp8(fp8lab::Fp8Format::e4m3, 0, 2);
}

TEST_CASE("e5m2: all 2^32 floats, both overflow policies, against the recorded hardware") {
  check_fp8(fp8lab::Fp8Format::e5m2, 1, 3);
}

TEST_CASE("bf16: all 2^32 floats, both conversions, against the recorded hardware") {
  const auto hashes = recorded_hashes(14);
  const auto results = fp8lab::sweep_bf16(fp8lab::kConversionHashSeed);
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    INFO("floats from " << chunk << " * 2^24");
    CHECK(results[chunk].hash == hashes[chunk]);
    CHECK(results[chunk].fast_mismatches == 0);
  }
}

TEST_CASE("other formats: every float near the range, against the exact boundaries") {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const numerics::FormatSpec format = named.format;
    const bool swept = format.encoding == numerics::Encoding::floating && format.has_sign;
    if (format.bits() > 16 || !swept || format == numerics::kBF16 || format == numerics::kE4M3 ||
        format == numerics::kE5M2) {
      continue;
    }
    const auto thresholds = fp8lab::rounding_thresholds(format);
    const auto chunks = interesting_chunks(format);
    std::vector<std::uint64_t> mismatches(chunks.size());
#pragma omp parallel for schedule(dynamic, 1)
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      mismatches[i] = fp8lab::sweep_boundaries(format, thresholds, chunks[i]);
    }
    INFO(named.name);
    for (const std::uint64_t count : mismatches) CHECK(count == 0);
  }
}

TEST_CASE("the boundary sweep notices a wrong boundary") {
  auto thresholds = fp8lab::rounding_thresholds(numerics::kE4M3);
  REQUIRE(fp8lab::sweep_boundaries(numerics::kE4M3, thresholds, 0x3F) == 0);
  const std::uint32_t one = numerics::encode(numerics::kE4M3, numerics::float_bits(1.0f));
  thresholds[one] += 1;  // one magnitude, two signs, two policies
  CHECK(fp8lab::sweep_boundaries(numerics::kE4M3, thresholds, 0x3F) == 4);
}

#if defined(FP8LAB_HAVE_CUDA_FP8_HEADER)
TEST_CASE("e4m3 and e5m2 equal the host conversions of cuda_fp8.h") {
  // Every sixteenth block of 4096 floats, so all exponents and both signs.
  constexpr std::uint32_t kBlocks = 1u << 20;
  std::uint64_t mismatches = 0;
#pragma omp parallel for schedule(static) reduction(+ : mismatches)
  for (std::uint32_t block = 0; block < kBlocks; block += 16) {
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const std::uint32_t bits = (block + block / 16 % 16) * 4096 + i;
      const float value = numerics::bits_float(bits);
      constexpr auto kNearest = numerics::Rounding::nearest;
      for (const auto overflow : {numerics::Overflow::saturate, numerics::Overflow::special}) {
        const auto policy = overflow == numerics::Overflow::saturate ? __NV_SATFINITE : __NV_NOSAT;
        const std::uint32_t e4m3 = __nv_cvt_float_to_fp8(value, policy, __NV_E4M3);
        const std::uint32_t e5m2 = __nv_cvt_float_to_fp8(value, policy, __NV_E5M2);
        mismatches += e4m3 != numerics::encode(numerics::kE4M3, bits, kNearest, overflow) ? 1u : 0u;
        mismatches += e5m2 != numerics::encode(numerics::kE5M2, bits, kNearest, overflow) ? 1u : 0u;
      }
    }
  }
  CHECK(mismatches == 0);
}
#else
TEST_CASE("e4m3 and e5m2 equal the host conversions of cuda_fp8.h") {
  WARN("skipped: no CUDA toolkit header was found when this test was built");
}
#endif
