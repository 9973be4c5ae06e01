// The [optimizer] table of run files: the update rule, its rates, and the
// storage formats of its states.
#include <optional>
#include <string>

#include "src/config/config_names.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/config/tables/run_tables.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

bool is_madam(const UpdateSpec& spec) { return spec.rule == UpdateRule::madam; }
bool is_muon(const UpdateSpec& spec) { return spec.rule == UpdateRule::muon; }
/// Also of muon, beside which adamw updates vectors.
bool has_adamw(const UpdateSpec& spec) { return spec.rule == UpdateRule::adamw || is_muon(spec); }

/// Keys that a file may give for every rule, so that a study can replace the rule alone.
Fields<UpdateSpec> shared_update_fields() {
  using S = UpdateSpec;
  const auto has_beta2 = [](const S& spec) { return spec.rule != UpdateRule::sgd; };
  const auto decays = [](const S& spec) { return !is_madam(spec); };
  return {
      number("beta1", &S::beta1, 0.0, 0.99999, "decay of the first moment in a step")
          .when([](const S& spec) { return spec.has_first_moment(); }, "a kind other than madam")
          .ignored_otherwise(),
      number("beta2", &S::beta2, 0.0, 0.99999,
             "decay of the second moment in a step; lion: decay of its moment, which beta1 mixes "
             "into the update")
          .when(has_beta2, "a kind other than sgd")
          .ignored_otherwise(),
      number("epsilon", &S::epsilon, 1e-30, 1.0, "added to the root of the second moment")
          .when(has_adamw, "kind = \"adamw\" or \"muon\"")
          .ignored_otherwise(),
      number("weight_decay", &S::weight_decay, 0.0, 10.0,
             "decoupled weight decay of matrices, a factor of the learning rate")
          .when(decays, "a kind other than madam")
          .ignored_otherwise(),
      number("clip_norm", &S::clip_norm, 0.0, 1e30,
             "largest norm of all gradients together; 0: not clipped"),
      number("momentum", &S::momentum, 0.0, 0.99999, "decay of muon's momentum in a step")
          .when(is_muon, "kind = \"muon\"")
          .ignored_otherwise(),
  };
}

Fields<UpdateSpec> rule_fields() {
  using S = UpdateSpec;
  const auto is_after = [](const S& spec) { return spec.rule != UpdateRule::lion; };
  return {
      choice("kind", &S::rule, kUpdateRuleNames, "update rule"),
      choice("update_moments", &S::moments, kMomentUseNames,
             "whether the update uses moments before or after they are rounded to their storage")
          .when(is_after, "a kind other than lion, which takes the moment of the step before"),
      number("gradient_bound", &S::gradient_bound, 0.5, 1e6,
             "clip gradients to this multiple of their root mean square")
          .when(is_madam, "kind = \"madam\""),
      number("weight_bound", &S::weight_bound, 0.0, 1e6,
             "largest weight, as a multiple of the root mean square of its tensor at the start of "
             "the stage")
          .when(is_madam, "kind = \"madam\""),
      choice("update_scale", &S::update_scale, kUpdateScaleNames,
             "factor of a matrix of R rows and C columns: adamw_rms, 0.2 sqrt(max(R, C)), for "
             "rates of AdamW; original, sqrt(max(1, R / C))")
          .when(is_muon, "kind = \"muon\""),
  };
}

bool has_second_moment(const OptimizerConfig& optimizer) {
  return optimizer.update.has_second_moment() || is_muon(optimizer.update);
}

Field<OptimizerConfig> state_field(std::string word, QuantSpec OptimizerConfig::*member,
                                   std::string help) {
  const auto read = [](std::string_view words) -> std::optional<QuantSpec> {
    try {
      const QuantSpec spec = parse_state_spec(std::string(words));
      if (!refuse_state(spec)) return spec;
    } catch (const Error&) {
      // The message with the accepted values suffices.
    }
    return std::nullopt;
  };
  Field<OptimizerConfig> field =
      spelled(std::move(word), member, read, state_label,
              "bf16, fp32, or the words of a signed format of at most 16 bits, with a current "
              "scale of the tensor or of 1xC consecutive elements, a static one, or none: "
              "e4m3fn/1x128/expand, e5m2/tensor/pow2, fp16/tensor, e5m6/1x128, lns16g2048/tensor",
              std::move(help));
  field.names = {"bf16", "fp32"};
  return field;
}

