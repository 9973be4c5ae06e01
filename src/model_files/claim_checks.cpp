// Names, shapes and types of the tensors against each other and against config.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "emulation/base/error.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/model_files/model_doctor.hpp"
#include "src/model_files/packed_experts.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;
using Extents = std::vector<std::int64_t>;
std::string shape_words(const Extents& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// The number of a layer in a name such as "model.layers.12.mlp.up_proj"; -1: none.
std::int64_t layer_number(const std::string& name) {
  for (const char* word : {"layers.", "h.", "blocks."}) {
    const std::size_t at = name.find(word);
    if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) continue;
    const std::size_t first = at + std::string_view(word).size();
    std::size_t last = first;
    while (last < name.size() && name[last] >= '0' && name[last] <= '9') ++last;
    if (last > first && last - first < 6) return std::stoll(name.substr(first, last - first));
  }
  return -1;
}

class ClaimChecks {
 public:
  ClaimChecks(ModelFolder& folder, std::vector<ModelFinding>& findings)
      : folder_(folder), findings_(findings) {}

  void run() {
    for (StoredWeight& weight : folder_.weights) check_weight(weight);
    for (const StoredTensor* scale : folder_.orphans) report_orphan(*scale);
    check_names_of_codes();
    const std::size_t known = findings_.size();
    experts_ = find_packed_experts(folder_, findings_).size() + findings_.size() - known;
    check_unread_tensors();
    check_method();
    check_ignored_names();
    check_unquantized();
    check_layers();
    check_modelopt_file();
  }

 private:
  void add(Severity severity, const char* kind, const std::string& tensor, std::string text,
           Extents block = {}) {
    findings_.push_back({severity, kind, tensor, std::move(block), 1, std::move(text)});
  }

  void check_weight(StoredWeight& weight) {
    const std::string module = module_of_tensor(weight.name);
    check_parts(weight);
    const GroupClaim* const group = folder_.claim.group_of(module);
    if (weight.scales != nullptr) check_grid(weight, group);
    if (!folder_.claim.is_there) return;
    if (folder_.claim.ignores(module)) {
      add(Severity::error, "config_ignored", weight.codes->name,
          "is quantized, but quantization_config lists its module as unquantized: the loader "
          "reads the codes as values, without the scales");
    }
    if (folder_.claim.leaves_out(module) && !folder_.claim.ignores(module)) {
      add(Severity::error, "config_ignored", weight.codes->name,
          "is quantized, but no group of quantization_config has its module as a target: the "
          "loader reads the codes as values, without the scales");
    }
    if (group != nullptr) check_group(weight, *group, module);
    check_format(weight);
  }

  void check_parts(const StoredWeight& weight) {
    const LayoutNames names = layout_names(weight.layout, weight.name);
    const bool has_other_names = weight.scales == nullptr && !names.scales.empty();
    if (has_other_names) {
      add(Severity::error, "scale_missing", weight.codes->name,
          fmt::format("has {} codes, but there is no '{}': read without it, the weight is wrong by "
                      "the missing factor",
                      format_name(weight.layout.format), names.scales));
    }
    if (weight.scales != nullptr && weight.layout.has_two_levels() && weight.global == nullptr) {
      add(Severity::error, "scale_missing", weight.codes->name,
          fmt::format("has scales of two levels, but there is no '{}': read without it, the weight "
                      "is wrong by that factor",
                      names.global));
    }
    for (const char* suffix : {"_scale_inv", "_scale"}) {
      const StoredTensor* const other = folder_.find(weight.name + suffix);
      if (other == nullptr || other == weight.scales || weight.scales == nullptr) continue;
      add(Severity::error, "scale_twice", other->name,
          fmt::format("is there beside '{}': which of the two scales counts depends on the loader",
                      weight.scales->name));
    }
    if (weight.codes->name != weight.name && folder_.find(weight.name) != nullptr) {
      add(Severity::error, "weight_twice", weight.name,
          fmt::format("is there beside '{}': which of the two weights counts depends on the loader",
                      weight.codes->name));
    }
    if (weight.global != nullptr && weight.global->type != StoredType::f32) {
      add(Severity::error, "scale_type", weight.global->name,
          fmt::format("is {}; accepted: F32", shape_text(*weight.global)));
    }
  }

