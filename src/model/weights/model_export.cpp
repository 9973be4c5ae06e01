#include "src/model/weights/model_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/model/dialects/dialect_config.hpp"
#include "src/model/dialects/folder_writer.hpp"
#include "src/model/dialects/quantized_weight.hpp"
#include "src/model/linear/operand.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t kPiece = std::int64_t{1} << 18;  // elements, few enough for a cache

/// A tensor of the files and what it holds.
struct PlannedTensor {
  enum class Content { values, codes, scales, global };

  TensorHeader header;
  std::size_t source = 0;  ///< index in the ModelTensors
  Content content = Content::values;
  QuantSpec spec{};       ///< of codes and scales
  WeightLayout layout{};  ///< of codes and scales
};

struct Plan {  // NOLINT(bugprone-exception-escape): moves of ordered_json assert
  std::vector<PlannedTensor> tensors;
  ordered_json quantization;  ///< quantization_config, or null
};

std::vector<std::string> linear_names(const ModelTensors& tensors) {
  std::vector<std::string> names;
  for (const TensorHeader& header : tensors.headers()) {
    if (layer_of_weight(header.name)) names.push_back(header.name);
  }
  return names;
}

std::string module_of(const std::string& weight) {
  return weight.substr(0, weight.size() - std::string_view(".weight").size());
}

/// The recipe's layer `name` of `model`.
const LinearRecipe& recipe_of(const Recipe& recipe, const std::string& name,
                              const ModelConfig& model) {
  return recipe.for_layer(name, static_cast<int>(model.layer_count()));
}

InputQuantization inputs_of(const LinearRecipe& linear) {
  const QuantSpec& x = linear.slot(Slot::fprop_x);
  if (!x.is_quantized()) return InputQuantization::none;
  return x.has_scale() && x.tile.is_tensor() ? InputQuantization::tensor : InputQuantization::token;
}

/// Whether a config may say that scales are powers of two: those of the activations are as well.
bool has_powers_of_two(const LinearRecipe& linear) {
  const numerics::ScaleRule& rule = linear.slot(Slot::fprop_x).scale;
  return rule.is_power_of_two() && rule.factor == 1.0f;
}

/// The one layout of all quantized layers, and the quantization_config.
void plan_quantization(const Recipe& recipe, const ModelTensors& tensors, const ModelConfig& model,
                       Plan& plan) {
  std::optional<WeightLayout> layout;
  const LinearRecipe* linear = nullptr;
  std::string first;
  std::vector<std::string> kept;
  for (const std::string& name : linear_names(tensors)) {
    const std::string layer = *layer_of_weight(name);
    const QuantSpec& spec = recipe_of(recipe, layer, model).slot(Slot::fprop_w);
    if (!spec.is_quantized()) {
      kept.push_back(module_of(name));
      continue;
    }
    const WeightLayout own = layout_of_spec(spec, layer);
    if (layout && own != *layout) {
      throw InputError({.where = fmt::format("recipe {}", recipe.name),
                        .reason = fmt::format(
                            "the weights of {} and {} have different tiles; files have one for all",
                            first, layer)});
    }
    layout = own;
    linear = &recipe_of(recipe, layer, model);
    first = layer;
  }
  if (!layout) {
    throw InputError({.noun = fmt::format("recipe {}", recipe.name),
                      .reason = "quantizes no weight",
                      .remedy = "export without it"});
  }
  // A tied head has no tensor of its own, so that it is as high in precision as the embedding.
  if (model.tie_word_embeddings) kept.push_back("lm_head");
  layout->scales_are_powers = layout->scales_are_powers && has_powers_of_two(*linear);
  plan.quantization = quantization_config(*layout, inputs_of(*linear), kept);
}

Plan make_plan(const ModelTensors& tensors, const ModelConfig& model,
               const ExportOptions& options) {
  Plan plan;
  if (options.recipe) plan_quantization(*options.recipe, tensors, model, plan);
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) {
    TensorHeader header = tensors.headers()[i];
    header.type = options.dtype;
    const std::optional<std::string> layer = layer_of_weight(header.name);
    const QuantSpec spec = options.recipe && layer
                               ? recipe_of(*options.recipe, *layer, model).slot(Slot::fprop_w)
                               : QuantSpec{};
    if (!spec.is_quantized()) {
      if (is_stored_transposed(header.name)) std::swap(header.shape[0], header.shape[1]);
      plan.tensors.push_back({std::move(header), i, PlannedTensor::Content::values, {}, {}});
      continue;
    }
    if (is_stored_transposed(header.name)) {
      throw InputError({.where = fmt::format("recipe {}", options.recipe->name),
                        .reason = fmt::format("files of this family hold {} transposed, for which "
                                              "no convention of FP8 scales exists",
                                              header.name),
                        .remedy = "export without it"});
    }
    const WeightLayout layout = layout_of_spec(spec, *layer);
    using Content = PlannedTensor::Content;
    Content content = Content::codes;
    for (TensorHeader& part : layout_headers(layout, header.name, header.shape)) {
      plan.tensors.push_back({std::move(part), i, content, spec, layout});
      content = content == Content::codes ? Content::scales : Content::global;
    }
  }
  return plan;
}

