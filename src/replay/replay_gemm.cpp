#include "src/replay/replay_gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kSampled = 16;    // rows and columns whose exact results rank the readings
constexpr double kClearlyBetter = 4.0;  // ratio of errors that names a fault
constexpr std::int64_t kBlock = 16;     // products in which a wrong range of K is located
constexpr std::size_t kLocatedElements = 6;
constexpr double kIsolated = 0.25;  // larger shares of wrong elements are no isolated ones

/// Returns the relative error up to which a result is the exact one, rounded by sums of 13 fraction
/// bits and once to the type of D.
double rounding_limit(const RecordedGemm& gemm) {
  return 0.02 + std::ldexp(0.6, -(gemm.d_format.mantissa_bits + 1));
}

/// An element of D that is not the exact result rounded.
struct Deviation {
  std::int64_t row, col;
  double recorded, exact;
};

/// Returns the middle one of some numbers.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns the wrong elements in row-major order. Partial sums are rounded too, so an element may
/// deviate by ten times the usual deviation of this record, in parts of its own and the typical
/// size, and at least by its rounding. A usual deviation beyond all rounding is not allowed.
std::vector<Deviation> wrong_elements(const RecordedGemm& gemm) {
  const ElementSample all =
      element_sample(gemm, static_cast<std::size_t>(std::max(gemm.a.rows, gemm.b.rows)));
  const std::vector<double> exact = exact_results(gemm, all);
  std::vector<double> sizes, recorded, deviations;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    sizes.push_back(std::isfinite(exact[i]) ? std::abs(exact[i]) : 0.0);
    recorded.push_back(numerics::decode(gemm.d_format, gemm.d[i]));
  }
  const double typical = median(sizes);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double part = std::abs(recorded[i] - exact[i]) / (sizes[i] + typical);
    deviations.push_back(std::isfinite(part) ? part : 0.0);
  }
  const double allowed = std::min(
      std::max(10.0 * median(deviations), std::ldexp(1.1, -(gemm.d_format.mantissa_bits + 1))),
      3.0 * rounding_limit(gemm));
  const double largest = numerics::max_finite(gemm.d_format);
  std::vector<Deviation> wrong;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isnan(recorded[i]) && std::isnan(exact[i])) continue;
    if (std::abs(recorded[i]) >= largest && std::abs(exact[i]) >= largest) continue;
    if (std::abs(recorded[i] - exact[i]) <= allowed * (sizes[i] + typical)) continue;
    const auto index = static_cast<std::int64_t>(i);
    wrong.push_back({index / gemm.b.rows, index % gemm.b.rows, recorded[i], exact[i]});
  }
  return wrong;
}

/// A range of blocks of K that is in every wrong sum with the same factor.
struct BlamedRange {
  std::size_t begin = 0, end = 0;
  double factor = 0.0;
};

/// Returns the shortest range of blocks that explains the deviations of all elements by one factor.
/// For a single element the factor must be 0 (missing) or 2 (added twice).
std::optional<BlamedRange> blamed_range(const RecordedGemm& gemm,
                                        const std::vector<Deviation>& wrong) {
  std::vector<std::vector<double>> prefixes;
  std::vector<double> residuals;
  for (std::size_t i = 0; i < std::min(wrong.size(), kLocatedElements); ++i) {
    const Deviation& one = wrong[i * wrong.size() / std::min(wrong.size(), kLocatedElements)];
    if (!std::isfinite(one.recorded)) continue;
    std::vector<double> prefix{0.0};
    for (const double block : block_products(gemm, one.row, one.col, kBlock)) {
      prefix.push_back(prefix.back() + block * gemm.d_scale);
    }
    prefixes.push_back(std::move(prefix));
    residuals.push_back(one.recorded - one.exact);
  }
  if (prefixes.empty()) return std::nullopt;
  const double limit = rounding_limit(gemm);
  const std::size_t blocks = prefixes.front().size() - 1;
  // The shortest range that explains them, or one of up to kLonger more blocks that does it better:
  // the products at its ends may be small.
  constexpr std::size_t kLonger = 3;
  std::optional<BlamedRange> best;
  double smallest = 2.0 * limit;
  for (std::size_t length = 1, last = blocks; length <= last; ++length) {
    for (std::size_t begin = 0; begin + length <= blocks; ++begin) {
      double products = 0.0, both = 0.0, size = 0.0;
      for (std::size_t i = 0; i < prefixes.size(); ++i) {
        const double part = prefixes[i][begin + length] - prefixes[i][begin];
        products += part * part;
        both += part * residuals[i];
        size += residuals[i] * residuals[i];
      }
      if (products == 0.0 || size == 0.0) continue;
      double slope = both / products;  // least squares: residual = slope * part
      if (prefixes.size() == 1) slope = slope < 0.0 ? -1.0 : 1.0;
      const double rest = size - 2.0 * slope * both + slope * slope * products;
      const double misfit = std::sqrt(std::max(rest, 0.0) / size);
      if (misfit >= smallest) continue;
      if (!best) last = std::min(blocks, length + kLonger);
      smallest = misfit;
      best = BlamedRange{begin, begin + length, 1.0 + slope};
    }
  }
  return best;
}