  void check_grid(StoredWeight& weight, const GroupClaim* group) {
    const StoredTensor& scales = *weight.scales;
    if (!is_decodable(scales.type) && scales.type != StoredType::u8) {
      add(Severity::error, "scale_type", scales.name,
          fmt::format("is {}: no loader has scales of this type", shape_text(scales)));
      weight.scales = nullptr;
      return;
    }
    if (weight.layout.is_packed() && weight.layout.has_e8m0_scales() && weight.global != nullptr) {
      add(Severity::warning, "scale_twice", weight.global->name,
          "stands beside E8M0 scales, which have one level");
    }
    const std::optional<StoredScaleTile> claimed = group == nullptr ? std::nullopt : group->tile;
    const Extents shape = weight.shape();
    if (weight.is_swizzled) {
      check_swizzled(weight);
      return;
    }
    const std::optional<StoredScaleTile> tile = tile_of_shapes(shape, scales.shape, claimed);
    if (!tile) {
      report_grid(weight, claimed);
      weight.scales = nullptr;
      return;
    }
    weight.layout.tile = *tile;
    if (!claimed || *tile == *claimed) return;
    if (folder_.claim.dialect == Dialect::modelopt && weight.layout.is_packed()) return;
    add(Severity::error, "grid", scales.name,
        fmt::format("has shape {}, one scale for each {}, but quantization_config says {}, which "
                    "is {} for a weight of {}: a loader refuses it or spreads the scales wrongly",
                    shape_words(scales.shape), tile_text(*tile), tile_text(*claimed),
                    grid_words(shape, *claimed), shape_words(shape)));
  }

  static std::string grid_words(const Extents& shape, const StoredScaleTile& tile) {
    if (shape.size() < 2) return "no grid";
    return shape_words({tile.rows_of(shape[shape.size() - 2]), tile.cols_of(shape.back())});
  }

  void check_swizzled(StoredWeight& weight) {
    const Extents shape = weight.shape();
    const std::int64_t group = weight.layout.has_two_levels() ? 16 : 32;
    const std::int64_t rows = (shape[0] + 127) / 128 * 128;
    const std::int64_t cols = ((shape.back() + group - 1) / group + 3) / 4 * 4;
    weight.layout.tile = {1, group};
    if (shape.size() == 2 && weight.scales->size() == rows * cols) return;
    add(Severity::error, "grid", weight.scales->name,
        fmt::format("has {} scales, swizzled ones of a weight of {} are {}", weight.scales->size(),
                    shape_words(shape), rows * cols));
    weight.scales = nullptr;
  }

  void report_grid(const StoredWeight& weight, const std::optional<StoredScaleTile>& claimed) {
    const Extents shape = weight.shape();
    const Extents& scales = weight.scales->shape;
    std::string text = fmt::format("has shape {}, which fits a weight of {} ", shape_words(scales),
                                   shape_words(shape));
    if (!claimed) {
      text += folder_.claim.is_there ? "in no tile, and quantization_config names none"
                                     : "in no tile without a quantization_config";
    } else {
      text += fmt::format("not in tiles of {}, which are {}", tile_text(*claimed),
                          grid_words(shape, *claimed));
    }
    Extents block;
    if (shape.size() == 2 && scales.size() == 2 && claimed) {
      const std::int64_t rows = claimed->rows_of(shape[0]), cols = claimed->cols_of(shape[1]);
      if (scales[0] == cols && scales[1] == rows) {
        text += "; it is transposed";
      } else {
        // The first block that has no scale, or that has none beside it.
        const bool is_short = scales[0] < rows || scales[1] < cols;
        block = scales[0] != rows ? Extents{std::min(scales[0], rows), 0}
                                  : Extents{0, std::min(scales[1], cols)};
        text += is_short ? fmt::format("; block ({}) has no scale", fmt::join(block, ", "))
                         : fmt::format("; the scale of block ({}) has no weights",
                                       fmt::join(block, ", "));
      }
    }
    add(Severity::error, "grid", weight.scales->name,
        text + ": a loader refuses it or applies scales to the wrong blocks", block);
  }

