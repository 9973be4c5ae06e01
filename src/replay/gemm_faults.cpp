#include "src/replay/gemm_faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;

/// An operand of a record by its place.
using Side = RecordedOperand RecordedGemm::*;
struct NamedSide {
  const char* name;
  Side side;
};
constexpr NamedSide kSides[] = {{"a", &RecordedGemm::a}, {"b", &RecordedGemm::b}};

bool is_same(const RecordedOperand& x, const RecordedOperand& y) {
  return x.scales == y.scales && x.format == y.format && x.codes == y.codes;
}

/// Collects readings that differ from the record and from each other.
class Readings {
 public:
  explicit Readings(const RecordedGemm& gemm) : gemm_(gemm) { list_.push_back({"", gemm}); }

  template <class Change>
  void add(const std::string& fault, const Change& change) {
    RecordedGemm changed = gemm_;
    change(changed);
    const bool is_new = std::none_of(list_.begin(), list_.end(), [&](const GemmReading& other) {
      return is_same(changed.a, other.gemm.a) && is_same(changed.b, other.gemm.b);
    });
    if (is_new) list_.push_back({fault, std::move(changed)});
  }

  std::vector<GemmReading> take() { return std::move(list_); }

 private:
  const RecordedGemm& gemm_;
  std::vector<GemmReading> list_;
};

/// The memory of a grid (R, C) read as if column followed column.
std::vector<float> transposed(const RecordedOperand& operand) {
  std::vector<float> scales(operand.scales.size());
  for (std::int64_t i = 0; i < operand.scale_rows; ++i) {
    for (std::int64_t j = 0; j < operand.scale_cols; ++j) {
      scales[static_cast<std::size_t>(i * operand.scale_cols + j)] =
          operand.scales[static_cast<std::size_t>(j * operand.scale_rows + i)];
    }
  }
  return scales;
}

/// Each tile with the scale of the one (down, right) of it, around the edges.
std::vector<float> shifted(const RecordedOperand& operand, std::int64_t down, std::int64_t right) {
  std::vector<float> scales(operand.scales.size());
  const std::int64_t high = operand.scale_rows, wide = operand.scale_cols;
  for (std::int64_t i = 0; i < high; ++i) {
    for (std::int64_t j = 0; j < wide; ++j) {
      const std::int64_t from = (i + down + high) % high * wide + (j + right + wide) % wide;
      scales[static_cast<std::size_t>(i * wide + j)] =
          operand.scales[static_cast<std::size_t>(from)];
    }
  }
  return scales;
}

/// Bytes read as pairs of E2M1 codes, the lower half first.
void read_as_fp4(RecordedOperand& operand) {
  std::vector<std::uint8_t> halves(operand.codes.size());
  for (std::int64_t row = 0; row < operand.rows; ++row) {
    for (std::int64_t k = 0; k < operand.k; ++k) {
      const std::uint8_t byte = operand.codes[static_cast<std::size_t>(row * operand.k + k / 2)];
      halves[static_cast<std::size_t>(row * operand.k + k)] =
          static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15u : byte >> 4);
    }
  }
  operand.codes = std::move(halves);
  operand.format = numerics::kE2M1;
}

void add_scale_faults(Readings& readings, const RecordedGemm& gemm, const NamedSide& named) {
  const Side side = named.side;
  const std::string name = fmt::format("scale_{}", named.name);
  readings.add(name + " transposed",
               [&](RecordedGemm& g) { (g.*side).scales = transposed(gemm.*side); });
  constexpr std::pair<int, int> kSteps[] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}};
  for (const auto& [down, right] : kSteps) {
    const char* const where = down > 0    ? "below"
                              : down < 0  ? "above"
                              : right > 0 ? "with larger k"
                                          : "with smaller k";
    readings.add(fmt::format("{} of the neighbouring tile {}", name, where),
                 [&](RecordedGemm& g) { (g.*side).scales = shifted(gemm.*side, down, right); });
  }
  readings.add(name + " divided by instead of multiplied with", [&](RecordedGemm& g) {
    for (float& scale : (g.*side).scales) scale = 1.0f / scale;
  });
  readings.add(name + " left out", [&](RecordedGemm& g) {
    for (float& scale : (g.*side).scales) scale = 1.0f;
  });
}

void add_code_faults(Readings& readings, const NamedSide& named) {
  const Side side = named.side;
  readings.add(fmt::format("{} read as FP4 (e2m1)", named.name),
               [&](RecordedGemm& g) { read_as_fp4(g.*side); });
  for (const FormatSpec& format :
       {numerics::kE4M3, numerics::kE5M2, numerics::kE4M3Fnuz, numerics::kE5M2Fnuz}) {
    readings.add(fmt::format("{} read as {}", named.name, format_name(format)),
                 [&](RecordedGemm& g) { (g.*side).format = format; });
  }
}

}  // namespace

