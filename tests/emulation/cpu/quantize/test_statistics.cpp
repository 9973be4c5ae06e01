#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

namespace fp8lab {
namespace {

using numerics::bits_float;
using test::Matrix;
using test::Operand;

QuantSpec e4m3(TileShape tile, ScaleSource source = ScaleSource::current) {
  QuantSpec spec = quantized(numerics::kE4M3, tile);
  spec.scale_source = source;
  return spec;
}

OperandStatistics statistics_of(Matrix& source, bool transpose, const QuantSpec& spec) {
  Operand operand(spec, transpose ? source.cols() : source.rows(),
                  transpose ? source.rows() : source.cols());
  cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
  return test::measure(source.view(), transpose, operand);
}

Matrix gaussian(std::int64_t rows, std::int64_t cols) {
  Matrix matrix(DType::f32, rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const auto bits = numerics::random_block(3, 0, 0, 0, static_cast<std::uint64_t>(i));
    const double u = (bits.word[0] + 0.5) * 0x1p-32, v = bits.word[1] * 0x1p-32;
    const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
    matrix.set(i / cols, i % cols, static_cast<float>(normal));
  }
  return matrix;
}

/// The sum of the halves of `count` lanes, each summed so.
double sum_of_halves(const double* lanes, std::size_t count) {
  if (count == 1) return lanes[0];
  return sum_of_halves(lanes, count / 2) + sum_of_halves(lanes + count / 2, count / 2);
}

/// The sum over (r, c) in the order that ops::MeasureOperand states, lane by lane; add(sum, r, c)
/// is the sum with one more.
template <class Add>
double sum_in_order(std::int64_t rows, std::int64_t cols, const Add& add) {
  double all = 0.0;
  for (std::int64_t row = 0; row < rows; row += 128) {
    double band = 0.0;
    for (std::int64_t col = 0; col < cols; col += 256) {
      double lanes[4 * 32] = {};
      for (std::int64_t lane = 0; lane < 4 * 32; ++lane) {
        for (std::int64_t i = 0; i < 32 * 8; ++i) {
          const std::int64_t r = row + lane / 32 * 32 + i / 8, c = col + lane % 32 * 8 + i % 8;
          if (r < rows && c < cols) lanes[lane] = add(lanes[lane], r, c);
        }
      }
      band += sum_of_halves(lanes, 4 * 32);
    }
    all += band;
  }
  return all;
}

}  // namespace

TEST_CASE("a tensor worked out by hand") {
  Matrix source(DType::f32, 2, 4);
  const float values[8] = {1.0f, -0.0f, 0.0005f, -1.0625f, 500.0f, 2.0f, 0.0f, -4.0f};
  for (std::int64_t i = 0; i < 8; ++i) source.set(i / 4, i % 4, values[i]);
  // e4m3 without a scale: 0.0005 -> 0, 1.0625 (a tie) -> 1, 500 -> 448, the others exact.
  const OperandStatistics s = statistics_of(source, false, e4m3({}, ScaleSource::none));
  const double small = static_cast<double>(0.0005f);
  const double xx = 1 + small * small + 1.0625 * 1.0625 + 250000 + 4 + 16;
  const double yy = 1 + 1 + 448.0 * 448.0 + 4 + 16;
  const double xy = 1 + 1.0625 + 500.0 * 448.0 + 4 + 16;
  const double ee = small * small + 0.0625 * 0.0625 + 52.0 * 52.0;
  const double xxxx = 1 + std::pow(small, 4) + std::pow(1.0625, 4) + 6.25e10 + 16 + 256;
  CHECK(s.amax == 500.0);
  CHECK(s.rms == Approx(std::sqrt(xx / 8)).epsilon(1e-14));
  CHECK(s.mse == Approx(ee / 8).epsilon(1e-14));
  CHECK(s.sqnr_db == Approx(10 * std::log10(xx / ee)).epsilon(1e-13));
  CHECK(s.cosine == Approx(xy / std::sqrt(xx * yy)).epsilon(1e-14));
  CHECK(s.bias == Approx((-small + 0.0625 - 52.0) / (1 + small + 1.0625 + 500 + 2 + 4)));
  CHECK(s.underflow_fraction == 1.0 / 8);
  CHECK(s.saturation_fraction == 1.0 / 8);
  CHECK(s.nonfinite_count == 0.0);
  CHECK(s.kurtosis == Approx(xxxx / 8 / (xx / 8 * xx / 8)).epsilon(1e-14));
  CHECK(s.crest_factor == Approx(500.0 / std::sqrt(xx / 8)).epsilon(1e-14));
  // Channel amaxes 500, 2, 0.0005, 4: the median is 3.
  CHECK(s.channel_outlier_ratio == Approx(500.0 / 3.0).epsilon(1e-14));
  CHECK(s.top_channel[0] == 0.0);
  CHECK(s.top_channel[1] == 3.0);
  CHECK(s.top_channel[2] == 1.0);
  CHECK(s.top_channel[3] == 2.0);
  CHECK(s.top_channel[4] == -1.0);
  CHECK(s.top_channel_amax[1] == 4.0);
  CHECK(s.top_channel_amax[4] == 0.0);
  CHECK(s.scale_min == 1.0);
  CHECK(s.scale_max == 1.0);
  CHECK(s.scale_log2_spread == 0.0);
  CHECK(s.zero_tile_fraction == 0.0);
  // Six nonzero values; exponents 0, -11, 0, 8, 1, 2.
  CHECK(s.exponent_histogram[40] == Approx(2.0 / 6));
  CHECK(s.exponent_histogram[29] == Approx(1.0 / 6));
  CHECK(s.exponent_histogram[48] == Approx(1.0 / 6));
  CHECK(s.exponent_histogram[41] == Approx(1.0 / 6));
  CHECK(s.exponent_histogram[42] == Approx(1.0 / 6));
}

TEST_CASE("infinite and NaN elements are counted and left out") {
  Matrix source(DType::bf16, 3, 70);
  source.set(0, 0, 2.0f);
  source.set(1, 1, std::numeric_limits<float>::infinity());
  source.set(2, 69, std::numeric_limits<float>::quiet_NaN());
  const OperandStatistics s = statistics_of(source, false, e4m3({1, 128}));
  CHECK(s.nonfinite_count == 2.0);
  CHECK(s.amax == 2.0);
  CHECK(s.rms == Approx(std::sqrt(4.0 / 208)).epsilon(1e-14));
  CHECK(s.mse < 1e-12);
  CHECK(s.exponent_histogram[41] == 1.0);
}

TEST_CASE("exponents beyond the histogram count at its ends") {
  Matrix source(DType::f32, 1, 3);
  source.set(0, 0, 1e-40f);
  source.set(0, 1, 1e30f);
  source.set(0, 2, bits_float(1u));
  const OperandStatistics s = statistics_of(source, false, e4m3({}));
  CHECK(s.exponent_histogram[0] == Approx(2.0 / 3));
  CHECK(s.exponent_histogram[63] == Approx(1.0 / 3));
}

TEST_CASE("zero tensors and exact operands") {
  Matrix zero(DType::bf16, 5, 300);
  zero.set(2, 3, -0.0f);
  OperandStatistics s = statistics_of(zero, false, e4m3({1, 128}));
  CHECK(s.zero_tile_fraction == 1.0);
  CHECK(s.underflow_fraction == 0.0);
  CHECK(s.amax == 0.0);
  CHECK(s.rms == 0.0);
  CHECK(s.mse == 0.0);
  for (const double value :
       {s.sqnr_db, s.cosine, s.bias, s.kurtosis, s.crest_factor, s.channel_outlier_ratio,
        s.scale_min, s.scale_max, s.scale_log2_spread}) {
    CHECK(std::isnan(value));
  }
  for (const double fraction : s.exponent_histogram) CHECK(fraction == 0.0);

  Matrix one(DType::bf16, 5, 300);
  one.set(4, 299, 448.0f);
  s = statistics_of(one, false, e4m3({1, 128}));
  CHECK(s.sqnr_db == std::numeric_limits<double>::infinity());
  CHECK(s.zero_tile_fraction == 14.0 / 15);
  CHECK(s.scale_min == 1.0);
  CHECK(s.kurtosis == Approx(1500.0).epsilon(1e-13));  // one-hot: the number of elements
  CHECK(std::isinf(s.channel_outlier_ratio));
  CHECK(s.top_channel[0] == 299.0);
  CHECK(s.top_channel[1] == 0.0);
}

TEST_CASE("Gaussian data: kurtosis 3 and the e4m3 noise level") {
  // 2^18 draws: the standard error of the kurtosis is sqrt(24 / n) < 0.01.
  Matrix source = gaussian(512, 512);
  const OperandStatistics s = statistics_of(source, false, e4m3({}));
  CHECK(std::abs(s.kurtosis - 3.0) < 0.05);
  CHECK(std::abs(s.rms - 1.0) < 0.01);
  CHECK(std::abs(s.sqnr_db - 31.6) < 0.3);  // FP8 versus INT8 (arXiv:2303.17951)
  CHECK(s.saturation_fraction == 0.0);
  QuantSpec e5m2 = e4m3({});
  e5m2.format = numerics::kE5M2;
  CHECK(std::abs(statistics_of(source, false, e5m2).sqnr_db - 25.6) < 0.3);
  // Power-of-two scales rounded down saturate: 0.8 % for 32-groups.
  QuantSpec mx = e4m3({1, 32});
  mx.scale.format = numerics::ScaleFormat::e8m0;
  mx.scale.rounding = numerics::ScaleRounding::ocp_floor;
  CHECK(std::abs(statistics_of(source, false, mx).saturation_fraction - 0.008) < 0.002);
  mx.scale.rounding = numerics::ScaleRounding::ceil;
  CHECK(statistics_of(source, false, mx).saturation_fraction == 0.0);
}

TEST_CASE("a planted outlier channel is found in both orientations") {
  Matrix source = gaussian(256, 192);
  for (std::int64_t r = 0; r < 256; ++r) source.set(r, 37, 64.0f * source.at(r, 37));
  const OperandStatistics plain = statistics_of(source, false, e4m3({1, 128}));
  const OperandStatistics transposed = statistics_of(source, true, e4m3({1, 128}));
  for (const OperandStatistics& s : {plain, transposed}) {
    CHECK(s.top_channel[0] == 37.0);
    CHECK(s.channel_outlier_ratio > 40.0);
    CHECK(s.channel_outlier_ratio < 100.0);
    CHECK(s.kurtosis > 50.0);
  }
  // Groups along the tokens isolate the channel, groups along the features share its scale.
  CHECK(transposed.scale_log2_spread > 4.0);
  CHECK(transposed.underflow_fraction < plain.underflow_fraction);
}

TEST_CASE("every tile shape and orientation equals a plain loop over the dequantized operand") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix source(dtype, 131, 203);
  test::fill_wide(source, 21);
  for (std::int64_t r = 48; r < 96; ++r) {  // zero tiles of several shapes
    for (std::int64_t c = 0; c < 130; ++c) source.set(r, c, 0.0f);
  }
  for (const TileShape& tile : {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 128},
                                TileShape{128, 128}, TileShape{3, 7}, TileShape{48, 48}}) {
    for (const bool transpose : {false, true}) {
      const QuantSpec spec = e4m3(tile);
      Operand operand(spec, transpose ? 203 : 131, transpose ? 131 : 203);
      cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
      const OperandStatistics s = test::measure(source.view(), transpose, operand);
      Matrix back(DType::f32, 131, 203);
      cpu::run(ops::Dequantize{operand, transpose, back.view()});
      double xx = 0, ee = 0, xy = 0, yy = 0, underflow = 0;
      for (std::int64_t i = 0; i < 131 * 203; ++i) {
        // The values lie in the memory that `back.view()` shows.
        const double x = source.at(i / 203, i % 203);
        const double y = back.view().row<float>(i / 203)[i % 203];
        xx += x * x;
        yy += y * y;
        xy += x * y;
        ee += (y - x) * (y - x);
        underflow += x != 0 && y == 0 ? 1 : 0;
      }
      // Each sum has fewer than 2^15 terms of one sign: relative error below 2^15 * 2^-53.
      INFO(tile_name(tile) << (transpose ? " transposed" : ""));
      CHECK(s.mse == Approx(ee / (131 * 203)).epsilon(1e-11));
      CHECK(s.rms == Approx(std::sqrt(xx / (131 * 203))).epsilon(1e-11));
      CHECK(s.cosine == Approx(xy / std::sqrt(xx * yy)).epsilon(1e-11));
      CHECK(s.sqnr_db == Approx(10 * std::log10(xx / ee)).epsilon(1e-11));
      CHECK(s.underflow_fraction == underflow / (131 * 203));
      CHECK(s.saturation_fraction == 0.0);
      float smallest = std::numeric_limits<float>::infinity(), largest = 0;
      const std::int64_t high = spec.tile_rows(operand.rows), wide = spec.tile_cols(operand.k);
      const std::int64_t tile_height = tile.rows == 0 ? operand.rows : tile.rows;
      const std::int64_t tile_width = tile.cols == 0 ? operand.k : tile.cols;
      std::vector<bool> nonzero(static_cast<std::size_t>(high * wide), false);
      for (std::int64_t i = 0; i < operand.rows * operand.k; ++i) {
        const std::int64_t r = i / operand.k, c = i % operand.k;
        if (test::source_at(source, transpose, r, c) == 0.0f) continue;
        nonzero[static_cast<std::size_t>(r / tile_height * wide + c / tile_width)] = true;
      }
      std::int64_t zero_tiles = 0;
      for (std::int64_t i = 0; i < high * wide; ++i) {
        if (!nonzero[static_cast<std::size_t>(i)]) {
          ++zero_tiles;
          continue;
        }
        smallest = std::min(smallest, operand.scale(i / wide, i % wide));
        largest = std::max(largest, operand.scale(i / wide, i % wide));
      }
      CHECK(s.scale_min == smallest);
      CHECK(s.scale_max == largest);
      CHECK(s.scale_log2_spread == Approx(std::log2(largest / smallest)).margin(1e-6));
      CHECK(s.zero_tile_fraction ==
            static_cast<double>(zero_tiles) / static_cast<double>(high * wide));
    }
  }
}

