// What config.json says of the quantization of a model's weights, in any dialect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// What the configuration says of one group of modules.
struct GroupClaim {
  std::vector<std::string> targets = {};  ///< "Linear" (all), names, or "re:" and an expression
  std::optional<int> bits = {};
  std::string type = "float";
  std::optional<StoredScaleTile> tile = {};  ///< nothing: not stated
  bool has_static_inputs = false;            ///< each module needs a scale of its inputs
  bool has_dynamic_inputs = false;           ///< scales of inputs are not read
};

/// What a quantization_config says; fields that it lacks keep these values.
struct QuantizationClaim {
  bool is_there = false;
  std::string method;              ///< quant_method
  std::optional<Dialect> dialect;  ///< nothing for methods that are not read here
  std::vector<GroupClaim> groups;
  std::vector<std::string> ignored;   ///< modules that stay unquantized
  bool says_powers_of_two = false;    ///< scale_fmt "ue8m0"
  std::string format;                 ///< fmt, "e4m3"; empty: not stated
  std::vector<std::string> problems;  ///< what contradicts itself or is malformed, as sentences
  std::vector<std::string> unread;    ///< see unread_settings
  std::vector<std::string> unknown;   ///< keys that no dialect here has

  /// Returns the group that a module belongs to, or null.
  const GroupClaim* group_of(const std::string& module) const;
  bool ignores(const std::string& module) const;
  /// Returns true if groups are described and none has the module as a target. "Linear" covers no
  /// embedding.
  bool leaves_out(const std::string& module) const;
};

/// Reads `config`, a whole config.json. Never throws: what is malformed is a problem.
QuantizationClaim read_claim(const nlohmann::json& config);

/// Returns what a quantization_config says about the weights that nothing here applies, as
/// sentences: rotations, zero points, scales of input channels. Weights read without them are other
/// weights.
std::vector<std::string> unread_settings(const nlohmann::json& table);

/// Returns true if `pattern` names `module`: "re:" and an expression that matches from the
/// beginning, a name with "*", the name itself or a part of it between dots.
bool names_module(const std::string& pattern, const std::string& module);

}  // namespace fp8lab
