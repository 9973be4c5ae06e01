// The words of files for the kinds of an architecture.
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

/// Of QkNorm::none there is no word: qk_norm = false.
inline constexpr std::array<Named<QkNorm>, 2> kQkNormNames = {{
    {"head", QkNorm::head},
    {"all_heads", QkNorm::all_heads},
}};

inline constexpr std::array<Named<FeedForwardKind>, 2> kFeedForwardKindNames = {{
    {"swiglu", FeedForwardKind::swiglu},
    {"gelu_tanh", FeedForwardKind::gelu_tanh},
}};

/// Layers without and with AttentionSpec::window, as layer_types of config.json names them.
inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";

inline constexpr std::array<Named<PositionKind>, 2> kPositionKindNames = {{
    {"rope", PositionKind::rope},
    {"learned", PositionKind::learned},
}};

}  // namespace fp8lab
