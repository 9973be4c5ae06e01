#include "src/train/plan/memory_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "src/config/config_names.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/plan/time_plan.hpp"

namespace fp8lab {
namespace {

/// Bytes that Trainer holds for each token of a step: four integers and a weight.
constexpr std::int64_t kBytesOfToken = 20;
/// Cost of reading and writing one element, in multiply-adds of a GEMM: some hundred on an H200
/// (experiments/results/h200_speed.md).
constexpr double kMultiplyAddsOfElement = 256;
constexpr std::int64_t kLargestChunk = 2048;  // tokens; products of fewer are slower
constexpr std::size_t kNamedChanges = 3;

std::string text_of(std::int64_t bytes) { return memory_text(static_cast<double>(bytes)); }

std::int64_t token_bytes(const StageConfig& stage) {
  return stage.batch_sequences * stage.sequence_length * kBytesOfToken;
}

/// Returns the bytes that the stage needs on the side, host or device, where the backend has its
/// memory.
std::int64_t needed(const RunConfig& config, const StageConfig& stage, const Backend& backend) {
  const std::int64_t data = backend.is_on_host() ? token_bytes(stage) : 0;
  return largest_plan(config, stage, backend).total() + data;
}

/// Returns the work of all steps in multiply-adds.
double work_of(const RunConfig& config, const Backend& backend) {
  double sum = 0;
  for (const StageConfig& stage : config.stages) {
    for (const StageRecipe& of : recipes_of(config, stage)) {
      if (of.steps == 0) continue;
      double step = 0;
      for (const auto& [key, kind] :
           record_step(config, stage, load_recipe(of.name, config.recorded), backend)) {
        const bool multiplies =
            kind.work_class == WorkClass::gemm || kind.work_class == WorkClass::attention;
        step += kind.work * (multiplies ? 1.0 : kMultiplyAddsOfElement);
      }
      sum += step * static_cast<double>(of.steps);
    }
  }
  return sum;
}

/// Values of one key, or of several keys that change together; the first value is the present one.
using Choices = std::vector<std::vector<Assignment>>;

Choices recompute_choices(const RunConfig& config) {
  Choices choices = {{}};
  for (const auto& [word, level] : kRecomputeNames) {
    if (level <= config.memory.recompute) continue;
    choices.push_back({{"memory.recompute", std::string(word)}});
  }
  return choices;
}

Choices weight_choices(const RunConfig& config) {
  if (config.memory.weight_codes == WeightCodes::remake) return {{}};
  return {{}, {{"memory.weight_codes", "remake"}}};
}

Choices chunk_choices(const RunConfig& config) {
  std::int64_t tokens = 0;
  for (const StageConfig& stage : config.stages) {
    tokens = std::gcd(tokens, stage.micro_batch_sequences * stage.sequence_length);
  }
  std::int64_t chunk = std::min(kLargestChunk, tokens / 2);
  while (chunk > 0 && tokens % chunk != 0) --chunk;
  const std::int64_t own = config.memory.loss_chunk;
  if (chunk == 0 || (own > 0 && own <= chunk)) return {{}};
  return {{}, {{"memory.loss_chunk", fmt::format("{}", chunk)}}};
}

Choices micro_batch_choices(const RunConfig& config, const Backend& backend, std::int64_t bytes) {
  Choices choices = {{}};
  std::vector<const StageConfig*> large;
  for (const StageConfig& stage : config.stages) {
    if (needed(config, stage, backend) > bytes) large.push_back(&stage);
  }
  for (std::int64_t share = 2;; share *= 2) {
    std::vector<Assignment> smaller;
    for (const StageConfig* stage : large) {
      if (stage->micro_batch_sequences % share != 0) return choices;
      smaller.push_back({fmt::format("stages.{}.micro_batch_sequences", stage->name),
                         fmt::format("{}", stage->micro_batch_sequences / share)});
    }
    if (smaller.empty()) return choices;
    choices.push_back(std::move(smaller));
  }
}

/// One value of each.
std::vector<std::vector<Assignment>> combinations(const std::vector<Choices>& all) {
  std::vector<std::vector<Assignment>> result = {{}};
  for (const Choices& choices : all) {
    std::vector<std::vector<Assignment>> longer;
    for (const std::vector<Assignment>& first : result) {
      for (const std::vector<Assignment>& next : choices) {
        longer.push_back(first);
        longer.back().insert(longer.back().end(), next.begin(), next.end());
      }
    }
    result = std::move(longer);
  }
  return result;
}

std::set<std::string> keys_of(const MemoryChange& change) {
  std::set<std::string> keys;
  for (const Assignment& assignment : change.assignments) keys.insert(assignment.key);
  return keys;
}

/// Returns true if `other` changes a subset of the keys and costs no more work.
bool is_beaten_by(const MemoryChange& change, const MemoryChange& other) {
  const std::set<std::string> own = keys_of(change), fewer = keys_of(other);
  return other.added_work <= change.added_work &&
         std::includes(own.begin(), own.end(), fewer.begin(), fewer.end());
}

/// Returns the configuration with the changes; nothing if they contradict each other.
std::optional<RunConfig> changed(const RunConfig& config, const std::string& text,
                                 const std::vector<Assignment>& changes) {
  try {
    return parse_run_config(text, "memory", changes, 1.0, config.recorded);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Returns the bytes of the largest stage; nothing if a recipe refuses the settings: recomputation
/// from activations that it saves as codes.
std::optional<std::int64_t> needed_if_possible(const RunConfig& config, const Backend& backend) {
  std::int64_t bytes = 0;
  try {
    for (const StageConfig& stage : config.stages) {
      bytes = std::max(bytes, needed(config, stage, backend));
    }
  } catch (const InputError&) {
    return std::nullopt;
  }
  return bytes;
}

std::string ways_to_fit(const RunConfig& config, const Backend& backend, std::int64_t there) {
  const std::vector<MemoryChange> changes = changes_that_fit(config, backend, there);
  if (changes.empty()) return "no setting of [memory] and no smaller micro-batch makes it fit";
  std::vector<std::string> named;
  for (std::size_t i = 0; i < std::min(kNamedChanges, changes.size()); ++i) {
    named.push_back(describe(changes[i]));
  }
  return fmt::format("it fits with {}", fmt::join(named, ", or "));
}

/// Throws Error unless the backend's memory at `place` is as large as the `bytes` that a stage
/// needs.
void require(std::int64_t bytes, std::int64_t there, const std::string& what,
             const std::string& place, const RunConfig& config, const Backend& backend) {
  if (bytes <= there) return;
  throw InputError({.reason = fmt::format("{} needs {} of memory, {} has {}", what, text_of(bytes),
                                          place, text_of(there)),
                    .remedy = ways_to_fit(config, backend, there)});
}

}  // namespace

std::string describe(const MemoryChange& change) {
  std::vector<std::string> words;
  for (const Assignment& assignment : change.assignments) {
    words.push_back(assignment.key + "=" + assignment.value);
  }
  return fmt::format("{} ({}, {:.1f} % more work, {} bits)", fmt::join(words, " "),
                     text_of(change.bytes), 100.0 * std::max(change.added_work, 0.0),
                     change.keeps_bits ? "the same" : "other");
}

std::vector<MemoryChange> changes_that_fit(const RunConfig& config, const Backend& backend,
                                           std::int64_t bytes) {
  const std::string text = to_toml(config);
  const std::string hash = parse_run_config(text, "memory", {}, 1.0, config.recorded).hash;
  const double own_work = work_of(config, backend);
  std::vector<MemoryChange> fitting;
  for (std::vector<Assignment>& assignments :
       combinations({weight_choices(config), chunk_choices(config), recompute_choices(config),
                     micro_batch_choices(config, backend, bytes)})) {
    if (assignments.empty()) continue;
    const std::optional<RunConfig> run = changed(config, text, assignments);
    if (!run) continue;
    MemoryChange change{std::move(assignments), 0, 0, run->hash == hash};
    const std::optional<std::int64_t> bytes_of_run = needed_if_possible(*run, backend);
    if (!bytes_of_run) continue;
    change.bytes = *bytes_of_run;
    if (change.bytes > bytes) continue;
    constexpr double kFinest = 1e-6;  // the work is summed in different orders
    change.added_work = std::round((work_of(*run, backend) / own_work - 1.0) / kFinest) * kFinest;
    fitting.push_back(std::move(change));
  }
  std::sort(fitting.begin(), fitting.end(), [](const MemoryChange& a, const MemoryChange& b) {
    const auto rank = [](const MemoryChange& change) {
      return std::tuple(change.added_work, !change.keeps_bits, change.assignments.size(),
                        -change.bytes);  // smaller changes first
    };
    return rank(a) < rank(b);
  });
  std::vector<MemoryChange> best;
  for (MemoryChange& change : fitting) {
    const bool is_beaten = std::any_of(best.begin(), best.end(), [&](const MemoryChange& other) {
      return is_beaten_by(change, other);
    });
    if (!is_beaten) best.push_back(std::move(change));
  }
  return best;
}

void require_memory_of(const RunConfig& config, const Backend& backend) {
  const std::optional<std::size_t> free = backend.free_bytes();
  const bool on_host = backend.is_on_host();
  for (const StageConfig& stage : config.stages) {
    const std::int64_t data = token_bytes(stage);
    const std::string what = fmt::format("stage {}: steps of {} x {} tokens, {} x {} at once",
                                         stage.name, stage.batch_sequences, stage.sequence_length,
                                         stage.micro_batch_sequences, stage.sequence_length);
    const std::string tokens = fmt::format("tokens {}", text_of(data));
    if (!on_host) require_memory(static_cast<double>(data), fmt::format("{} ({})", what, tokens));
    if (!on_host && !free) continue;
    const MemoryPlan plan = largest_plan(config, stage, backend);
    const std::string planned = fmt::format(
        "parameters and optimizer {}, activations {}, operands {}, buffers {}, caches {}",
        text_of(plan.parameters), text_of(plan.activations), text_of(plan.operands),
        text_of(plan.buffers), text_of(plan.caches));
    if (on_host) {
      require(plan.total() + data, machine_memory(),
              fmt::format("{} ({}, {})", what, planned, tokens), "this machine", config, backend);
    } else {
      require(plan.total(), static_cast<std::int64_t>(*free), fmt::format("{} ({})", what, planned),
              backend.device(), config, backend);
    }
  }
}

}  // namespace fp8lab