TEST_CASE("sums have the stated order, to the last bit") {
  const std::int64_t rows = GENERATE(1, 33, 128, 300), cols = GENERATE(5, 256, 777);
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const bool transpose = GENERATE(false, true);
  Matrix source(dtype, rows, cols);
  test::fill_wide(source, 11);
  if (rows > 1) source.set(rows / 2, cols / 2, std::numeric_limits<float>::infinity());
  Operand operand(e4m3({1, 128}), transpose ? cols : rows, transpose ? rows : cols);
  cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
  const OperandStatistics s = test::measure(source.view(), transpose, operand);
  Matrix back(DType::f32, rows, cols);
  cpu::run(ops::Dequantize{operand, transpose, back.view()});
  std::int64_t finite = 0;
  const auto sum = [&](const auto& add) {
    finite = 0;
    return sum_in_order(rows, cols, [&](double so_far, std::int64_t r, std::int64_t c) {
      const double x = source.at(r, c), y = back.view().row<float>(r)[c];
      if (!std::isfinite(x) || !std::isfinite(y)) return so_far;
      ++finite;
      return add(so_far, x, y);
    });
  };
  const double xx = sum([](double all, double x, double) { return std::fma(x, x, all); });
  const double xxxx = sum([](double all, double x, double) { return all + (x * x) * (x * x); });
  const double yy = sum([](double all, double, double y) { return std::fma(y, y, all); });
  const double ee = sum([](double all, double x, double y) { return std::fma(y - x, y - x, all); });
  const double e = sum([](double all, double x, double y) { return all + (y - x); });
  const double magnitude = sum([](double all, double x, double) { return all + std::abs(x); });
  const auto n = static_cast<double>(finite);
  CHECK(s.nonfinite_count == static_cast<double>(rows * cols - finite));
  CHECK(s.rms == std::sqrt(xx / n));
  CHECK(s.mse == ee / n);
  CHECK(s.kurtosis == xxxx / n / (xx / n * (xx / n)));
  CHECK(s.cosine == (xx + yy - ee) / 2 / (std::sqrt(xx) * std::sqrt(yy)));
  CHECK(s.bias == e / magnitude);
}