Field<OptimizerGroup> group_decay_field() {
  Field<OptimizerGroup> field =
      number("weight_decay", &OptimizerGroup::weight_decay, 0.0, 10.0,
             "weight decay of all parameters of the group, vectors included");
  return std::move(field).by_default("as without the group");
}

const Table<OptimizerGroup>& optimizer_group_table() {
  using S = OptimizerGroup;
  const auto is_updated = [](const S& group) { return !group.frozen; };
  static const Table<S> table{
      {
          text("match", &S::match, "a pattern of parameters' names",
               "pattern such as \"layers.*.mlp\", which also matches the names below it; the first "
               "matching group applies",
               is_not_empty)
              .required(),
          number("learning_rate", &S::learning_rate, 0.0, 1e6,
                 "factor of the stage's learning rate")
              .when(is_updated, "frozen = false"),
          integer("base_inputs", &S::base_inputs, 0, kLargeCount,
                  "inputs of a layer for which a rate was found: that of a matrix with `in` inputs "
                  "is multiplied by sqrt(base_inputs / in); 0: by 1")
              .when(is_updated, "frozen = false"),
          group_decay_field().when(is_updated, "frozen = false"),
          boolean("frozen", &S::frozen,
                  "keep the parameters as they are: they have no gradients, moments or updates"),
          choice("kind", &S::rule, kGroupRuleNames,
                 "with kind = \"muon\": automatic, muon for the weights of linear layers but the "
                 "head's; muon, also for other matrices; adamw updates the rest")
              .when(is_updated, "frozen = false"),
      },
      {},
      [](const TomlReader& reader, const S& group) {
        if (group.frozen || reader.has("learning_rate") || reader.has("base_inputs") ||
            reader.has("weight_decay") || reader.has("kind")) {
          return;
        }
        reader.fail(
            "match",
            {.reason = "the group changes nothing",
             .accepted = "with learning_rate, base_inputs, weight_decay or kind, or frozen = true "
                         "(learning_rate = 1.0 keeps parameters from later groups)"});
      }};
  return table;
}

}  // namespace

const Fields<OptimizerConfig>& optimizer_fields() {
  using S = OptimizerConfig;
  static const Fields<S> rows = [] {
    Fields<S> all;
    lift(shared_update_fields(), &S::update, all);
    all.push_back(
        state_field("weights", &S::weights, "storage of the master weights; bf16: no FP32 copy"));
    all.push_back(state_field("gradients", &S::gradients,
                              "storage of gradients; bf16 applies to weights of linear layers, in "
                              "steps of one micro-batch"));
    all.push_back(state_field("first_moment", &S::first_moment, "storage of the first moment")
                      .when([](const S& optimizer) { return optimizer.update.has_first_moment(); },
                            "a kind other than madam"));
    all.push_back(state_field("second_moment", &S::second_moment, "storage of the second moment")
                      .when(has_second_moment, "kind = \"adamw\", \"madam\" or \"muon\""));
    lift(rule_fields(), &S::update, all);
    return all;
  }();
  return rows;
}

const Table<OptimizerConfig>& optimizer_table() {
  using S = OptimizerConfig;
  static const Table<S> table{
      optimizer_fields(),
      {shared(TableList("group", &S::groups, optimizer_group_table,
                        "learning rate, weight decay or rule of some parameters, or that they "
                        "are frozen"))},
      [](const TomlReader& reader, const S& optimizer) {
        if (is_muon(optimizer.update)) return;
        for (const OptimizerGroup& group : optimizer.groups) {
          if (group.rule == GroupRule::automatic) continue;
          reader.fail("group",
                      {.reason = fmt::format(
                           "kind of the group \"{}\" is for an optimizer of kind = \"muon\"",
                           group.match)});
        }
      }};
  return table;
}

}  // namespace fp8lab
