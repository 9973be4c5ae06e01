// The words of run files and the values they stand for: one table for both reading and writing.
#pragma once

#include "emulation/spec/recipe_names.hpp"
#include "src/architecture/model_names.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Accepted values of RunConfig::backend.
inline constexpr std::array<std::string_view, 3> kBackendNames = {"cpu", "truth", "cuda"};

inline constexpr std::array<Named<DataKind>, 4> kDataKindNames = {{
    {"arithmetic", DataKind::arithmetic},
    {"text", DataKind::text},
    {"jsonl", DataKind::jsonl},
    {"tokens", DataKind::tokens},
}};

inline constexpr std::array<Named<DataForm>, 2> kDataFormNames = {{
    {"running_text", DataForm::running_text},
    {"prompt_response", DataForm::prompt_response},
}};

inline constexpr std::array<Named<StageKind>, 3> kStageKindNames = {{
    {"pretrain", StageKind::pretrain},
    {"cpt", StageKind::cpt},
    {"sft", StageKind::sft},
}};

inline constexpr std::array<Named<ObjectiveKind>, 2> kObjectiveKindNames = {{
    {"cross_entropy", ObjectiveKind::cross_entropy},
    {"policy_gradient", ObjectiveKind::policy_gradient},
}};

inline constexpr std::array<Named<DecayShape>, 3> kDecayShapeNames = {{
    {"cosine", DecayShape::cosine},
    {"linear", DecayShape::linear},
    {"1-sqrt", DecayShape::one_minus_sqrt},
}};

inline constexpr std::array<Named<ScheduleKind>, 4> kScheduleKindNames = {{
    {"wsd", ScheduleKind::wsd},
    {"cosine", ScheduleKind::cosine},
    {"linear", ScheduleKind::linear},
    {"constant", ScheduleKind::constant},
}};

inline constexpr std::array<Named<UpdateRule>, 5> kUpdateRuleNames = {{
    {name_of(UpdateRule::adamw), UpdateRule::adamw},
    {name_of(UpdateRule::lion), UpdateRule::lion},
    {name_of(UpdateRule::sgd), UpdateRule::sgd},
    {name_of(UpdateRule::madam), UpdateRule::madam},
    {name_of(UpdateRule::muon), UpdateRule::muon},
}};

inline constexpr std::array<Named<UpdateScale>, 2> kUpdateScaleNames = {{
    {"adamw_rms", UpdateScale::adamw_rms},
    {"original", UpdateScale::original},
}};

inline constexpr std::array<Named<GroupRule>, 3> kGroupRuleNames = {{
    {"automatic", GroupRule::automatic},
    {"adamw", GroupRule::adamw},
    {"muon", GroupRule::muon},
}};

inline constexpr std::array<Named<Recompute>, 4> kRecomputeNames = {{
    {"none", Recompute::none},
    {"gate_up", Recompute::gate_up},
    {"feed_forward", Recompute::feed_forward},
    {"layer", Recompute::layer},
}};

inline constexpr std::array<Named<WeightCodes>, 2> kWeightCodesNames = {{
    {"keep", WeightCodes::keep},
    {"remake", WeightCodes::remake},
}};

inline constexpr std::array<Named<MomentUse>, 2> kMomentUseNames = {{
    {"rounded", MomentUse::rounded},
    {"unrounded", MomentUse::unrounded},
}};

inline constexpr std::array<Named<StressKind>, 3> kStressKindNames = {{
    {"outlier_channels", StressKind::outlier_channels},
    {"aligned_swiglu", StressKind::aligned_swiglu},
    {"spike", StressKind::spike},
}};

inline constexpr std::array<Named<GrowthOrder>, 2> kGrowthOrderNames = {{
    {"interpose", GrowthOrder::interpose},
    {"stack", GrowthOrder::stack},
}};

inline constexpr std::array<Named<NonfinitePolicy>, 2> kNonfinitePolicyNames = {{
    {"stop", NonfinitePolicy::stop},
    {"keep_going", NonfinitePolicy::keep_going},
}};

}  // namespace fp8lab