WrongElement first_wrong(const RecordedGemm& gemm, const std::vector<Deviation>& wrong) {
  const Deviation& first = wrong.front();
  WrongElement element{first.row, first.col, first.recorded, first.exact,
                       static_cast<std::int64_t>(wrong.size())};
  if (const auto blamed = blamed_range(gemm, wrong)) {
    element.k_begin = static_cast<std::int64_t>(blamed->begin) * kBlock;
    element.k_end = std::min(static_cast<std::int64_t>(blamed->end) * kBlock, gemm.k);
    element.factor = blamed->factor;
  }
  return element;
}

/// Returns true for a tensor core's sums of fewer bits than FP32 without a promotion along K.
bool is_fast_tensor_core(const GemmArithmetic& arithmetic) {
  const Accumulator& unit = arithmetic.spec.accumulator;
  return arithmetic.spec.schedule == Schedule::fast &&
         unit.unit == numerics::ChainUnit::fused_group && unit.group.output_mantissa_bits < 23;
}

/// Returns where the sums of the recorded arithmetic leave the promoted ones first.
std::optional<Divergence> promotion_divergence(const RecordedGemm& gemm,
                                               const GemmArithmetic& fast) {
  GemmArithmetic promoted = fast;
  promoted.spec.schedule = Schedule::promote;
  const std::int64_t every = promoted.spec.promote_interval;
  const ElementSample sample = element_sample(gemm, kSampled);
  for (const std::int64_t row : sample.rows) {
    for (const std::int64_t col : sample.cols) {
      const std::vector<float> wanted = element_sums(gemm, row, col, promoted, every);
      const std::vector<float> got = element_sums(gemm, row, col, fast, every);
      for (std::size_t i = 0; i < std::min(wanted.size(), got.size()); ++i) {
        if (numerics::float_bits(wanted[i]) == numerics::float_bits(got[i])) continue;
        const auto begin = static_cast<std::int64_t>(i) * every;
        return Divergence{row, col, begin, std::min(begin + every, gemm.k), wanted[i], got[i]};
      }
    }
  }
  return std::nullopt;
}

/// Names a dropped promotion: the call asked for it, and only sums without one have the bits.
void check_promotion(const RecordedGemm& gemm, GemmReplay& replay) {
  const auto& same = replay.arithmetic.same;
  if (gemm.fast || same.empty() || !std::all_of(same.begin(), same.end(), is_fast_tensor_core)) {
    return;
  }
  replay.divergence = promotion_divergence(gemm, same.front());
  if (replay.divergence) replay.faults.push_back("promotion dropped");
}

/// A reading with its error.
struct Ranked {
  const GemmReading* reading;
  double error;
};

std::vector<Ranked> ranked_faults(const std::vector<GemmReading>& readings,
                                  const ElementSample& sample) {
  std::vector<Ranked> ranked;
  for (std::size_t i = 1; i < readings.size(); ++i) {
    ranked.push_back({&readings[i], relative_error(readings[i].gemm, sample)});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& x, const Ranked& y) { return x.error < y.error; });
  return ranked;
}

/// Names the faults that explain the result best. Those of equal error are told apart by bits.
void name_faults(const std::vector<Ranked>& ranked, GemmReplay& replay) {
  replay.fault_error = ranked.front().error;
  replay.arithmetic = {};
  std::vector<std::string> similar;
  for (const Ranked& one : ranked) {
    if (one.error > 1.5 * replay.fault_error || similar.size() >= 4) break;
    similar.push_back(one.reading->fault);
    const ArithmeticSearch found = find_arithmetic(one.reading->gemm);
    if (!found.same.empty()) {
      if (replay.arithmetic.same.empty()) replay.arithmetic = found;
      replay.faults.push_back(one.reading->fault);
    } else if (similar.size() == 1) {
      replay.arithmetic = found;
    }
  }
  if (replay.faults.empty()) replay.faults = similar;
}

}  // namespace

