#include "src/model_files/conversion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"
#include "src/model/dialects/dialect_config.hpp"
#include "src/model/dialects/folder_writer.hpp"
#include "src/model/dialects/quantized_weight.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/weight_names.hpp"
#include "src/model_files/loss_meter.hpp"
#include "src/model_files/model_doctor.hpp"
#include "src/model_files/packed_experts.hpp"
#include "src/model_files/stacked_experts.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;

/// Modules of two extents that no dialect's loader takes for quantized linear layers.
constexpr std::array<std::string_view, 14> kUnquantized = {
    "lm_head", "embed_tokens",   "embed_in",        "embed_out",           "wte",
    "wpe",     "tok_embeddings", "word_embeddings", "position_embeddings", "token_type_embeddings",
    "shared",  "classifier",     "score",           "patch_embedding"};

/// Parts of names of what chooses experts, whatever stands behind: "mlp.gate.wg".
constexpr std::array<std::string_view, 11> kRouters = {"gate",
                                                       "router",
                                                       "switch",
                                                       "gating",
                                                       "gate_network",
                                                       "gating_network",
                                                       "router_gate",
                                                       "routing_layer",
                                                       "moe_gate",
                                                       "expert_gate",
                                                       "shared_expert_gate"};

bool is_embedding(const std::string& module) {
  const std::string last = leaf_of_module(module);
  return last.find("embed") != std::string::npos || last == "wte" || last == "wpe" ||
         last == "shared";
}

/// The weights of a folder as FP32 values.
class FolderTensors : public ModelTensors {
 public:
  FolderTensors(const ModelFolder& folder) : ModelTensors(ValuesOf::files), folder_(folder) {
    for (const StoredWeight& weight : folder.weights) {
      headers_.push_back({weight.name, code_type(weight.layout), weight.shape()});
    }
    std::vector<ModelFinding> wrong;
    std::map<const StoredTensor*, PackedExperts> of_blocks;
    std::set<const StoredTensor*> scales;  // read with their codes
    for (PackedExperts& one : find_packed_experts(folder, wrong)) {
      scales.insert(one.scales);
      of_blocks[one.blocks] = std::move(one);
    }
    if (!wrong.empty()) {
      throw InputError({.where = folder.path.string(),
                        .noun = "tensor",
                        .key = wrong.front().tensor,
                        .verb = ":",
                        .reason = wrong.front().text});
    }
    for (const StoredTensor* tensor : folder.plain) {
      if (scales.count(tensor) != 0) continue;
      const auto found = of_blocks.find(tensor);
      if (found != of_blocks.end()) {
        const PackedExperts& experts = found->second;
        headers_.push_back({experts.name, StoredType::u8, experts.shape()});
        experts_[headers_.size() - 1] = experts;
      } else {
        headers_.push_back(*tensor);
      }
      plain_.push_back(tensor);
    }
  }

  const StoredWeight* weight(std::size_t index) const {
    return index < folder_.weights.size() ? &folder_.weights[index] : nullptr;
  }
  /// Returns the packed experts of an index, or null.
  const PackedExperts* experts(std::size_t index) const {
    const auto found = experts_.find(index);
    return found == experts_.end() ? nullptr : &found->second;
  }
  /// Precondition: weight(index) and experts(index) are null.
  const StoredTensor& plain(std::size_t index) const {
    return *plain_[index - folder_.weights.size()];
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    if (const PackedExperts* const packed = experts(index)) {
      hold(index);
      if (expert_bytes_.blocks.empty()) expert_bytes_ = read_bytes(*packed);
      read_experts(*packed, expert_bytes_, first, destination);
    } else if (const StoredWeight* const one = weight(index)) {
      hold(index);
      if (!grid_) grid_.emplace(ScaleGrid::read(*one));
      read_weight(*one, *grid_, first, destination);
    } else {
      read_elements(plain(index), first, destination);
    }
    require_finite(destination, folder_.path.string(), headers_[index].name, headers_[index].shape,
                   first);
  }

 private:
  /// Forgets what is held of another tensor.
  void hold(std::size_t index) const {
    if (held_ == index) return;
    held_ = index;
    grid_.reset();
    expert_bytes_ = {};
  }

  const ModelFolder& folder_;
  std::vector<const StoredTensor*> plain_;  ///< of each header after those of weights
  std::map<std::size_t, PackedExperts> experts_;
  mutable std::optional<std::size_t> held_;  ///< whose grid or bytes these are
  mutable std::optional<ScaleGrid> grid_;
  mutable PackedExpertBytes expert_bytes_;
};

