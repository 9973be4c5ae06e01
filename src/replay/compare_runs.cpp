#include "src/replay/compare_runs.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "src/io/hash.hpp"
#include "src/replay/run_difference.hpp"

namespace fp8lab {
namespace {

/// Adds the differing parts of two identities: "training data of stage cpt:
/// 0123456789abcdef -> ...".
void add_identity(const RunMeta& a, const RunMeta& b, std::vector<std::string>& differences) {
  const auto hash_in = [](const Identity& identity, const std::string& name) -> std::string {
    for (const auto& [known, hash] : identity) {
      if (known == name) return hash;
    }
    return "(none)";
  };
  const auto add = [&](const std::string& name) {
    const std::string x = hash_in(a.identity, name), y = hash_in(b.identity, name);
    if (x != y) differences.push_back(fmt::format("{}: {} -> {}", name, x, y));
  };
  for (const auto& [name, hash] : a.identity) {
    if (name != "configuration") add(name);  // the keys are more specific
  }
  for (const auto& [name, hash] : b.identity) {
    if (hash_in(a.identity, name) == "(none)") add(name);
  }
}

bool differ(double a, double b) {
  return !(std::isnan(a) && std::isnan(b)) &&
         std::bit_cast<std::uint64_t>(a) != std::bit_cast<std::uint64_t>(b);
}

const std::string& stage_of(const RunData& run, std::int32_t stage) {
  return run.meta.stage_names.at(static_cast<std::size_t>(stage));
}

/// Returns the first evaluation of the same step and stage whose results differ.
StepDifference first_held_out(const RunData& a, const RunData& b) {
  for (const EvalRecord& x : a.eval) {
    for (const EvalRecord& y : b.eval) {
      if (x.step != y.step || stage_of(a, x.stage) != stage_of(b, y.stage)) continue;
      if (differ(x.loss, y.loss)) return {x.step, "held-out loss"};
      if (differ(x.exact_match, y.exact_match)) return {x.step, "exact match"};
    }
  }
  return {};
}

/// The held-out text of each evaluation that has documents, by step and stage.
using HeldOutTexts = std::map<std::pair<std::int64_t, std::string>, std::uint64_t>;

HeldOutTexts held_out_texts(const RunData& run) {
  HeldOutTexts texts;
  for (const DocumentRecord& row : run.documents) {
    texts[{row.step, stage_of(run, row.stage)}] = row.text;
  }
  return texts;
}

/// Adds the first evaluation whose texts differ.
void add_held_out_text(const RunData& a, const RunData& b, std::vector<std::string>& differences) {
  const HeldOutTexts others = held_out_texts(b);
  for (const auto& [place, text] : held_out_texts(a)) {
    const auto other = others.find(place);
    if (other == others.end() || other->second == text) continue;
    differences.push_back(fmt::format("evaluation data of stage {}: {} -> {}", place.second,
                                      hex16(text), hex16(other->second)));
    return;
  }
}

}  // namespace

FileComparison compare_files(const RecordedRun& a, const RecordedRun& b) {
  const RunMeta &x = a.data.meta, &y = b.data.meta;
  FileComparison found;
  found.made_of = recorded_differences(x, b.config);
  add_identity(x, y, found.made_of);
  found.tells_data = !x.identity.empty() && !y.identity.empty();
  if (!found.tells_data) {  // a file of fp8lab.torch: these are fields of their own
    if (x.recipe_hash != y.recipe_hash) {
      found.made_of.push_back(fmt::format("recipe: {} -> {}", x.recipe_name, y.recipe_name));
    }
    if (x.seed != y.seed) found.made_of.push_back(fmt::format("seed: {} -> {}", x.seed, y.seed));
    if (x.parameter_count != y.parameter_count) {
      found.made_of.push_back(
          fmt::format("model parameters: {} -> {}", x.parameter_count, y.parameter_count));
    }
    add_held_out_text(a.data, b.data, found.made_of);
  }
  constexpr std::array<std::pair<const char*, std::string RunMeta::*>, 4> kParts = {
      {{"build", &RunMeta::code_version},
       {"backend", &RunMeta::backend},
       {"device", &RunMeta::device},
       {"instruction set", &RunMeta::simd_target}}};
  for (const auto& [name, member] : kParts) {
    if (x.*member == y.*member) continue;
    found.made_of.push_back(fmt::format("{}: {} -> {}", name, x.*member, y.*member));
  }
  for (const StepRecord& record : a.data.metrics) {
    found.steps += find_step(b.data.metrics, record.step) != nullptr ? 1 : 0;
  }
  found.first = first_difference(a.data.metrics, b.data.metrics);
  const bool both = a.data.complete && b.data.complete && a.last_step() == b.last_step();
  if (found.first.step < 0 && both && a.data.final_weight_hash != b.data.final_weight_hash) {
    found.first = {a.last_step(), "final weights"};
  }
  if (found.first.step < 0 && !sort_differences(found.made_of).evaluation) {
    found.held_out = first_held_out(a.data, b.data);
  }
  return found;
}

StartPoint common_start(const RecordedRun& a, const RecordedRun& b, std::int64_t step) {
  if (!difference(a.data.meta.identity, b.data.meta.identity).empty()) return {};
  const StartPoint x = latest_start(a, step - 1), y = latest_start(b, step - 1);
  return x.position.step >= y.position.step ? x : y;
}

Reproduction compare_with_file(const RecordedRun& run, const std::vector<StepRecord>& executed) {
  Reproduction found;
  for (const StepRecord& record : executed) {
    found.steps += find_step(run.data.metrics, record.step) != nullptr ? 1 : 0;
  }
  found.difference = first_difference(run.data.metrics, executed);
  return found;
}

}  // namespace fp8lab