GemmReplay replay_gemm(const RecordedGemm& gemm) {
  GemmReplay replay;
  const ElementSample sample = element_sample(gemm, kSampled);
  replay.error = relative_error(gemm, sample);
  replay.arithmetic = find_arithmetic(gemm);
  if (!replay.arithmetic.same.empty()) {
    check_promotion(gemm, replay);
    return replay;
  }
  const std::vector<GemmReading> readings = gemm_readings(gemm);
  const std::vector<Ranked> ranked = ranked_faults(readings, sample);
  const double limit = rounding_limit(gemm);
  const bool fault_fits = !ranked.empty() && ranked.front().error <= limit &&
                          ranked.front().error * kClearlyBetter <= replay.error;
  if (fault_fits) {
    name_faults(ranked, replay);
    return replay;
  }
  const std::vector<Deviation> wrong = wrong_elements(gemm);
  if (wrong.empty()) return replay;
  replay.wrong = first_wrong(gemm, wrong);
  const double share = static_cast<double>(wrong.size()) / static_cast<double>(gemm.d.size());
  if (share > kIsolated && !ranked.empty() &&
      ranked.front().error * kClearlyBetter <= replay.error && ranked.front().error < 0.5) {
    name_faults(ranked, replay);
  }
  return replay;
}

std::vector<std::string> describe(const RecordedGemm& gemm, const GemmReplay& replay) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "{}: {} of {} x {} from K = {}, a {} scales {}, b {} scales {}, result {}{}, {}, step {}",
      gemm.file, gemm.api, gemm.m, gemm.n, gemm.k, format_name(gemm.a.format),
      tile_name(gemm.a.tile), format_name(gemm.b.format), tile_name(gemm.b.tile),
      format_name(gemm.d_format), gemm.fast ? ", fast accumulation" : "", gemm.device, gemm.step));
  for (const std::string& fault : replay.faults) {
    lines.push_back(fmt::format("  fault: {}", fault));
  }
  if (!replay.faults.empty() && !replay.divergence) {
    lines.push_back(fmt::format("  relative error as called {:.2g}, with this fault {:.2g}",
                                replay.error, replay.fault_error));
  }
  if (const auto& d = replay.divergence) {
    lines.push_back(fmt::format(
        "  element ({}, {}): the sum with promotion is {:.9g} after k = {}, the recorded one "
        "{:.9g}; they differ first in [{}, {})",
        d->row, d->col, d->requested, d->k_end, d->recorded, d->k_begin, d->k_end));
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(replay.arithmetic.same.size(), 6); ++i) {
    lines.push_back(fmt::format("  same bits: {}", replay.arithmetic.same[i].label()));
  }
  if (replay.arithmetic.same.empty()) {
    // Rounded down: one wrong element is never 100 %.
    const double percent = std::floor(1000.0 * replay.arithmetic.equal) / 10.0;
    lines.push_back(
        fmt::format("  none of {} known orders of sums has all its bits; the nearest, {}, has "
                    "those of {:.1f} % "
                    "of {} elements",
                    replay.arithmetic.tried, replay.arithmetic.nearest.label(), percent,
                    replay.arithmetic.compared));
  }
  if (const auto& wrong = replay.wrong) {
    lines.push_back(fmt::format(
        "  {} of {} elements are wrong; the first, ({}, {}), is {:.6g} instead of {:.6g}",
        wrong->count, gemm.d.size(), wrong->row, wrong->col, wrong->recorded, wrong->exact));
    if (wrong->k_end > wrong->k_begin) {
      // An estimate, exact to the rounding of the result: two decimals, and no negative zero.
      const double factor = std::round(100.0 * wrong->factor) / 100.0 + 0.0;
      lines.push_back(fmt::format("  the products of k in [{}, {}) are in it {:.6g} times",
                                  wrong->k_begin, wrong->k_end, factor));
    }
  } else if (replay.faults.empty() && replay.arithmetic.same.empty()) {
    lines.push_back(
        fmt::format("  right within its rounding: relative error {:.2g}", replay.error));
  }
  return lines;
}

}  // namespace fp8lab
