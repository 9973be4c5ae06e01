// The same bits on every SIMD target and for every number of threads.
#include <catch2/catch.hpp>

#include <cstring>
#include <string>
#include <vector>

#include <omp.h>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

namespace fp8lab {
namespace {

using test::Matrix;
using test::Operand;

/// Restores target and threads.
class Settings {
 public:
  Settings() : target_(cpu::active_target()), threads_(omp_get_max_threads()) {}
  ~Settings() {
    cpu::set_active_target(target_);
    omp_set_num_threads(threads_);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  cpu::SimdTarget target_;
  int threads_;
};

void append(std::vector<std::uint8_t>& bytes, const void* data, std::size_t size) {
  const auto* first = static_cast<const std::uint8_t*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

/// Everything that quantization leaves behind, as bytes.
std::vector<std::uint8_t> outcome(Matrix& source, bool transpose, const QuantSpec& spec) {
  Operand operand(spec, transpose ? source.cols() : source.rows(),
                  transpose ? source.rows() : source.cols());
  std::vector<float> state(static_cast<std::size_t>(DelayedState::length(spec)), 0.0f);
  const auto length = static_cast<std::int64_t>(state.size());
  const TensorView state_view{state.data(), DType::f32, 1, length, length};
  const bool delayed = spec.scale_source == ScaleSource::delayed;
  operand.key = {1, 2, 3, transpose};
  cpu::run(ops::Quantize{
      .source = source.view(), .transpose = transpose, .state = state_view, .operand = operand});
  if (delayed) {
    cpu::run(ops::UpdateDelayedScale{spec, state_view});
    operand.key = {1, 3, 3, transpose};
    cpu::run(ops::Quantize{
        .source = source.view(), .transpose = transpose, .state = state_view, .operand = operand});
  }
  const OperandStatistics statistics = test::measure(source.view(), transpose, operand);
  Matrix back(DType::bf16, operand.k, operand.rows, 0);
  cpu::run(ops::Dequantize{operand, true, back.view()});
  std::vector<std::uint8_t> bytes = operand.memory;
  append(bytes, operand.scale_memory.data(), 4 * operand.scale_memory.size());
  append(bytes, state.data(), 4 * state.size());
  append(bytes, &statistics, sizeof statistics);
  append(bytes, back.view().data, 2 * static_cast<std::size_t>(operand.rows * operand.k));
  return bytes;
}

std::vector<QuantSpec> specs() {
  std::vector<QuantSpec> all;
  const auto add = [&](const numerics::FormatSpec& format, TileShape tile, auto change) {
    QuantSpec spec;
    spec.format = format;
    spec.tile = tile;
    spec.scale_source = ScaleSource::current;
    spec.history_length = 4;
    change(spec);
    all.push_back(spec);
  };
  const auto as_is = [](QuantSpec&) {};
  for (const TileShape& tile : {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 128},
                                TileShape{128, 128}, TileShape{1, 32}, TileShape{5, 9}}) {
    add(numerics::kE4M3, tile, as_is);
    add(numerics::kE5M2, tile,
        [](QuantSpec& s) { s.scale.arithmetic = numerics::ScaleArithmetic::dec_div; });
    add(numerics::kE2M1, tile, [](QuantSpec& s) {
      s.scale.format = numerics::ScaleFormat::e8m0;
      s.scale.rounding = numerics::ScaleRounding::ocp_floor;
    });
  }
  add(numerics::kE4M3, {1, 128}, [](QuantSpec& s) { s.rounding = numerics::Rounding::stochastic; });
  add(numerics::kE4M3, {1, 128}, [](QuantSpec& s) {
    s.rounding = numerics::Rounding::stochastic;
    s.random_bits = 8;
  });
  add(numerics::kE4M3, {1, 32}, [](QuantSpec& s) { s.via = numerics::kFP16; });
  add(numerics::kE5M2, {}, [](QuantSpec& s) { s.via = numerics::kBF16; });
  add(numerics::kE2M1, {1, 16}, [](QuantSpec& s) {
    s.scale.format = numerics::ScaleFormat::nv_two_level;
    s.scale.outer = numerics::OuterScale::row;
  });
  add(numerics::kE4M3, {}, [](QuantSpec& s) { s.scale_source = ScaleSource::delayed; });
  add(numerics::kE4M3, {}, [](QuantSpec& s) { s.overflow = numerics::Overflow::special; });
  add(numerics::kBF16, {}, [](QuantSpec& s) { s.scale_source = ScaleSource::none; });
  return all;
}

}  // namespace

TEST_CASE("quantization and statistics: targets and threads do not change a bit") {
  const Settings restore;
  const auto [dtype, special] = GENERATE(
      table<DType, bool>({{DType::bf16, false}, {DType::bf16, true}, {DType::f32, false}}));
  Matrix source(dtype, 133, 270);
  test::fill_wide(source, 31);
  if (special) {
    source.set(17, 200, numerics::bits_float(0xFFC01234u));
    source.set(130, 5, numerics::bits_float(0xFF800000u));
  }
  const std::vector<QuantSpec> all = specs();
  std::vector<std::vector<std::uint8_t>> expected;
  cpu::set_active_target(cpu::SimdTarget::portable);
  omp_set_num_threads(1);
  for (const QuantSpec& spec : all) {
    for (const bool transpose : {false, true}) {
      expected.push_back(outcome(source, transpose, spec));
    }
  }
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    for (const cpu::SimdTarget target : cpu::available_targets()) {
      cpu::set_active_target(target);
      std::size_t next = 0;
      for (const QuantSpec& spec : all) {
        for (const bool transpose : {false, true}) {
          INFO(label(spec) << " " << name_of(dtype) << (transpose ? " transposed, " : ", ")
                           << cpu::name_of(target) << ", " << threads << " threads");
          const bool same = outcome(source, transpose, spec) == expected[next++];
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("panels of transposed codes and tiles taller than a unit: targets do not change a bit") {
  const Settings restore;
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix source(dtype, 1100, 100);
  test::fill_wide(source, 33);
  for (const numerics::FormatSpec& format :
       {numerics::kE4M3, numerics::kE5M2, numerics::kE2M3, numerics::kE3M2, numerics::kE2M1}) {
    for (const TileShape& tile :
         {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 700}, TileShape{3, 600}, TileShape{1, 128},
          TileShape{128, 128}, TileShape{1, 32}, TileShape{1, 16}, TileShape{1, 24}}) {
      QuantSpec spec;
      spec.format = format;
      spec.tile = tile;
      spec.scale_source = ScaleSource::current;
      const auto codes_and_scales = [&](cpu::SimdTarget target) {
        cpu::set_active_target(target);
        Operand operand(spec, source.cols(), source.rows());
        cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = operand});
        append(operand.memory, operand.scale_memory.data(), 4 * operand.scale_memory.size());
        return operand.memory;
      };
      const std::vector<std::uint8_t> expected = codes_and_scales(cpu::SimdTarget::portable);
      for (const cpu::SimdTarget target : cpu::available_targets()) {
        INFO(label(spec) << " " << name_of(dtype) << " " << cpu::name_of(target));
        const bool same = codes_and_scales(target) == expected;
        CHECK(same);
      }
    }
  }
}

TEST_CASE("transposed codes are those of the transposed matrix") {
  const Settings restore;
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix source(dtype, 391, 2330);  // units in both directions, ragged ones last
  test::fill_wide(source, 35);
  Matrix turned(dtype, source.cols(), source.rows());
  for (std::int64_t r = 0; r < source.rows(); ++r) {
    for (std::int64_t c = 0; c < source.cols(); ++c) turned.set(c, r, source.at(r, c));
  }
  for (const TileShape& tile :
       {TileShape{0, 0}, TileShape{1, 128}, TileShape{128, 128}, TileShape{1, 32}, TileShape{1, 16},
        TileShape{1, 6}, TileShape{64, 130}, TileShape{7, 3}}) {
    QuantSpec spec;
    spec.format = numerics::kE4M3;
    spec.tile = tile;
    spec.scale_source = ScaleSource::current;
    Operand expected(spec, turned.rows(), turned.cols());
    cpu::run(ops::Quantize{.source = turned.view(), .operand = expected});
    for (const cpu::SimdTarget target : cpu::available_targets()) {
      for (const int threads : {1, 3}) {
        cpu::set_active_target(target);
        omp_set_num_threads(threads);
        Operand operand(spec, source.cols(), source.rows());
        cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = operand});
        INFO(label(spec) << " " << name_of(dtype) << " " << cpu::name_of(target));
        const bool same = operand.memory == expected.memory;
        CHECK(same);
        CHECK(operand.scale_memory == expected.scale_memory);
      }
    }
  }
}

TEST_CASE("transposed codes written past the caches are those written through them") {
  Matrix source(DType::bf16, 2048, 4160);  // more than 8 MiB of codes
  test::fill_wide(source, 34);
  // Tiles of 130 and 700 rows of the source end in the middle of a line of codes.
  for (const TileShape& tile :
       {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 128}, TileShape{1, 130}, TileShape{1, 700},
        TileShape{1, 32}, TileShape{1, 16}}) {
    QuantSpec spec;
    spec.format = numerics::kE4M3;
    spec.tile = tile;
    spec.scale_source = ScaleSource::current;
    Operand through(spec, source.cols(), source.rows());  // its rows do not begin on lines
    cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = through});
    Operand past(spec, source.cols(), source.rows());
    cpu::AlignedBuffer lines;
    past.codes.data = lines.reserve(static_cast<std::size_t>(past.codes.size()));
    past.codes.row_stride = past.k;
    cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = past});
    std::int64_t differences = 0;
    for (std::int64_t r = 0; r < past.rows; ++r) {
      for (std::int64_t c = 0; c < past.k; ++c)
        differences += past.code(r, c) != through.code(r, c);
    }
    INFO(tile_name(tile));
    CHECK(differences == 0);
    CHECK(past.scale_memory == through.scale_memory);
  }
}

TEST_CASE("a larger tensor, cut differently by every number of threads") {
  const Settings restore;
  Matrix source(DType::bf16, 300, 1100);
  test::fill_wide(source, 32);
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.scale_source = ScaleSource::current;
  for (const TileShape& tile : {TileShape{0, 0}, TileShape{1, 128}}) {
    spec.tile = tile;
    for (const bool transpose : {false, true}) {
      omp_set_num_threads(1);
      const std::vector<std::uint8_t> expected = outcome(source, transpose, spec);
      for (const int threads : {2, 3, 5}) {
        omp_set_num_threads(threads);
        const bool same = outcome(source, transpose, spec) == expected;
        INFO(tile_name(tile) << " " << threads << " threads");
        CHECK(same);
      }
    }
  }
}

}  // namespace fp8lab