TEST_CASE("the hash of an operand is the sum of its terms") {
  using numerics::hash_term;
  using numerics::HashedPart;
  Matrix source(DType::bf16, 3, 11);
  test::fill_wide(source, 5);
  Operand operand(e4m3({1, 4}), 3, 11);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  std::uint64_t expected = 0;
  for (std::int64_t r = 2; r >= 0; --r) {
    for (std::int64_t j = 1; j >= 0; --j) {
      std::uint64_t word = 0;
      for (std::int64_t c = 8 * j; c < std::min<std::int64_t>(8 * j + 8, 11); ++c) {
        word |= static_cast<std::uint64_t>(operand.code(r, c)) << (8 * (c - 8 * j));
      }
      expected += hash_term(HashedPart::codes, static_cast<std::uint64_t>(2 * r + j), word);
    }
    for (std::int64_t j = 0; j < 3; ++j) {
      expected += hash_term(HashedPart::scales, static_cast<std::uint64_t>(3 * r + j),
                            numerics::float_bits(operand.scale(r, j)));
    }
  }
  CHECK(test::measure(source.view(), false, operand).hash == expected);
  // Pinned, because run files of different versions are compared.
  CHECK(numerics::mix64(0) == 0);
  CHECK(numerics::mix64(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu);  // SplitMix64, seed 0
  CHECK(hash_term(HashedPart::codes, 0, 0xE220A8397B1DCDAFu) == 0);
}

TEST_CASE("every code and every scale changes the hash, what lies between rows does not") {
  const TileShape tile = GENERATE(TileShape{}, TileShape{1, 0}, TileShape{1, 16}, TileShape{8, 8});
  Matrix source(DType::bf16, 19, 45);
  test::fill_wide(source, 6);
  Operand operand(e4m3(tile), 19, 45);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  const auto hash = [&] { return test::measure(source.view(), false, operand).hash; };
  const std::uint64_t before = hash();
  std::set<std::uint64_t> seen{before};
  std::size_t changes = 0;
  for (std::int64_t r = 0; r < 19; ++r) {
    for (std::int64_t c = 0; c < 45; ++c) {
      std::uint8_t& code = operand.codes.row<std::uint8_t>(r)[c];
      code ^= 1;
      seen.insert(hash());
      code ^= 1;
      ++changes;
    }
  }
  for (std::int64_t i = 0; i < operand.scales.rows; ++i) {
    for (std::int64_t j = 0; j < operand.scales.cols; ++j) {
      float& scale = operand.scales.row<float>(i)[j];
      const float kept = scale;
      scale = bits_float(numerics::float_bits(scale) ^ 1u);
      seen.insert(hash());
      scale = kept;
      ++changes;
    }
  }
  CHECK(seen.size() == changes + 1);
  operand.memory[45] ^= 1;  // the first byte after row 0
  CHECK(hash() == before);
}

TEST_CASE("exchanged rows, columns and scales change the hash") {
  Matrix source(DType::f32, 16, 32);
  test::fill_wide(source, 7);
  Operand operand(e4m3({1, 32}), 16, 32);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  const auto hash = [&] { return test::measure(source.view(), false, operand).hash; };
  const std::uint64_t before = hash();
  std::swap_ranges(operand.codes.row<std::uint8_t>(2), operand.codes.row<std::uint8_t>(2) + 32,
                   operand.codes.row<std::uint8_t>(9));
  const std::uint64_t rows = hash();
  CHECK(rows != before);
  std::swap(operand.scales.row<float>(2)[0], operand.scales.row<float>(9)[0]);
  CHECK(hash() != rows);
  CHECK(hash() != before);
}

TEST_CASE("values that are stored as they are have a hash too") {
  const auto [format, dtype] = GENERATE(table<numerics::FormatSpec, DType>(
      {{numerics::kBF16, DType::bf16}, {numerics::kFP32, DType::f32}}));
  Matrix source(dtype, 5, 7);
  test::fill_wide(source, 8);
  QuantSpec spec;
  spec.format = format;
  const std::uint64_t before = statistics_of(source, true, spec).hash;
  source.set(4, 6, -source.at(4, 6));
  CHECK(statistics_of(source, true, spec).hash != before);
}

TEST_CASE("operands stored as values are compared as they are") {
  Matrix source = gaussian(70, 70);
  QuantSpec spec;  // bf16
  const OperandStatistics s = statistics_of(source, true, spec);
  CHECK(s.sqnr_db > 50.0);  // 8 significant bits: about 55 dB
  CHECK(s.sqnr_db < 60.0);
  CHECK(s.saturation_fraction == 0.0);
  spec.format = numerics::kFP32;
  CHECK(statistics_of(source, true, spec).sqnr_db == std::numeric_limits<double>::infinity());
}

}  // namespace fp8lab
