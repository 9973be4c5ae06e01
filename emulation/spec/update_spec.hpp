// The update of weights from their gradients: the rule and its parameters.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/numerics/host_device.hpp"

namespace fp8lab {

/// Update rules. ops/optimizer/update.hpp defines the arithmetic of each, element by element.
enum class UpdateRule : std::uint8_t {
  adamw,  ///< Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2
  lion,   ///< Chen et al. 2023 (arXiv:2302.06675), algorithm 2
  sgd,    ///< heavy ball, with decoupled weight decay
  madam,  ///< LNS-Madam as released (Zhao et al. 2021, arXiv:2106.13914)
  muon,   ///< of matrices: Jordan et al. 2024; Liu et al. 2025 (arXiv:2502.16982), algorithm 1
};

constexpr std::string_view name_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::adamw: return "adamw";
    case UpdateRule::lion: return "lion";
    case UpdateRule::sgd: return "sgd";
    case UpdateRule::madam: return "madam";
    case UpdateRule::muon: return "muon";
  }
  return "?";
}

/// The moments that change the weights.
enum class MomentUse : std::uint8_t {
  rounded,    ///< as stored after the step
  unrounded,  ///< as computed; rounded to their storage afterwards (MS-AMP)
};

/// Factor of Muon's update of a matrix of (rows, cols), beside the learning rate.
enum class UpdateScale : std::uint8_t {
  adamw_rms,  ///< 0.2 sqrt(max(rows, cols)): the root mean square of AdamW's (Liu et al. 2025)
  original,   ///< sqrt(max(1, rows / cols)) (Jordan et al. 2024)
};

struct UpdateSpec {
  UpdateRule rule = UpdateRule::adamw;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;
  float clip_norm = 1.0f;  ///< 0: no clipping
  MomentUse moments = MomentUse::rounded;
  float gradient_bound = 10.0f;  ///< madam: limit of a gradient over its root mean square
  float weight_bound = 3.0f;     ///< madam: limit of a weight, in root mean
                                 ///< squares of its first tensor
  float rate_factor = 1.0f;      ///< factor of the step's learning rate
  float momentum = 0.95f;        ///< muon: decay of its momentum in a step
  UpdateScale update_scale = UpdateScale::adamw_rms;
  float update_factor = 1.0f;  ///< muon: by update_scale, for the matrix at hand

  bool operator==(const UpdateSpec&) const = default;

  FP8LAB_HD constexpr bool has_first_moment() const { return rule != UpdateRule::madam; }
  FP8LAB_HD constexpr bool has_second_moment() const {
    return rule == UpdateRule::adamw || rule == UpdateRule::madam;
  }
};

}  // namespace fp8lab
