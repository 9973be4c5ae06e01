// A model's weights against those of a sibling, which hardly ever is quantized.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/model_files/loss_meter.hpp"
#include "src/model_files/model_doctor.hpp"

namespace fp8lab {
namespace {

/// A tensor of a folder that has values: plain, or codes with scales.
struct Values {
  const StoredTensor* plain = nullptr;
  const StoredWeight* weight = nullptr;

  std::vector<std::int64_t> shape() const { return plain ? plain->shape : weight->shape(); }
};

std::vector<std::pair<std::string, Values>> values_of(const ModelFolder& folder) {
  std::vector<std::pair<std::string, Values>> all;
  for (const StoredWeight& weight : folder.weights) {
    if (is_readable(weight)) all.push_back({weight.name, {nullptr, &weight}});
  }
  for (const StoredTensor* tensor : folder.plain) {
    if (is_weight_type(tensor->type)) all.push_back({tensor->name, {tensor, nullptr}});
  }
  return all;
}

/// Reads pieces of both and visits them.
template <class Visit>
void for_each_piece(const Values& reference, const Values& values, const ScaleGrid& grid,
                    const ScaleGrid& of_reference, const Visit& visit) {
  std::int64_t size = 1;
  for (const std::int64_t extent : reference.shape()) size *= extent;
  std::vector<float> x, y;
  for (std::int64_t first = 0; first < size; first += kElementsAtOnce) {
    x.resize(static_cast<std::size_t>(std::min(kElementsAtOnce, size - first)));
    y.resize(x.size());
    for (auto [source, scales, target] :
         {std::tuple(&reference, &of_reference, &x), std::tuple(&values, &grid, &y)}) {
      if (source->plain != nullptr) {
        read_elements(*source->plain, first, *target);
      } else {
        read_weight(*source->weight, *scales, first, *target);
      }
    }
    visit(first, x, y);
  }
}

ScaleGrid grid_of(const Values& values) {
  return values.weight != nullptr ? ScaleGrid::read(*values.weight)
                                  : ScaleGrid(values.plain->shape, {0, 0});
}

struct Comparison {
  LossMeter loss;
  std::vector<LossMeter> blocks;
};

Comparison compare(const Values& reference, const Values& values, const ScaleGrid& grid,
                   bool by_block) {
  Comparison result;
  const ScaleGrid of_reference = grid_of(reference);
  if (by_block) result.blocks.resize(grid.values().size());
  for_each_piece(reference, values, grid, of_reference,
                 [&](std::int64_t first, const std::vector<float>& x, const std::vector<float>& y) {
                   result.loss.add(x, y);
                   for (std::size_t i = 0; by_block && i < x.size(); ++i) {
                     const std::int64_t at = first + static_cast<std::int64_t>(i);
                     LossMeter& block =
                         result.blocks[grid.index(at / grid.cols(), at % grid.cols())];
                     block.add(std::span(&x[i], 1), std::span(&y[i], 1));
                   }
                 });
  return result;
}

/// Errors and warnings below these decibels, by the bits of the codes; far below what rounding of
/// the format costs, so that only a wrong scale, grid or tensor falls short.
std::pair<double, double> thresholds(const Values& values) {
  if (values.weight == nullptr) return {20, 35};
  if (values.weight->layout.is_packed()) return {8, 13};
  const bool is_e5m2 = values.weight->layout.format.mantissa_bits == 2;
  return is_e5m2 ? std::pair(10.0, 19.0) : std::pair(15.0, 25.0);
}

/// What the scales would have to be for the weight to agree with the reference, in words.
std::string explanation(const Values& reference, const Values& values, const ScaleGrid& grid,
                        double sqnr) {
  struct Guess {
    std::string words;
    ScaleGrid grid;
  };
  std::vector<Guess> guesses;
  const auto scaled = [&](const std::string& words, const auto& change) {
    guesses.push_back({words, grid});
    for (std::size_t i = 0; i < grid.values().size(); ++i) {
      guesses.back().grid.values()[i] = change(i);
    }
  };
  const std::vector<float>& own = grid.values();
  const auto rows = static_cast<std::size_t>(grid.tile_rows());
  const auto cols = static_cast<std::size_t>(grid.tile_cols()), matrix = rows * cols;
  scaled("the scale divided instead of multiplied", [&](std::size_t i) { return 1 / own[i]; });
  scaled("twice the scale: the codes are E4M3, not FNUZ",
         [&](std::size_t i) { return 2 * own[i]; });
  scaled("half the scale: the codes are FNUZ, not E4M3", [&](std::size_t i) { return own[i] / 2; });
  scaled("no scale", [&](std::size_t) { return 1.0f; });
  if (own.size() > 1) {
    scaled("the transposed scales", [&](std::size_t i) {
      const std::size_t block = i % matrix;
      return own[i - block + block % cols * rows + block / cols];
    });
    scaled("each block's scale taken from the block before it",
           [&](std::size_t i) { return own[i == 0 ? 0 : i - 1]; });
    scaled("each block's scale taken from the block behind it",
           [&](std::size_t i) { return own[std::min(i + 1, own.size() - 1)]; });
    scaled("the scales in reverse order", [&](std::size_t i) { return own[own.size() - 1 - i]; });
  }
  std::string best;
  double best_sqnr = sqnr + 6;
  for (const Guess& guess : guesses) {
    const double found = compare(reference, values, guess.grid, false).loss.sqnr_db();
    if (!(found > best_sqnr)) continue;
    best_sqnr = found;
    best = fmt::format("; with {} it is {:.1f} dB", guess.words, found);
  }
  return best;
}

void judge(const std::string& name, const Values& reference, const Values& values,
           ComparedWeight& compared, std::vector<ModelFinding>& findings) {
  const ScaleGrid grid = grid_of(values);
  const bool by_block = values.weight != nullptr && grid.values().size() > 1;
  const Comparison comparison = compare(reference, values, grid, by_block);
  compared.sqnr_db = comparison.loss.sqnr_db();
  compared.max_error = comparison.loss.largest_error;
  compared.worst_block_db = compared.sqnr_db;
  std::size_t worst = 0, bad = 0;
  const auto [error_below, warning_below] = thresholds(values);
  double lowest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < comparison.blocks.size(); ++i) {
    const double decibels = comparison.blocks[i].sqnr_db();
    // A block of zeros, or of numbers that the whole weight's rounding swallows, says nothing.
    const bool counts = comparison.blocks[i].noise > 1e-6 * comparison.loss.noise;
    if (!counts) continue;
    bad += !(decibels >= error_below);
    if (decibels >= lowest) continue;
    lowest = decibels;
    worst = i;
  }
  if (by_block && std::isfinite(lowest)) {
    compared.worst_block_db = lowest;
    compared.worst_block = grid.indices(worst);
  }
  const bool is_error = !(compared.sqnr_db >= error_below) || bad > 0;
  if (!is_error && compared.sqnr_db >= warning_below) return;
  const std::string place =
      by_block && std::isfinite(lowest)
          ? fmt::format(", {:.1f} dB in {}, {} of {} blocks below {} dB",
                        std::floor(10 * lowest) / 10,  // never rounded up to the limit
                        grid.place(worst), bad, grid.values().size(), error_below)
          : "";
  const std::string why =
      values.weight != nullptr ? explanation(reference, values, grid, compared.sqnr_db) : "";
  findings.push_back(
      {is_error ? Severity::error : Severity::warning, "reference", name, compared.worst_block,
       std::max<std::int64_t>(static_cast<std::int64_t>(bad), 1),
       fmt::format("is {:.1f} dB from the reference{}{}", compared.sqnr_db, place, why)});
}

}  // namespace

