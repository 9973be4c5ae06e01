// The [[stages.stress]] tables of run files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the table below

constexpr double kDefaultSpike = 64.0;

bool grows_channels(const StressConfig& stress) {
  return stress.kind == StressKind::outlier_channels;
}
bool aligns(const StressConfig& stress) { return stress.kind == StressKind::aligned_swiglu; }
bool is_spike(const StressConfig& stress) { return stress.kind == StressKind::spike; }

/// A power of two: multiplication by it is exact.
Field<StressConfig> power_of_two(const char* word, double StressConfig::*member, const char* help) {
  Field<StressConfig> field = number(word, member, 0x1p-60, 0x1p60, help);
  field.accepted = "a power of two from 2^-60 to 2^60 such as 4096.0, so that it rounds nothing";
  field.set = [member, plain = field.set](StressConfig& stress, const FieldValue& value) {
    StressConfig trial = stress;
    int exponent = 0;
    const bool fits = plain(trial, value) && std::frexp(trial.*member, &exponent) == 0.5;
    if (fits) stress = trial;
    return fits;
  };
  return field;
}

/// Returns the feed-forward layers with a gate, by the names of their linear layers.
std::vector<std::string> gated_layers(const Declaration& declaration) {
  std::vector<std::string> names;
  for (const LinearDeclaration& linear : declaration.linears()) {
    if (declaration.parameter(linear.weight).gate_and_up) names.push_back(linear.name);
  }
  return names;
}

/// Throws unless `stress.layers` names a feed-forward layer with a gate.
void check_aligned(const TomlReader& reader, const StressConfig& stress, const ModelConfig& model,
                   const Declaration& declaration) {
  const std::vector<std::string> gated = gated_layers(declaration);
  if (gated.empty()) {
    reader.fail("kind",
                {.accepted = "feed_forward = \"swiglu\" or \"geglu_tanh\", which have a gate"});
  }
  const auto layers = static_cast<int>(model.layer_count());
  if (std::any_of(gated.begin(), gated.end(), [&](const std::string& name) {
        return layer_pattern_matches(stress.layers, name, layers);
      })) {
    return;
  }
  reader.refuse("layers", {.found = fmt::format("'{}'", stress.layers),
                           .reason = ", which names no feed-forward",
                           .accepted = fmt::format(
                               "a pattern of layers such as layers.last, of {} layers", layers)});
}

void check_stress(const TomlReader& reader, const StressConfig& stress, const StageConfig& stage,
                  const ModelConfig& model) {
  if (is_spike(stress) && stress.factor == 1.0) {
    reader.fail("factor",
                {.reason = "1 makes no spike", .accepted = "another power of two, such as 64.0"});
  }
  if (grows_channels(stress) && stress.gain == 1.0) {
    reader.fail("gain", {.reason = "1 changes no channel",
                         .accepted = "another power of two, such as 4096.0"});
  }
  const std::int64_t most = aligns(stress) ? model.intermediate_size : model.hidden_size;
  if (stress.channels > most) {
    reader.refuse("channels", {.found = fmt::format("the integer {}", stress.channels),
                               .accepted = integers(1, most)});
  }
  if (stress.at_step + std::max<std::int64_t>(1, stress.over_steps) > stage.steps) {
    reader.fail("at_step", {.reason = fmt::format(
                                "at_step = {} and over_steps = {} do not fit into steps = {}",
                                stress.at_step, stress.over_steps, stage.steps)});
  }
  const Declaration declaration = declaration_of(model);
  if (aligns(stress)) {
    check_aligned(reader, stress, model, declaration);
  } else if (declaration.normed_linears().empty()) {
    reader.fail("kind",
                {.accepted = "norm_place = \"pre\" or \"both\", whose norms linear layers read"});
  }
}

}  // namespace

const Table<StressConfig>& stress_table() {
  using S = StressConfig;
  static const Table<S> table{{
      choice("kind", &S::kind, kStressKindNames,
             "channels behind norms that become large while the function stays; SwiGLU channels "
             "that become quadratic; large activations behind norms for one step, which only "
             "quantizers see")
          .selecting()
          .required(),
      integer("at_step", &S::at_step, 0, kLargeCount,
              "number of steps of the stage before it; 0: before the first step")
          .or_share(),
      integer("channels", &S::channels, 1, kLargeCount,
              "of every activation behind a norm, at most model.hidden_size, or of the SwiGLU of "
              "each layer, at most model.intermediate_size")
          .when([](const S& stress) { return !is_spike(stress); },
                "kind = \"outlier_channels\" or \"aligned_swiglu\""),
      power_of_two("gain", &S::gain,
                   "factor of the channels; the weights that read them are divided by it")
          .when(grows_channels, "kind = \"outlier_channels\"")
          .required(),
      integer("over_steps", &S::over_steps, 0, kLargeCount,
              "steps over which the gain grows, by powers of two; 0: at once")
          .or_share()
          .when(grows_channels, "kind = \"outlier_channels\""),
      power_of_two("factor", &S::factor,
                   "of the activations of a spike; of the weights of the gate, which are made this "
                   "multiple of their other half")
          .otherwise([](const S& stress) { return is_spike(stress) ? kDefaultSpike : 1.0; },
                     "64 of a spike, else 1")
          .when([](const S& stress) { return !grows_channels(stress); },
                "kind = \"aligned_swiglu\" or \"spike\""),
      text("layers", &S::layers, "a pattern of layers, as in recipes",
           "layers whose feed-forward is aligned: layers.*, layers.last, layers.{0,3}")
          .when(aligns, "kind = \"aligned_swiglu\""),
  }};
  return table;
}

void check_stresses(const TomlReader& reader, const StageConfig& stage, const ModelConfig& model) {
  TomlReader copy = reader;
  std::size_t index = 0;
  for (const TomlReader& table : copy.tables("stress")) {
    check_stress(table, stage.stress[index++], stage, model);
  }
}

}  // namespace fp8lab