/// The bytes of a weight whose codes the target layout can keep; nothing if it cannot.
std::optional<QuantizedBytes> kept_codes(const StoredWeight& weight, const WeightLayout& target) {
  const WeightLayout& own = weight.layout;
  const bool to_fnuz = own.format == numerics::kE4M3 && target.format == numerics::kE4M3Fnuz;
  const bool to_fn = own.format == numerics::kE4M3Fnuz && target.format == numerics::kE4M3;
  const bool is_same = own.format == target.format || to_fnuz || to_fn;
  if (!is_same || own.tile != target.tile || own.has_two_levels() != target.has_two_levels()) {
    return std::nullopt;
  }
  QuantizedBytes bytes{read_bytes(*weight.codes), {}, {}};
  for (std::byte& code : bytes.codes) {
    if (to_fn && (code & std::byte{127}) == std::byte{127}) return std::nullopt;  // 240, NaN in FN
    if (to_fnuz && code == std::byte{128}) code = std::byte{0};                   // -0, NaN in FNUZ
  }
  if (target.has_two_levels()) {
    if (weight.is_swizzled) return std::nullopt;
    bytes.scales = read_bytes(*weight.scales);
    bytes.global = read_bytes(*weight.global);
    if (bytes.global.size() != sizeof(float)) return std::nullopt;  // one for each expert
    if (own.global_divides() == target.global_divides()) return bytes;
    std::vector<float> values(bytes.global.size() / sizeof(float));
    decode_elements(StoredType::f32, bytes.global, values);
    for (float& value : values) value = 1.0f / value;
    encode_elements(StoredType::f32, values, bytes.global);
    return bytes;
  }
  std::vector<float> scales = ScaleGrid::read(weight).values();
  const bool needs_powers = target.has_e8m0_scales() || target.scales_are_powers;
  for (float& scale : scales) {
    scale *= to_fnuz ? 2.0f : to_fn ? 0.5f : 1.0f;
    const bool is_power = (numerics::float_bits(scale) & 0x7FFFFFu) == 0;
    if (needs_powers && !is_power) return std::nullopt;
  }
  bytes.scales.resize(scales.size() * (target.has_e8m0_scales() ? 1 : sizeof(float)));
  if (!target.has_e8m0_scales()) {
    encode_elements(StoredType::f32, scales, bytes.scales);
    return bytes;
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    bytes.scales[i] =
        static_cast<std::byte>(numerics::encode(numerics::kE8M0, numerics::float_bits(scales[i])));
  }
  return bytes;
}

class Converter {
 public:
  Converter(Backend& backend, const ModelFolder& source, const ConversionOptions& options)
      : backend_(backend), source_(source), options_(options), tensors_(source) {
    if (options.target.layout) {
      spec_ = options.spec ? *options.spec : spec_of_layout(*options.target.layout);
      spec_.weight_source = WeightSource::master;  // the values of the files, whatever their type
    }
  }

  Conversion run(const std::filesystem::path& out, const PartReport& report) {
    check_source();
    check_ignored();
    for (std::size_t i = 0; i < tensors_.headers().size(); ++i) plan(i);
    plan_inputs();
    refuse_two_of_a_name();
    if (options_.target.layout && shapes_.empty()) {
      throw Error(
          fmt::format("{}: no weight to quantize: none has two extents and the name of a "
                      "linear layer, and none holds experts",
                      source_.path.string()));
    }
    ModelFolderContent content;
    content.shard_bytes = options_.shard_bytes;
    for (const Planned& one : planned_) content.headers.push_back(one.header);
    content.produce = [this](std::size_t i) { return produce(planned_[i]); };
    content.work = [this](std::size_t i) {
      const Planned& one = planned_[i];
      const bool is_copy = one.content == Content::copy || one.content == Content::input_scale;
      return is_copy ? one.header.bytes() : tensors_.headers()[one.source].bytes();
    };
    content.copied_from = is_folder(source_.path) ? source_.path : std::filesystem::path();
    add_files(content);
    write_model_folder(out, content, report);
    for (auto& [index, tensor] : losses_) result_.tensors.push_back(std::move(tensor));
    return std::move(result_);
  }

 private:
  enum class Content { copy, values, codes, scales, global, input_scale };

  /// A tensor of the result.
  struct Planned {
    TensorHeader header;
    std::size_t source = 0;  ///< index in tensors_
    Content content = Content::copy;
    const StoredTensor* copied = nullptr;
  };