std::vector<ComparedWeight> compare_with_reference(const ModelFolder& folder,
                                                   const std::filesystem::path& reference,
                                                   const PartReport& report,
                                                   std::vector<ModelFinding>& findings) {
  std::vector<ModelFinding> of_reference;
  ModelFolder sibling = open_model_folder(reference, of_reference);
  check_claims(sibling, of_reference);
  for (const ModelFinding& finding : of_reference) {
    if (finding.severity != Severity::error || finding.kind == "config_missing") continue;
    throw Error(
        fmt::format("--reference {}: {}: {}", reference.string(), finding.tensor, finding.text));
  }
  std::unordered_map<std::string, Values> known;
  for (const auto& [name, values] : values_of(sibling)) known.emplace(name, values);
  std::vector<ComparedWeight> compared;
  const auto all = values_of(folder);
  for (const auto& [name, values] : all) {
    if (report) report("comparing " + name, compared.size(), all.size(), "tensors");
    const auto found = known.find(name);
    if (found == known.end()) {
      findings.push_back({Severity::note, "reference", name, {}, 1, "is not in the reference"});
      continue;
    }
    const Values other = found->second;
    known.erase(found);
    if (other.shape() != values.shape()) {
      findings.push_back(
          {Severity::error,
           "reference",
           name,
           {},
           1,
           fmt::format("has shape ({}), in the reference ({})", fmt::join(values.shape(), ", "),
                       fmt::join(other.shape(), ", "))});
      continue;
    }
    compared.push_back({.name = name});
    judge(name, other, values, compared.back(), findings);
  }
  for (const auto& [name, values] : values_of(sibling)) {
    if (known.count(name) == 0) continue;
    findings.push_back({name == "lm_head.weight" ? Severity::note : Severity::error,
                        "reference",
                        name,
                        {},
                        1,
                        "is in the reference alone: this model lacks it"});
  }
  return compared;
}

}  // namespace fp8lab