bool is_rounded(const QuantSpec& spec) {
  return !spec.is_cast() || spec.weight_source == WeightSource::bf16;
}

/// Rounds `values` to `type`. Throws Error naming `tensor` for one that becomes infinite.
void round_values(const std::string& tensor, StoredType type, std::span<const float> values,
                  std::span<std::byte> bytes) {
  encode_elements(type, values, bytes);
  std::vector<float> back(values.size());
  decode_elements(type, bytes, back);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(back[i]) == std::isinf(values[i])) continue;
    throw InputError({.noun = "tensor",
                      .key = tensor,
                      .verb = ":",
                      .found = fmt::to_string(values[i]),
                      .reason = fmt::format("is too large for {}", stored_name(type))});
  }
}

/// A weight that its file holds as (in, out).
TensorBytes transposed_values(const ModelTensors& tensors, std::size_t index,
                              const TensorHeader& header) {
  std::vector<float> values(static_cast<std::size_t>(header.size()));
  tensors.read(index, 0, values);
  TensorBytes bytes(header.bytes());
  round_values(header.name, header.type, transposed(values, header.shape[1], header.shape[0]),
               bytes);
  return bytes;
}

TensorBytes produce(Backend& backend, const ModelTensors& tensors, const PlannedTensor& tensor,
                    std::uint64_t seed) {
  using Content = PlannedTensor::Content;
  if (tensor.content == Content::values) {
    return is_stored_transposed(tensor.header.name)
               ? transposed_values(tensors, tensor.source, tensor.header)
               : rounded_values(tensors, tensor.source, tensor.header);
  }
  const std::size_t mark = backend.memory_mark();
  const QuantizedOperand operand =
      quantize_weight(backend, tensors, tensor.source, tensor.spec, seed);
  const float amax =
      tensor.layout.has_two_levels() ? weight_amax(tensors, tensor.source, tensor.spec) : 0.0f;
  QuantizedBytes bytes = quantized_bytes(backend, operand, tensor.layout, amax);
  backend.release_to(mark);
  if (tensor.content == Content::codes) return std::move(bytes.codes);
  return std::move(tensor.content == Content::scales ? bytes.scales : bytes.global);
}

/// True when the rows of `part` have other tiles by themselves than within `rows` rows.
bool has_own_tiles(const WeightPart& part, std::int64_t rows, const QuantSpec& spec) {
  const bool is_measured =
      spec.scale_source == ScaleSource::current || spec.scale_source == ScaleSource::delayed;
  const std::int64_t own = part.shape[0], first = part.first / part.shape[1], end = first + own;
  if (!is_measured || own == rows) return false;
  if (spec.scale.format == numerics::ScaleFormat::nv_two_level) return true;  // the tensor's scale
  const std::int64_t tile = spec.tile.rows;
  return tile == 0 || first % tile != 0 || (end != rows && end % tile != 0);
}

/// The config.json without quantization. Throws Error for a model of no family of transformers.
ordered_json family_config(const ModelConfig& model, const ExportOptions& options) {
  const char* const dtype = options.dtype == StoredType::f32   ? "float32"
                            : options.dtype == StoredType::f16 ? "float16"
                                                               : "bfloat16";
  return hugging_face_config(model, dtype);
}

ordered_json make_config(ordered_json config, const ExportOptions& options, const Plan& plan) {
  if (!plan.quantization.is_null()) config["quantization_config"] = plan.quantization;
  if (!options.tokenizer.empty() && is_hugging_face_folder(options.tokenizer)) {
    const nlohmann::json source = read_json_object(options.tokenizer / "config.json");
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (source.contains(key)) config[key] = source[key];
    }
  }
  const bool has_tokenizer =
      !options.tokenizer.empty() && is_file(options.tokenizer / "tokenizer.json");
  if (has_tokenizer || options.tokenizer_name.empty()) return config;
  config[kTokenizerField] = options.tokenizer_name;
  return config;
}

void check_tokenizer(const ExportOptions& options) {
  if (options.tokenizer.empty() || options.tokenizer_name.empty()) return;
  const std::string copied = folder_tokenizer(options.tokenizer);
  if (copied.empty() || copied == options.tokenizer_name) return;
  throw InputError({.where = options.tokenizer.string(),
                    .reason = fmt::format("holds the tokenizer {}, the weights are of {}", copied,
                                          options.tokenizer_name),
                    .accepted = "their own, or none"});
}

}  // namespace