  /// What the doctor calls an error in a weight is not converted.
  void check_source() const {
    const QuantizationClaim& claim = source_.claim;
    if (claim.is_there && !claim.dialect && !claims_packed_experts(source_)) {
      throw InputError({.where = source_.path.string(),
                        .noun = "quant_method",
                        .key = claim.method,
                        .reason = "is not read here, and its weights without it are other weights",
                        .accepted = "fp8, compressed-tensors, modelopt, torchao, mxfp4"});
    }
    for (const StoredWeight& weight : source_.weights) {
      if (is_readable(weight)) continue;
      throw InputError({.where = source_.path.string(),
                        .noun = "tensor",
                        .key = weight.codes->name,
                        .verb = ":",
                        .reason = "its scales are missing or do not fit",
                        .remedy = fmt::format("`fp8lab doctor {}` says why",
                                              shell_path(source_.path.string()))});
    }
    if (source_.orphans.empty()) return;
    throw InputError(
        {.where = source_.path.string(),
         .noun = "tensor",
         .key = source_.orphans.front()->name,
         .reason = "is the scale of no quantized weight",
         .remedy = fmt::format("`fp8lab doctor {}` says more", shell_path(source_.path.string()))});
  }

  /// A pattern that names nothing is a typing mistake, which would quantize what it meant to keep.
  void check_ignored() const {
    for (const std::string& pattern : options_.ignored) {
      const bool names_one = std::any_of(
          tensors_.headers().begin(), tensors_.headers().end(), [&](const TensorHeader& header) {
            return names_module(pattern, module_of_tensor(header.name));
          });
      if (names_one) continue;
      std::vector<std::string> leaves;
      for (const TensorHeader& header : tensors_.headers()) {
        leaves.push_back(leaf_of_module(module_of_tensor(header.name)));
      }
      throw InputError({.where = source_.path.string(),
                        .key = "--ignore",
                        .found = pattern,
                        .nearest = did_you_mean(pattern, leaves),
                        .reason = "names no module of the model"});
    }
  }

  bool is_ignored(const std::string& module) const {
    return std::any_of(options_.ignored.begin(), options_.ignored.end(),
                       [&](const std::string& one) { return names_module(one, module); });
  }

  bool is_kept(const TensorHeader& header, bool was_quantized) const {
    const std::string module = module_of_tensor(header.name);
    if (is_ignored(module) || is_router(module) || header.shape.size() != 2 || header.size() == 0)
      return true;
    if (was_quantized) return false;
    if (!header.name.ends_with(".weight") || !is_weight_type(header.type)) return true;
    const std::string last = leaf_of_module(module);
    const bool chooses = has_part(module, [](std::string_view part) {
      return std::find(kRouters.begin(), kRouters.end(), part) != kRouters.end();
    });
    return chooses || is_embedding(module) ||
           std::find(kUnquantized.begin(), kUnquantized.end(), last) != kUnquantized.end();
  }

  void plan(std::size_t index) {
    const TensorHeader& header = tensors_.headers()[index];
    const StoredWeight* const weight = tensors_.weight(index);
    if (options_.target.layout) {
      refuse_packed_experts(index);
      if (is_quantized_stack(index)) {
        refuse_stack_of(header);
        return plan_quantized(index, header);
      }
    }
    if (tensors_.experts(index) != nullptr) {
      planned_.push_back(
          {{header.name, options_.target.dtype, header.shape}, index, Content::values, nullptr});
      return;
    }
    const bool keeps = !options_.target.layout || is_kept(header, weight != nullptr);
    if (!keeps) return plan_quantized(index, header);
    if (weight == nullptr && (options_.target.layout || !is_weight_type(header.type) ||
                              header.type == options_.target.dtype)) {
      planned_.push_back({header, index, Content::copy, &tensors_.plain(index)});
      ++result_.copied;
    } else {
      planned_.push_back(
          {{header.name, options_.target.dtype, header.shape}, index, Content::values, nullptr});
    }
    plain_.push_back(header.name);
    const std::string module = module_of_tensor(header.name);
    const bool is_linear = header.name.ends_with(".weight") && header.shape.size() == 2;
    const bool is_of_linear = is_linear || is_stacked_experts(header);
    if (is_of_linear && !is_embedding(module)) kept_.push_back(module);
  }