std::vector<GemmReading> gemm_readings(const RecordedGemm& gemm) {
  Readings readings(gemm);
  for (const NamedSide& named : kSides) {
    add_scale_faults(readings, gemm, named);
    if ((gemm.*named.side).format.bits() == 8) add_code_faults(readings, named);
  }
  if (gemm.a.format.bits() == 8 && gemm.b.format.bits() == 8) {
    readings.add("a and b read as FP4 (e2m1)", [](RecordedGemm& g) {
      read_as_fp4(g.a);
      read_as_fp4(g.b);
    });
  }
  readings.add("both scales divided by instead of multiplied with", [](RecordedGemm& g) {
    for (float& scale : g.a.scales) scale = 1.0f / scale;
    for (float& scale : g.b.scales) scale = 1.0f / scale;
  });
  readings.add("both scales left out", [](RecordedGemm& g) {
    for (float& scale : g.a.scales) scale = 1.0f;
    for (float& scale : g.b.scales) scale = 1.0f;
  });
  if (gemm.a.scales.size() == gemm.b.scales.size() && gemm.a.scales.size() > 1) {
    readings.add("scales of a and b exchanged",
                 [](RecordedGemm& g) { std::swap(g.a.scales, g.b.scales); });
  }
  if (gemm.a.scales.size() == 1 && gemm.b.scales.size() == 1) {
    for (auto earlier = gemm.earlier_scales.rbegin(); earlier != gemm.earlier_scales.rend();
         ++earlier) {
      const auto ago = earlier - gemm.earlier_scales.rbegin() + 1;
      for (int index = 0; index < 2; ++index) {
        const float scale = (*earlier)[static_cast<std::size_t>(index)];
        readings.add(fmt::format("scale_{} is stale: that of {} call{} before", kSides[index].name,
                                 ago, ago == 1 ? "" : "s"),
                     [&](RecordedGemm& g) { (g.*kSides[index].side).scales = {scale}; });
      }
      readings.add(
          fmt::format("both scales are stale: those of {} call{} before", ago, ago == 1 ? "" : "s"),
          [&](RecordedGemm& g) {
            g.a.scales = {(*earlier)[0]};
            g.b.scales = {(*earlier)[1]};
          });
    }
  }
  return readings.take();
}

ElementSample element_sample(const RecordedGemm& gemm, std::size_t most) {
  const auto spread = [&](std::int64_t extent) {
    std::vector<std::int64_t> chosen;
    const std::int64_t count = std::min(extent, static_cast<std::int64_t>(most));
    for (std::int64_t i = 0; i < count; ++i) {
      chosen.push_back(count == 1 ? 0 : i * (extent - 1) / (count - 1));
    }
    return chosen;
  };
  return {spread(gemm.a.rows), spread(gemm.b.rows)};
}

std::vector<double> block_products(const RecordedGemm& gemm, std::int64_t row, std::int64_t col,
                                   std::int64_t width) {
  std::vector<double> blocks;
  const std::uint8_t* const a = &gemm.a.codes[static_cast<std::size_t>(row * gemm.k)];
  const std::uint8_t* const b = &gemm.b.codes[static_cast<std::size_t>(col * gemm.k)];
  for (std::int64_t k = 0; k < gemm.k; ++k) {
    if (k % width == 0) blocks.push_back(0.0);
    const double x = double{numerics::decode(gemm.a.format, a[k])} * gemm.a.scale_at(row, k);
    const double y = double{numerics::decode(gemm.b.format, b[k])} * gemm.b.scale_at(col, k);
    blocks.back() += x * y;
  }
  return blocks;
}

std::vector<double> exact_results(const RecordedGemm& gemm, const ElementSample& sample) {
  const auto values = [&](const RecordedOperand& operand, const std::vector<std::int64_t>& rows) {
    std::vector<double> table;
    for (const std::int64_t row : rows) {
      for (std::int64_t k = 0; k < gemm.k; ++k) {
        const std::uint8_t code = operand.codes[static_cast<std::size_t>(row * gemm.k + k)];
        table.push_back(double{numerics::decode(operand.format, code)} * operand.scale_at(row, k));
      }
    }
    return table;
  };
  const std::vector<double> a = values(gemm.a, sample.rows), b = values(gemm.b, sample.cols);
  const auto depth = static_cast<std::size_t>(gemm.k);
  std::vector<double> results;
  for (std::size_t i = 0; i < sample.rows.size(); ++i) {
    for (std::size_t j = 0; j < sample.cols.size(); ++j) {
      double sum = 0.0;
      for (std::size_t k = 0; k < depth; ++k) sum += a[i * depth + k] * b[j * depth + k];
      if (!gemm.bias.empty()) sum += gemm.bias[static_cast<std::size_t>(sample.cols[j])];
      results.push_back(sum * gemm.d_scale);
    }
  }
  return results;
}

double relative_error(const RecordedGemm& gemm, const ElementSample& sample) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const std::vector<double> exact = exact_results(gemm, sample);
  double error = 0.0, size = 0.0;
  std::size_t index = 0, finite = 0;
  for (const std::int64_t row : sample.rows) {
    for (const std::int64_t col : sample.cols) {
      const double recorded = numerics::decode(gemm.d_format, gemm.at(row, col));
      const double wanted = exact[index++];
      if (std::isfinite(recorded) != std::isfinite(wanted)) return kInfinite;
      if (!std::isfinite(recorded)) continue;
      ++finite;
      error += (recorded - wanted) * (recorded - wanted);
      size += recorded * recorded;
    }
  }
  if (finite == 0) return kInfinite;
  if (size == 0.0) return error == 0.0 ? 0.0 : kInfinite;
  return std::sqrt(error / size);
}

}  // namespace fp8lab