  void check_group(const StoredWeight& weight, const GroupClaim& group, const std::string& module) {
    if (group.bits && *group.bits != weight.layout.format.bits()) {
      add(Severity::error, "config_type", weight.codes->name,
          fmt::format("has codes of {} bits, quantization_config says {}: a loader allocates "
                      "another shape and fails, or reads noise",
                      weight.layout.format.bits(), *group.bits));
    }
    if (group.type != "float") {
      add(Severity::error, "config_type", weight.codes->name,
          fmt::format("has {} codes, quantization_config says '{}': they are read as integers",
                      format_name(weight.layout.format), group.type));
    }
    const bool is_weights_only = weight.layout.dialect == Dialect::torchao;
    if (group.has_static_inputs && !is_weights_only && !has_input_scale(module)) {
      add(Severity::error, "input_scale_missing", weight.codes->name,
          "has no scale of its inputs, but quantization_config says that they are static: loaders "
          "use 1 or what memory holds, and inputs saturate or vanish");
    }
    if (group.has_dynamic_inputs && folder_.find(module + ".input_scale") != nullptr) {
      add(Severity::warning, "input_scale_ignored", module + ".input_scale",
          "is there, but quantization_config says that scales of inputs are dynamic: it is not "
          "read");
    }
    check_powers(weight);
  }

  bool has_input_scale(const std::string& module) const {
    for (const char* name : {".input_scale", ".input_global_scale", ".activation_scale"}) {
      if (folder_.find(module + name) != nullptr) return true;
    }
    return false;
  }