  void refuse_packed_experts(std::size_t index) const {
    if (tensors_.experts(index) == nullptr) return;
    throw InputError({.where = source_.path.string(),
                      .noun = "tensor",
                      .key = tensors_.experts(index)->blocks->name,
                      .reason = "holds the experts of a layer in MXFP4, for which no dialect "
                                "here has a place",
                      .accepted = "--to bf16, f16 or f32"});
  }

  bool is_quantized_stack(std::size_t index) const {
    const TensorHeader& header = tensors_.headers()[index];
    const bool is_weight = tensors_.weight(index) != nullptr || is_weight_type(header.type);
    return is_weight && is_stacked_experts(header) && header.size() > 0 &&
           !is_ignored(module_of_tensor(header.name));
  }

  /// Experts that the target has no scales for would stay as they are: most of the model.
  void refuse_stack_of(const TensorHeader& header) const {
    const std::string why = header.shape.size() != 3
                                ? "as rows of one matrix, for which no dialect has scales"
                                : refuse_stack(*options_.target.layout, order_of(header));
    if (why.empty()) return;
    throw InputError({.where = source_.path.string(),
                      .noun = "tensor",
                      .key = header.name,
                      .reason = fmt::format("{} holds the experts of a layer in one tensor, {}",
                                            shape_text(header), why),
                      .accepted = fmt::format(
                          "--to fp8, which has blocks for experts of three extents; --ignore "
                          "'{}', which keeps them as values; or a folder with a tensor for "
                          "each expert",
                          module_of_tensor(header.name))});
  }

  std::optional<ExpertOrder> order_of(const TensorHeader& header) const {
    return order_of_experts(header, tensors_.headers(), source_.config);
  }

  /// The layout that a weight gets.
  WeightLayout layout_of(const TensorHeader& header) const {
    const WeightLayout& layout = *options_.target.layout;
    return header.shape.size() == 3 ? layout_of_stack(layout, order_of(header)) : layout;
  }

  void plan_quantized(std::size_t index, const TensorHeader& header) {
    if (is_stored_transposed(header.name)) {
      throw InputError({.where = source_.path.string(),
                        .noun = "tensor",
                        .key = header.name,
                        .verb = ":",
                        .reason = "files of this family hold it as (in, out), for which no dialect "
                                  "has scales",
                        .accepted = "--to bf16, f16 or f32"});
    }
    const WeightLayout layout = layout_of(header);
    Content content = Content::codes;
    std::vector<TensorHeader> parts;
    try {
      parts = (header.shape.size() == 3 ? stack_headers : layout_headers)(layout, header.name,
                                                                          header.shape);
    } catch (const Error& error) {
      ErrorFields fields = in_place(source_.path.string(), error);
      fields.accepted =
          fmt::format("--ignore '{}', which keeps it as it is", module_of_tensor(header.name));
      throw InputError(fields);
    }
    for (TensorHeader& part : parts) {
      planned_.push_back({std::move(part), index, content, nullptr});
      content = content == Content::codes ? Content::scales : Content::global;
    }
    shapes_[header.name] = {header.shape, layout.tile};
    if (header.shape.size() == 3 && source_.find(header.name + "_bias") != nullptr) {
      stacks_with_biases_.push_back(header.name);
    }
  }

  /// Scales of inputs and caches are those of the source, where the dialect stays the same.
  void plan_inputs() {
    std::set<const StoredTensor*> used(source_.plain.begin(), source_.plain.end());
    for (const StoredWeight& weight : source_.weights) {
      used.insert({weight.codes, weight.scales, weight.global});
    }
    const bool is_same =
        options_.target.layout && source_.claim.dialect == options_.target.layout->dialect;
    std::size_t dropped = 0;
    std::set<std::string> written;
    for (const StoredTensor* tensor : source_.tensors) {
      if (used.count(tensor) != 0) continue;
      const bool is_of_cache =
          tensor->name.ends_with(".k_scale") || tensor->name.ends_with(".v_scale");
      if (!is_same && !is_of_cache) {
        ++dropped;
        continue;
      }
      planned_.push_back({*tensor, 0, Content::copy, tensor});
      plain_.push_back(tensor->name);
      written.insert(tensor->name);
      ++result_.copied;
    }
    if (dropped > 0) {
      result_.notes.push_back(fmt::format(
          "{} scales of inputs are left out: the target has none, or calls them otherwise",
          dropped));
    }
    add_input_scales(written);
  }

