// The words in files for the enums of model_config.hpp.
#pragma once

#include <array>
#include <string_view>

#include "emulation/spec/recipe_names.hpp"
#include "src/architecture/model_config.hpp"

namespace fp8lab {

inline constexpr std::array<Named<RopeType>, 5> kRopeTypeNames = {{
    {"default", RopeType::unscaled},
    {"linear", RopeType::linear},
    {"dynamic", RopeType::dynamic},
    {"yarn", RopeType::yarn},
    {"llama3", RopeType::llama3},
}};

inline constexpr std::array<Named<NormKind>, 2> kNormKindNames = {{
    {"rmsnorm", NormKind::rmsnorm},
    {"layernorm", NormKind::layernorm},
}};

inline constexpr std::array<Named<NormPlace>, 4> kNormPlaceNames = {{
    {"pre", NormPlace::pre},
    {"post", NormPlace::post},
    {"both", NormPlace::both},
    {"none", NormPlace::none},
}};

/// QkNorm::none has no word; a file says qk_norm = false.
inline constexpr std::array<Named<QkNorm>, 3> kQkNormNames = {{
    {"head", QkNorm::head},
    {"all_heads", QkNorm::all_heads},
    {"elements", QkNorm::elements},
}};

inline constexpr std::array<Named<FeedForwardKind>, 5> kFeedForwardKindNames = {{
    {"swiglu", FeedForwardKind::swiglu},
    {"geglu_tanh", FeedForwardKind::geglu_tanh},
    {"gelu_tanh", FeedForwardKind::gelu_tanh},
    {"relu2", FeedForwardKind::relu2},
    {"xielu", FeedForwardKind::xielu},
}};

inline constexpr std::array<Named<ProductFactor>, 3> kProductFactorNames = {{
    {"one", ProductFactor::one},
    {"inverse_sqrt_in", ProductFactor::inverse_sqrt_in},
    {"inverse_in", ProductFactor::inverse_in},
}};

/// Words of layer_types in config.json: a layer without and with AttentionSpec::window.
inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";

inline constexpr std::array<Named<PositionKind>, 2> kPositionKindNames = {{
    {"rope", PositionKind::rope},
    {"learned", PositionKind::learned},
}};

}  // namespace fp8lab