TensorBytes rounded_values(const ModelTensors& tensors, std::size_t index,
                           const TensorHeader& header) {
  const std::size_t width = size_of(header.type);
  TensorBytes bytes(header.bytes());
  std::vector<float> values;
  for (std::int64_t first = 0; first < header.size(); first += kPiece) {
    values.resize(static_cast<std::size_t>(std::min(kPiece, header.size() - first)));
    tensors.read(index, first, values);
    round_values(
        header.name, header.type, values,
        std::span(bytes).subspan(static_cast<std::size_t>(first) * width, values.size() * width));
  }
  return bytes;
}

float weight_amax(const ModelTensors& tensors, std::size_t index, const QuantSpec& spec) {
  const std::int64_t size = tensors.headers()[index].size();
  float amax = 0.0f;
  std::vector<float> values;
  for (std::int64_t first = 0; first < size; first += kPiece) {
    values.resize(static_cast<std::size_t>(std::min(kPiece, size - first)));
    tensors.read(index, first, values);
    for (const float value : values) amax = std::max(amax, std::abs(value));
  }
  return is_rounded(spec) ? numerics::from_bf16(numerics::to_bf16(amax)) : amax;
}

std::vector<std::string> export_notes(const ModelConfig& model, const ExportOptions& options) {
  if (!options.recipe) return {};
  const Declaration declaration = declaration_of(model);
  std::size_t quantized = 0, different = 0;
  std::string first, tile;
  for (const LinearDeclaration& linear : declaration.linears()) {
    const QuantSpec& spec = recipe_of(*options.recipe, linear.name, model).slot(Slot::fprop_w);
    if (linear.is_tied || !spec.is_quantized()) continue;
    const ParameterDeclaration& weight =
        declaration.parameters()[static_cast<std::size_t>(linear.weight)];
    for (const WeightPart& part : weight_parts(weight, model)) {
      ++quantized;
      if (!has_own_tiles(part, weight.rows, spec)) continue;
      if (different++ > 0) continue;
      first = part.name;
      tile = tile_name(spec.tile);
    }
  }
  if (different == 0) return {};
  return {fmt::format(
      "{} of {} quantized weights, {} the first, have other tiles ({}) in these files than in "
      "training, which quantizes q, k and v, and gate and up, as one matrix each: their values may "
      "differ",
      different, quantized, first, tile)};
}

QuantizedOperand quantize_weight(Backend& backend, const ModelTensors& tensors, std::size_t index,
                                 const QuantSpec& spec, std::uint64_t seed) {
  const TensorView values = upload_weight(backend, tensors, index, spec);
  return quantize_values(backend, values, false, spec, seed + index, tensors.headers()[index].name);
}

TensorView upload_weight(Backend& backend, const ModelTensors& tensors, std::size_t index,
                         const QuantSpec& spec) {
  const TensorHeader& header = tensors.headers()[index];
  const bool rounded = is_rounded(spec);
  const TensorView weight =
      backend.allocate(rounded ? DType::bf16 : DType::f32, header.shape[0], header.shape[1]);
  const std::size_t mark = backend.memory_mark();
  const TensorView wide =
      rounded ? backend.allocate(DType::f32, 1, std::min(kPiece, header.size())) : TensorView{};
  std::vector<float> values;
  for (std::int64_t first = 0; first < header.size(); first += kPiece) {
    const std::int64_t count = std::min(kPiece, header.size() - first);
    values.resize(static_cast<std::size_t>(count));
    tensors.read(index, first, values);
    const TensorView place = weight.flat().columns(first, count);
    backend.upload(rounded ? wide.columns(0, count) : place, values.data());
    if (rounded) backend.run(ops::Copy{wide.columns(0, count), place});
  }
  backend.release_to(mark);
  return weight;
}

void export_model(Backend& backend, const ModelTensors& weights, const ModelConfig& model,
                  const ExportOptions& options, const fs::path& folder, const PartReport& report) {
  const std::unique_ptr<ModelTensors> in_files = as_in_files(weights, model);
  const ModelTensors& tensors = *in_files;
  check_new_folder(folder);
  check_tokenizer(options);
  const ordered_json family = family_config(model, options);  // before what names its weights
  const Plan plan = make_plan(tensors, model, options);
  ModelFolderContent content;
  content.shard_bytes = options.shard_bytes;
  for (const PlannedTensor& tensor : plan.tensors) content.headers.push_back(tensor.header);
  content.produce = [&](std::size_t i) {
    return produce(backend, tensors, plan.tensors[i], options.seed);
  };
  content.work = [&](std::size_t i) { return tensors.headers()[plan.tensors[i].source].bytes(); };
  content.files["config.json"] = make_config(family, options, plan).dump(2) + "\n";
  content.copied_from = options.tokenizer;
  write_model_folder(folder, content, report);
}

}  // namespace fp8lab