  /// The name in the source of what a tensor of the result is made from.
  const std::string& origin_of(const Planned& one) const {
    if (one.copied != nullptr) return one.copied->name;
    if (one.content == Content::input_scale) return one.header.name;
    if (const PackedExperts* const packed = tensors_.experts(one.source)) {
      return packed->blocks->name;
    }
    const StoredWeight* const weight = tensors_.weight(one.source);
    return weight != nullptr ? weight->codes->name : tensors_.headers()[one.source].name;
  }

  /// Codes and scales get names that other tensors of the source may have.
  void refuse_two_of_a_name() const {
    std::map<std::string_view, const Planned*> known;
    for (const Planned& one : planned_) {
      const auto [first, is_new] = known.emplace(one.header.name, &one);
      if (is_new) continue;
      throw InputError({.where = source_.path.string(),
                        .noun = "tensor",
                        .key = one.header.name,
                        .reason = fmt::format("would be written twice, from '{}' and from '{}'",
                                              origin_of(*first->second), origin_of(one)),
                        .accepted = "a folder with one of the two"});
    }
  }

  /// ModelOpt's FP8 with one scale a tensor has static inputs.
  void add_input_scales(const std::set<std::string>& written) {
    const bool needs = options_.target.layout &&
                       options_.target.layout->dialect == Dialect::modelopt &&
                       options_.target.layout->tile.is_tensor();
    if (!needs && options_.input_scale) {
      throw Error("convert: --input-scale is for --to modelopt:tensor, whose inputs are static");
    }
    for (const auto& [name, shape] : shapes_) {
      const std::string scale = module_of_tensor(name) + ".input_scale";
      if (!needs || written.count(scale) != 0) continue;
      if (!options_.input_scale) {
        throw Error(fmt::format(
            "{}: '{}' has no scale of its inputs, which modelopt:tensor needs; accepted: "
            "--input-scale NUMBER, their calibrated amax / 448, or another scheme",
            source_.path.string(), module_of_tensor(name)));
      }
      planned_.push_back({{scale, StoredType::f32, {}}, 0, Content::input_scale, nullptr});
      plain_.push_back(scale);
    }
  }

  void add_files(ModelFolderContent& content) {
    json config = source_.config.is_object() ? source_.config : json::object();
    config.erase("quantization_config");
    config.erase("compression_config");
    const std::string dtype = options_.target.dtype == StoredType::f32   ? "float32"
                              : options_.target.dtype == StoredType::f16 ? "float16"
                                                                         : "bfloat16";
    if (!options_.target.layout) config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
    if (options_.target.layout) {
      const WeightLayout& layout = *options_.target.layout;
      const bool has_head = std::find(kept_.begin(), kept_.end(), "lm_head") != kept_.end();
      if (!has_head && shapes_.count("lm_head.weight") == 0) kept_.push_back("lm_head");
      const InputQuantization inputs =
          layout.tile.is_tensor() ? InputQuantization::tensor : InputQuantization::token;
      config["quantization_config"] = quantization_config(layout, inputs, kept_, shapes_);
      if (layout.dialect == Dialect::modelopt) {
        content.files["hf_quant_config.json"] = modelopt_file(layout, kept_).dump(2) + "\n";
      }
      if (layout.dialect == Dialect::torchao) {
        content.metadata = torchao_metadata(layout, shapes_, plain_, dtype);
      }
    }
    content.files["config.json"] = config.dump(2) + "\n";
    if (!stacks_with_biases_.empty()) {
      result_.notes.push_back(
          fmt::format("{} stacks of experts, '{}' the first, have biases, which stay values: the "
                      "FP8 experts of "
                      "transformers have none",
                      stacks_with_biases_.size(), stacks_with_biases_.front()));
    }
    note_files_left();
  }