  void check_powers(const StoredWeight& weight) {
    const bool is_f32 = weight.scales != nullptr && weight.scales->type == StoredType::f32;
    if (!folder_.claim.says_powers_of_two || !is_f32 || !is_readable(weight)) return;
    const ScaleGrid grid = ScaleGrid::read(weight);
    std::int64_t count = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < grid.values().size(); ++i) {
      const float value = grid.values()[i];
      const bool is_power = (numerics_bits(value) & 0x7FFFFFu) == 0;
      if (is_power || !(value > 0.0f)) continue;
      if (count++ == 0) first = i;
    }
    if (count == 0) return;
    findings_.push_back(
        {Severity::error, "scale_format", weight.scales->name, grid.indices(first), count,
         fmt::format("scale_fmt is ue8m0, but {} of {} scales are no powers of two, the first of "
                     "{}: kernels that keep the exponent alone change the weights by up to 2 times",
                     count, grid.values().size(), grid.place(first))});
  }

  static std::uint32_t numerics_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
  }

  void check_format(const StoredWeight& weight) {
    const std::string& claimed = folder_.claim.format;
    if (claimed.empty() || weight.layout.is_packed()) return;
    std::string stored = format_name(weight.layout.format);
    const bool is_same = claimed == stored || (claimed == "e4m3" && stored == "e4m3fn") ||
                         claimed == "float8_" + stored;
    if (is_same) return;
    add(Severity::error, "config_type", weight.codes->name,
        fmt::format("is {} in its file, quantization_config says fmt '{}': one of the two readings "
                    "{}",
                    stored_name(weight.codes->type), claimed,
                    claimed.find("fnuz") != stored.find("fnuz") && stored.starts_with("e4m3")
                        ? "is wrong by a factor of 2"
                        : "has other values"));
  }

  void report_orphan(const StoredTensor& scale) {
    std::string weight = scale.name;
    for (const char* suffix :
         {"_scale_inv", "_scale_2", "_global_scale", "_per_tensor_scale", "_scale"}) {
      if (!weight.ends_with(suffix)) continue;
      weight.resize(weight.size() - std::string_view(suffix).size());
      break;
    }
    const StoredTensor* const beside = folder_.find(weight);
    if (beside == nullptr) {
      add(Severity::error, "scale_orphan", scale.name,
          fmt::format("is the scale of '{}', which is not there: the weight is missing, or has "
                      "another name",
                      weight));
    } else if (!code_format(beside->type) && beside->type != StoredType::u8) {
      add(Severity::error, "scale_orphan", scale.name,
          fmt::format("stands beside '{}', which is {}: a loader that multiplies by it scales "
                      "values that need no scale",
                      weight, stored_name(beside->type)));
    } else if (beside->type == StoredType::u8) {
      add(Severity::error, "code_type", weight,
          fmt::format("is U8 beside '{}': loaders take the bytes for integers; accepted: F8_E4M3, "
                      "or '{}_packed' for codes of 4 bits",
                      scale.name, weight));
    } else {
      add(Severity::error, "scale_orphan", scale.name, "is a second scale of its weight");
    }
  }

  /// Tensors that change what a weight is, and that nothing here applies; one that changes nothing
  /// (zero points of 0, scales of 1) is none.
  void check_unread_tensors() {
    struct Kind {
      const char* suffix;
      float neutral;  ///< NaN: none
      const char* effect;
    };
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    constexpr Kind kKinds[] = {
        {"weight_zero_point", 0.0f, "zero points, which are subtracted from the codes"},
        {".qzeros", kNone, "zero points, which are subtracted from the codes"},
        {".pre_quant_scale", 1.0f, "factors of the inputs, by which the weights are divided"},
        {".weight_g_idx", kNone, "another order of the columns that share a scale"},
        {".g_idx", kNone, "another order of the columns that share a scale"}};
    for (const StoredTensor* tensor : folder_.tensors) {
      for (const Kind& kind : kKinds) {
        if (!tensor->name.ends_with(kind.suffix) || holds_only(*tensor, kind.neutral)) continue;
        add(Severity::error, "config_unread", tensor->name,
            fmt::format("holds {}: nothing here applies them, and the weight read without them is "
                        "another weight",
                        kind.effect));
        break;
      }
    }
  }

  /// Names of codes that hold none, and weights of one name.
  void check_names_of_codes() {
    for (const StoredTensor* tensor : folder_.plain) {
      if (!tensor->name.ends_with(".weight_packed")) continue;
      const std::string weight = module_of_tensor(tensor->name) + ".weight";
      const bool is_beside = folder_.find(weight) != nullptr;
      add(Severity::error, is_beside ? "weight_twice" : "code_type", tensor->name,
          fmt::format("is {}, but loaders look for codes under this name{}", shape_text(*tensor),
                      is_beside ? fmt::format(", and '{}' is there too: which of the two counts "
                                              "depends on the loader",
                                              weight)
                                : ""));
    }
    std::map<std::string, const StoredTensor*> codes;
    for (const StoredWeight& weight : folder_.weights) {
      const auto [first, is_new] = codes.emplace(weight.name, weight.codes);
      const bool is_reported = first->second->name == weight.name ||
                               weight.codes->name == weight.name;  // by check_parts
      if (is_new || is_reported) continue;
      add(Severity::error, "weight_twice", weight.codes->name,
          fmt::format("is there beside '{}': which of the two weights counts depends on the loader",
                      first->second->name));
    }
  }

  void check_method() {
    const QuantizationClaim& claim = folder_.claim;
    const bool is_of_experts = claims_packed_experts(folder_);
    if (claim.is_there && !claim.dialect && !claim.method.empty() && !is_of_experts) {
      add(Severity::note, "method_unknown", "config.json",
          fmt::format("quant_method '{}' is not known here: shapes and values are checked, names "
                      "against the method are not",
                      claim.method));
    }
    if (!claim.is_there) {
      if (folder_.weights.empty() || !folder_.config.is_object()) return;
      add(Severity::error, "config_unquantized", folder_.weights.front().codes->name,
          fmt::format("and {} more weights are codes, but config.json has no quantization_config: "
                      "loaders read the codes as values",
                      folder_.weights.size() - 1));
      return;
    }
    const bool has_codes = !folder_.weights.empty() || experts_ > 0;
    if (!has_codes && (claim.dialect || is_of_experts)) {
      add(Severity::error, "config_quantized", "config.json",
          fmt::format("quantization_config says '{}', but no tensor is quantized: loaders look for "
                      "scales that are not there, or quantize once more",
                      claim.method));
    }
    for (const StoredWeight& weight : folder_.weights) {
      const bool is_same =
          !claim.dialect || weight.layout.dialect == *claim.dialect || weight.scales == nullptr;
      if (is_same) continue;
      add(Severity::error, "config_method", weight.codes->name,
          fmt::format("has scales named as in {}, quantization_config says '{}': its loader looks "
                      "for '{}' and does not find it",
                      dialect_name(weight.layout.dialect), claim.method,
                      layout_names({.dialect = *claim.dialect,
                                    .format = weight.layout.format,
                                    .scale_type = weight.layout.scale_type},
                                   weight.name)
                          .scales));
    }
  }

  void check_ignored_names() {
    for (const std::string& pattern : folder_.claim.ignored) {
      if (pattern == "lm_head" || pattern.starts_with("re:")) continue;
      const bool is_used =
          std::any_of(folder_.tensors.begin(), folder_.tensors.end(),
                      [&](const StoredTensor* one) { return names_module(pattern, one->name); });
      if (is_used) continue;
      add(Severity::note, "config_ignored", "config.json",
          fmt::format("quantization_config leaves out '{}', which names no tensor", pattern));
    }
  }

  /// A weight in high precision where its siblings in other layers are quantized.
  void check_unquantized() {
    std::set<std::string> quantized;
    for (const StoredWeight& weight : folder_.weights) {
      quantized.insert(leaf_of_module(module_of_tensor(weight.name)));
    }
    if (!folder_.claim.is_there || !folder_.claim.dialect) return;
    for (const StoredTensor* tensor : folder_.plain) {
      const std::string module = module_of_tensor(tensor->name);
      if (!tensor->name.ends_with(".weight") || tensor->shape.size() != 2) continue;
      if (quantized.count(leaf_of_module(module)) == 0 || folder_.claim.ignores(module)) continue;
      if (folder_.claim.group_of(module) == nullptr && !folder_.claim.groups.empty()) continue;
      add(Severity::error, "config_ignored", tensor->name,
          fmt::format("is {}, but quantization_config does not list its module as unquantized: the "
                      "loader expects codes and scales, and fails or casts the values without one",
                      stored_name(tensor->type)));
    }
  }

  /// Layers that config.json counts, and tensors that one layer lacks and all others have.
  void check_layers() {
    std::map<std::string, std::set<std::int64_t>> layers_of;
    std::int64_t last = -1;
    for (const StoredTensor* tensor : folder_.tensors) {
      const std::int64_t layer = layer_number(tensor->name);
      if (layer < 0) continue;
      last = std::max(last, layer);
      std::string pattern = tensor->name;
      const std::string word = "." + std::to_string(layer) + ".";
      const std::size_t at = pattern.find(word);
      if (at != std::string::npos) pattern.replace(at, word.size(), ".{}.");
      layers_of[pattern].insert(layer);
    }
    const std::int64_t stated = config_number(folder_.config, "num_hidden_layers", -1);
    if (stated > 0 && last >= 0 && last + 1 < stated) {
      add(Severity::error, "tensor_missing", fmt::format("layers.{}", last + 1),
          fmt::format(
              "config.json says {} layers, the files hold {}: the others keep random values",
              stated, last + 1));
    }
    for (const auto& [pattern, layers] : layers_of) {
      if (last < 2 || static_cast<std::int64_t>(layers.size()) != last) continue;
      std::int64_t hole = 0;
      while (layers.count(hole) != 0) ++hole;
      if (hole == 0 || hole >= last || stated <= 0 || last >= stated) continue;
      std::string name = pattern;
      name.replace(name.find("{}"), 2, std::to_string(hole));
      if (name.find("_scale") != std::string::npos) continue;  // found beside its weight
      add(Severity::error, "tensor_missing", name,
          "is not there, though every other layer has it: it keeps its random values");
    }
  }

  void check_modelopt_file() {
    const std::filesystem::path file = folder_.path / "hf_quant_config.json";
    if (!is_file(file) || !folder_.config.is_object()) return;
    std::string stated;
    try {
      const json document = read_json_object(file);
      const json table = document.value("quantization", json::object());
      stated = table.is_object() ? table.value("quant_algo", "") : "";
    } catch (const std::exception& error) {
      add(Severity::error, "config_malformed", "hf_quant_config.json",
          fmt::format("{}: TensorRT-LLM does not load the model", error.what()));
      return;
    }
    const json& table = folder_.config.value("quantization_config", json::object());
    const std::string own = table.is_object() ? table.value("quant_algo", "") : "";
    if (own.empty() || stated.empty() || own == stated) return;
    add(Severity::error, "config_method", "hf_quant_config.json",
        fmt::format("says quant_algo '{}', config.json says '{}': engines read one or the other",
                    stated, own));
  }

  ModelFolder& folder_;
  std::vector<ModelFinding>& findings_;
  std::size_t experts_ = 0;  ///< tensors of experts in MXFP4, sound or not
};

}  // namespace

bool is_readable(const StoredWeight& weight) {
  if (weight.codes->shape.size() < 2 || weight.codes->size() == 0) return false;
  if (weight.scales == nullptr || weight.scales->size() == 0) return false;
  if (weight.layout.has_two_levels() && weight.global == nullptr) return false;
  return weight.global == nullptr || weight.global->type == StoredType::f32;
}

void check_claims(ModelFolder& folder, std::vector<ModelFinding>& findings) {
  ClaimChecks(folder, findings).run();
  check_mixtures(folder, findings);
}

}  // namespace fp8lab