  void note_files_left() {
    if (!is_folder(source_.path)) return;
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(source_.path)) {
      const std::string name = entry.path().filename().string();
      const bool is_written = name.ends_with(".safetensors") || name.ends_with(".index.json") ||
                              name == "config.json" || name == "hf_quant_config.json" ||
                              is_companion_file(name) || name[0] == '.';
      if (!is_written) left.push_back(name);
    }
    if (left.empty()) return;
    std::sort(left.begin(), left.end());
    result_.notes.push_back(fmt::format("not copied: {}", fmt::join(left, ", ")));
  }

  TensorBytes produce(const Planned& one) {
    switch (one.content) {
      case Content::copy: return read_bytes(*one.copied);
      case Content::values: return values(one);
      case Content::input_scale: {
        TensorBytes bytes(sizeof(float));
        encode_elements(StoredType::f32, std::span(&*options_.input_scale, 1), bytes);
        return bytes;
      }
      default: break;
    }
    if (!held_ || *held_ != one.source) {
      held_.reset();
      bytes_ = quantized(one.source);
      held_ = one.source;
    }
    // Codes are the largest; nothing asks for them again.
    if (one.content == Content::codes) return std::move(bytes_.codes);
    return one.content == Content::scales ? bytes_.scales : bytes_.global;
  }

  TensorBytes values(const Planned& one) {
    TensorBytes bytes = rounded_values(tensors_, one.source, one.header);
    const std::size_t width = size_of(one.header.type);
    measure(one.source, std::string(stored_name(one.header.type)), false,
            [&](std::int64_t first, std::span<float> result) {
              const std::size_t at = static_cast<std::size_t>(first) * width;
              decode_elements(one.header.type, std::span(bytes).subspan(at, result.size() * width),
                              result);
            });
    return bytes;
  }

  QuantizedBytes quantized(std::size_t index) {
    const WeightLayout layout = layout_of(tensors_.headers()[index]);
    const StoredWeight* const weight = tensors_.weight(index);
    std::optional<QuantizedBytes> bytes;
    if (weight != nullptr && !options_.spec) bytes = kept_codes(*weight, layout);
    const bool is_copied = bytes.has_value();
    if (!bytes) bytes = quantize_anew(index, layout);
    if (losses_.count(index) != 0) return std::move(*bytes);
    const std::vector<std::int64_t>& shape = tensors_.headers()[index].shape;
    const ScaleGrid grid = ScaleGrid::from_bytes(layout, shape, bytes->scales, bytes->global);
    measure(index, layout_text(layout), is_copied,
            [&](std::int64_t first, std::span<float> result) {
              decode_codes(layout, bytes->codes, first, result);
              grid.multiply(first, result);
            });
    return std::move(*bytes);
  }

  QuantizedBytes quantize_anew(std::size_t index, const WeightLayout& layout) {
    if (tensors_.headers()[index].shape.size() == 3) {
      return quantize_stack(backend_, tensors_, index, spec_, layout, options_.seed);
    }
    const std::size_t mark = backend_.memory_mark();
    const QuantizedOperand operand =
        quantize_weight(backend_, tensors_, index, spec_, options_.seed);
    const float amax = layout.has_two_levels() ? weight_amax(tensors_, index, spec_) : 0.0f;
    QuantizedBytes bytes = quantized_bytes(backend_, operand, layout, amax);
    backend_.release_to(mark);
    return bytes;
  }

  /// Compares the source's values with those that `decode` reads from the written bytes.
  template <class Decode>
  void measure(std::size_t index, std::string to, bool is_copied, const Decode& decode) {
    const TensorHeader& header = tensors_.headers()[index];
    LossMeter loss;
    std::vector<float> source, result;
    for (std::int64_t first = 0; first < header.size(); first += kElementsAtOnce) {
      source.resize(static_cast<std::size_t>(std::min(kElementsAtOnce, header.size() - first)));
      result.resize(source.size());
      tensors_.read(index, first, source);
      decode(first, result);
      loss.add(source, result);
    }
    const StoredWeight* const weight = tensors_.weight(index);
    losses_[index] = {.name = header.name,
                      .shape = header.shape,
                      .from = weight != nullptr ? layout_text(weight->layout)
                              : tensors_.experts(index) != nullptr
                                  ? "mxfp4 experts"
                                  : std::string(stored_name(header.type)),
                      .to = std::move(to),
                      .is_copied = is_copied,
                      .sqnr_db = loss.sqnr_db(),
                      .max_error = loss.largest_error,
                      .largest = loss.largest_value};
  }

  Backend& backend_;
  const ModelFolder& source_;
  const ConversionOptions& options_;
  FolderTensors tensors_;
  QuantSpec spec_{};
  std::vector<Planned> planned_;
  QuantizedShapes shapes_;  ///< of the quantized weights
  std::vector<std::string> plain_, kept_;
  std::vector<std::string> stacks_with_biases_;
  std::map<std::size_t, ConvertedTensor> losses_;  ///< by index of the source
  std::optional<std::size_t> held_;                ///< whose scales bytes_ are
  QuantizedBytes bytes_;
  Conversion result_;
};

}  // namespace

Conversion convert_model(Backend& backend, const ModelFolder& source,
                         const ConversionOptions& options, const std::filesystem::path& out,
                         const PartReport& report) {
  return Converter(backend, source, options).run(out, report);
}

}  // namespace fp8lab
