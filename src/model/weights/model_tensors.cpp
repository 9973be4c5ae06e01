#include "src/model/weights/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/architecture/parts.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/io/tensors/tensor_store.hpp"
#include "src/model/dialects/quantization_claim.hpp"
#include "src/model/dialects/stored_weight.hpp"
#include "src/model/weights/fp8_storage.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 18;  // elements, few enough for a cache

/// Calls visit(first, count) for pieces of [0, size).
void for_each_piece(std::int64_t size,
                    const std::function<void(std::int64_t, std::size_t)>& visit) {
  for (std::int64_t first = 0; first < size; first += static_cast<std::int64_t>(kPiece)) {
    visit(first, std::min(kPiece, static_cast<std::size_t>(size - first)));
  }
}

/// Indices of element `element` of a row-major tensor, "3, 17".
std::string place_of(std::int64_t element, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    place[i] = element % shape[i];
    element /= shape[i];
  }
  return fmt::format("{}", fmt::join(place, ", "));
}

/// Bit for bit as FP32, and of one shape.
bool have_equal_values(const ModelTensors& tensors, std::size_t left, std::size_t right) {
  bool equal = tensors.headers()[left].shape == tensors.headers()[right].shape;
  std::vector<float> a, b;
  for_each_piece(equal ? tensors.headers()[left].size() : 0,
                 [&](std::int64_t first, std::size_t count) {
                   a.resize(count);
                   b.resize(count);
                   tensors.read(left, first, a);
                   tensors.read(right, first, b);
                   equal = equal && std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
                 });
  return equal;
}

/// Rotary frequencies, causal masks, and statistics of activations and caches beside FP8 weights.
bool says_nothing_about_weights(const std::string& name) {
  for (const char* suffix : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                             ".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

bool is_fp8(StoredType type) { return type == StoredType::f8_e4m3 || type == StoredType::f8_e5m2; }

/// What the config.json beside the tensors says of their quantization.
struct Quantization {
  bool described = false;
  bool says_e4m3 = false;  ///< in so many words
  std::optional<StoredScaleTile> blocks;
  QuantizationClaim claim;
};

Quantization read_quantization(const std::filesystem::path& path) {
  const std::filesystem::path folder = is_folder(path) ? path : path.parent_path();
  const std::filesystem::path file = folder / "config.json";
  if (!is_file(file)) return {};
  const nlohmann::json config = read_json_object(file);
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return {};
  const std::optional<StoredScaleTile> blocks = read_quantization_config(*found, file.string());
  return {true, found->contains("fmt"), blocks, read_claim(config)};
}

/// The module of a weight: its name without ".weight".
std::string module_of(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

class FileTensors : public ModelTensors {
 public:
  explicit FileTensors(const std::filesystem::path& path)
      : ModelTensors(ValuesOf::files), store_(path), quantization_(read_quantization(path)) {
    std::unordered_set<std::string> scales;
    for (const StoredTensor* tensor : store_.tensors()) {
      if (const StoredTensor* scale = find_scale(*tensor)) scales.insert(scale->name);
    }
    for (const StoredTensor* tensor : store_.tensors()) {
      if (says_nothing_about_weights(tensor->name) || scales.count(tensor->name) != 0) continue;
      if (is_zero_point(tensor->name)) {
        require_no_zero_point(*tensor);
        continue;
      }
      headers_.push_back(*tensor);
      tensors_.push_back({tensor, {}, {}});
      add_scales(find_scale(*tensor), tensors_.back());
    }
    const bool is_quantized = std::any_of(tensors_.begin(), tensors_.end(),
                                          [](const Entry& one) { return !one.scales.empty(); });
    if (quantization_.described && !is_quantized && is_folder(path)) {  // a shard may be all plain
      throw InputError({.where = store_.path(),
                        .reason = "no tensor is quantized, but config.json has a "
                                  "quantization_config",
                        .remedy = "take it out"});
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Entry& entry = tensors_[index];
    read_elements(*entry.tensor, first, destination);
    if (!entry.scales.empty()) multiply_by_scales(entry, first, destination);
    require_finite(destination, store_.path(), entry.tensor->name, entry.tensor->shape, first);
  }

 private:
  struct Entry {
    const StoredTensor* tensor;
    StoredScaleTile tile;
    std::vector<float> scales;  ///< of FP8 codes, row-major; empty: the elements are the values
  };

  /// Zero points of 0 change nothing.
  void require_no_zero_point(const StoredTensor& tensor) const {
    if (holds_only(tensor, 0.0f)) return;
    throw InputError({.where = store_.path(),
                      .noun = "tensor",
                      .key = tensor.name,
                      .verb = "holds",
                      .found = "zero points",
                      .reason = ", which are subtracted from the codes, and nothing here does",
                      .accepted = "zero points of 0"});
  }

  const StoredTensor* find_scale(const StoredTensor& tensor) const {
    if (!is_fp8(tensor.type)) return nullptr;
    const StoredTensor* const inverse = store_.find(tensor.name + "_scale_inv");
    return inverse != nullptr ? inverse : store_.find(tensor.name + "_scale");
  }

  void add_scales(const StoredTensor* scale, Entry& entry) const {
    const StoredTensor& tensor = *entry.tensor;
    if (quantization_.says_e4m3 && tensor.type == StoredType::f8_e5m2) {
      throw InputError({.where = store_.path(),
                        .noun = "tensor",
                        .key = tensor.name,
                        .found = std::string(stored_name(tensor.type)),
                        .reason = ", but quantization_config of config.json says E4M3",
                        .accepted = "F8_E4M3"});
    }
    if (scale != nullptr && quantization_.claim.ignores(module_of(tensor.name))) {
      throw InputError({.where = store_.path(),
                        .noun = "tensor",
                        .key = tensor.name,
                        .found = "quantized",
                        .reason = ", but quantization_config lists its module as unquantized"});
    }
    if (is_fp8(tensor.type) && quantization_.claim.leaves_out(module_of(tensor.name))) {
      throw InputError({.where = store_.path(),
                        .noun = "tensor",
                        .key = tensor.name,
                        .found = "quantized",
                        .reason = ", but no group of quantization_config has its module as a "
                                  "target"});
    }
    if (scale == nullptr && !(quantization_.described && is_fp8(tensor.type))) return;
    if (scale == nullptr || tensor.shape.size() != 2) {
      throw InputError(
          {.where = store_.path(),
           .noun = "tensor",
           .key = tensor.name,
           .found = shape_text(tensor),
           .accepted = fmt::format(
               "FP8 matrices with scales beside them under '{0}_scale' or '{0}_scale_inv'",
               tensor.name)});
    }
    if (!is_decodable(scale->type)) {
      throw InputError({.where = store_.path(),
                        .noun = "tensor",
                        .key = scale->name,
                        .found = shape_text(*scale),
                        .accepted = "F32, BF16, F16, F8_E8M0"});
    }
    entry.tile = tile_of_scales(tensor, *scale, quantization_.blocks, store_.path());
    require_claimed_tile(tensor, *scale);
    entry.scales.resize(static_cast<std::size_t>(scale->size()));
    read_elements(*scale, 0, entry.scales);
    require_finite(entry.scales, store_.path(), scale->name, scale->shape, 0);
    const auto found = std::find_if_not(entry.scales.begin(), entry.scales.end(),
                                        [](float value) { return value > 0.0f; });
    if (found == entry.scales.end()) return;
    throw InputError({.where = store_.path(),
                      .noun = "tensor",
                      .key = scale->name,
                      .found = fmt::format("{} at ({})", *found,
                                           place_of(found - entry.scales.begin(), scale->shape)),
                      .accepted = "scales above 0"});
  }

  /// Refuses scales that are as many as another tile has than quantization_config says.
  void require_claimed_tile(const StoredTensor& tensor, const StoredTensor& scale) const {
    const GroupClaim* const group = quantization_.claim.group_of(module_of(tensor.name));
    if (group == nullptr || !group->tile) return;
    // The method fp8 says nothing of scales that are no blocks.
    const bool is_unsaid = quantization_.claim.dialect == Dialect::fine_grained &&
                           group->tile->rows == 0 && group->tile->cols == 0;
    if (is_unsaid) return;
    const auto tiles = [](std::int64_t extent, std::int64_t tile) {
      return tile == 0 ? 1 : (extent + tile - 1) / tile;
    };
    const std::int64_t claimed =
        tiles(tensor.shape[0], group->tile->rows) * tiles(tensor.shape[1], group->tile->cols);
    if (claimed == scale.size()) return;
    throw InputError({.where = store_.path(),
                      .noun = "tensor",
                      .key = scale.name,
                      .found = shape_text(scale),
                      .reason = fmt::format(", but quantization_config says one scale for each {}, "
                                            "{} of them",
                                            tile_text(*group->tile), claimed)});
  }

  /// values = scale * code, rounded once.
  static void multiply_by_scales(const Entry& entry, std::int64_t first, std::span<float> values) {
    const std::int64_t cols = entry.tensor->shape[1];
    const std::int64_t tile_cols = entry.tile.cols == 0 ? cols : entry.tile.cols;
    const std::int64_t tile_rows = entry.tile.rows == 0 ? entry.tensor->shape[0] : entry.tile.rows;
    const std::int64_t scale_cols = (cols + tile_cols - 1) / tile_cols;
    const std::int64_t end = first + static_cast<std::int64_t>(values.size());
    for (std::int64_t at = first; at < end;) {
      const std::int64_t row = at / cols, col = at % cols;
      const std::int64_t run_end =
          std::min({end, (row + 1) * cols, row * cols + (col / tile_cols + 1) * tile_cols});
      const float scale =
          entry.scales[static_cast<std::size_t>(row / tile_rows * scale_cols + col / tile_cols)];
      for (; at < run_end; ++at) values[static_cast<std::size_t>(at - first)] *= scale;
    }
  }

  TensorStore store_;
  Quantization quantization_;
  std::vector<Entry> tensors_;
};

/// Tensors of files of any family, by their present names and in our orientation.
class OrientedTensors : public ModelTensors {
 public:
  OrientedTensors(std::unique_ptr<ModelTensors> tensors, const std::string& origin)
      : ModelTensors(tensors->values_of()), tensors_(std::move(tensors)) {
    std::unordered_map<std::string, std::size_t> known;  // index in the file by present name
    for (std::size_t index = 0; index < tensors_->headers().size(); ++index) {
      TensorHeader header = tensors_->headers()[index];
      const bool is_turned = is_stored_transposed(header.name) && header.shape.size() == 2;
      if (is_turned) std::swap(header.shape[0], header.shape[1]);
      const std::string name = std::exchange(header.name, present_name(header.name));
      const auto [other, is_new] = known.emplace(header.name, index);
      if (!is_new) {
        if (have_equal_values(*tensors_, index, other->second)) continue;
        throw InputError(
            {.where = origin,
             .reason = fmt::format(
                 "tensors '{}' and '{}' are one parameter under two names, with different values",
                 tensors_->headers()[other->second].name, name),
             .accepted = "one of them"});
      }
      headers_.push_back(std::move(header));
      places_.push_back({index, is_turned});
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Place place = places_[index];
    if (!place.is_turned) return tensors_->read(place.index, first, destination);
    // Rows of ours are columns of the file: a run of them from each of its rows.
    const std::int64_t n = headers_[index].shape[0], k = headers_[index].shape[1];
    const std::int64_t end = first + static_cast<std::int64_t>(destination.size());
    const std::int64_t row = first / k, rows = (end + k - 1) / k - row;
    std::vector<float> run(static_cast<std::size_t>(rows));
    for (std::int64_t col = 0; col < k; ++col) {
      tensors_->read(place.index, col * n + row, run);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t at = (row + i) * k + col;
        if (at < first || at >= end) continue;
        destination[static_cast<std::size_t>(at - first)] = run[static_cast<std::size_t>(i)];
      }
    }
  }

 private:
  struct Place {
    std::size_t index;  ///< in the file
    bool is_turned;
  };

  std::unique_ptr<ModelTensors> tensors_;
  std::vector<Place> places_;
};

class TensorsOfParameters : public ModelTensors {
 public:
  explicit TensorsOfParameters(const Parameters& parameters)
      : ModelTensors(ValuesOf::parameters), parameters_(parameters) {
    for (const Parameter& parameter : parameters.all()) {
      for (WeightPart& part : weight_parts(parameter.declaration, parameters.model())) {
        headers_.push_back({std::move(part.name), StoredType::f32, std::move(part.shape)});
        places_.push_back({&parameter, part.first});
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Place& place = places_[index];
    parameters_.download(*place.parameter, place.first + first, destination);
  }

 private:
  struct Place {
    const Parameter* parameter;
    std::int64_t first;
  };

  const Parameters& parameters_;
  std::vector<Place> places_;
};

/// Some files keep the head that a tied model does not use.
void check_tied_head(const ModelTensors& tensors, std::size_t head, std::size_t embedding,
                     const std::string& origin) {
  if (have_equal_values(tensors, head, embedding)) return;
  throw InputError(
      {.where = origin,
       .noun = "tensor",
       .key = tensors.headers()[head].name,
       .reason = fmt::format("differs from '{}', but the model ties the two (tie_word_embeddings)",
                             tensors.headers()[embedding].name)});
}

/// The index of each tensor of the model, in the order of its declaration and weight_parts.
std::vector<std::size_t> match(const ModelTensors& tensors, const std::string& origin,
                               const ModelConfig& model) {
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) index[tensors.headers()[i].name] = i;
  std::vector<std::size_t> chosen;
  const Declaration declaration = declaration_of(model);
  for (const ParameterDeclaration& parameter : declaration.parameters()) {
    for (const WeightPart& part : weight_parts(parameter, model)) {
      const auto found = index.find(part.name);
      if (found == index.end()) {
        throw InputError({.where = origin, .noun = "no tensor", .key = part.name});
      }
      const TensorHeader& header = tensors.headers()[found->second];
      if (header.shape != part.shape) {
        throw InputError(
            {.where = origin,
             .noun = "tensor",
             .key = part.name,
             .found = shape_text(header),
             .reason = fmt::format(", the model needs ({})", fmt::join(part.shape, ", "))});
      }
      if (!is_weight_type(header.type)) {
        throw InputError({.where = origin,
                          .noun = "tensor",
                          .key = part.name,
                          .found = std::string(stored_name(header.type)),
                          .accepted = "F32, BF16, F16, F8_E4M3, F8_E5M2"});
      }
      chosen.push_back(found->second);
      index.erase(found);
    }
  }
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) {
    const std::string& name = tensors.headers()[i].name;
    if (index.count(name) == 0) continue;
    if (name != "lm_head.weight" || !model.tie_word_embeddings) {
      throw InputError(
          {.where = origin, .noun = "tensor", .key = name, .reason = "has no place in the model"});
    }
    check_tied_head(tensors, i, chosen.front(), origin);
  }
  return chosen;
}

class ChosenTensors : public ModelTensors {
 public:
  ChosenTensors(std::unique_ptr<ModelTensors> tensors, std::vector<std::size_t> chosen)
      : ModelTensors(tensors->values_of()),
        tensors_(std::move(tensors)),
        chosen_(std::move(chosen)) {
    for (const std::size_t index : chosen_) headers_.push_back(tensors_->headers()[index]);
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    tensors_->read(chosen_[index], first, destination);
  }

 private:
  std::unique_ptr<ModelTensors> tensors_;
  std::vector<std::size_t> chosen_;
};

/// Parameters with 1 subtracted where files hold so.
class FileValues : public ModelTensors {
 public:
  FileValues(const ModelTensors& tensors, const ModelConfig& model)
      : ModelTensors(ValuesOf::files), tensors_(tensors) {
    headers_ = tensors.headers();
    if (tensors.values_of() == ValuesOf::files) return;
    const Declaration declaration = declaration_of(model);
    for (const ParameterDeclaration& parameter : declaration.parameters()) {
      for (const WeightPart& part : weight_parts(parameter, model)) {
        if (part.is_zero_centered) zero_centered_.insert(part.name);
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    tensors_.read(index, first, destination);
    if (!zero_centered_.contains(headers_[index].name)) return;
    for (float& value : destination) value -= 1.0f;
  }

 private:
  const ModelTensors& tensors_;
  std::unordered_set<std::string> zero_centered_;  ///< names of tensors
};

}  // namespace

std::unique_ptr<ModelTensors> open_model_tensors(const std::filesystem::path& path) {
  return oriented(std::make_unique<FileTensors>(path), path.string());
}

std::unique_ptr<ModelTensors> oriented(std::unique_ptr<ModelTensors> tensors,
                                       const std::string& origin) {
  return std::make_unique<OrientedTensors>(std::move(tensors), origin);
}

std::unique_ptr<ModelTensors> as_in_files(const ModelTensors& tensors, const ModelConfig& model) {
  return std::make_unique<FileValues>(tensors, model);
}

std::unique_ptr<ModelTensors> tensors_of(const Parameters& parameters) {
  return std::make_unique<TensorsOfParameters>(parameters);
}

std::unique_ptr<ModelTensors> fit_to_model(std::unique_ptr<ModelTensors> tensors,
                                           const std::string& origin, const ModelConfig& model) {
  std::vector<std::size_t> chosen = match(*tensors, origin, model);
  return std::make_unique<ChosenTensors>(std::move(tensors), std::move(chosen));
}

void require_finite(std::span<const float> values, const std::string& origin,
                    const std::string& name, const std::vector<std::int64_t>& shape,
                    std::int64_t first) {
  const auto found = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
  if (found == values.end()) return;
  throw InputError({.where = origin,
                    .noun = "tensor",
                    .key = name,
                    .found = fmt::format("{} at ({})", std::isnan(*found) ? "NaN" : "infinite",
                                         place_of(first + (found - values.begin()), shape)),
                    .accepted = "finite numbers"});
}

void require_finite(const ModelTensors& tensors) {
  std::vector<float> values;
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) {
    for_each_piece(tensors.headers()[i].size(), [&](std::int64_t first, std::size_t count) {
      values.resize(count);
      tensors.read(i, first, values);
    });
  }
}

void load_parameters(const ModelTensors& tensors, const std::string& origin,
                     Parameters& parameters) {
  const std::vector<std::size_t> chosen = match(tensors, origin, parameters.model());
  auto next = chosen.begin();
  std::vector<float> values;
  for (const Parameter& parameter : parameters.all()) {
    for (const WeightPart& part : weight_parts(parameter.declaration, parameters.model())) {
      const std::size_t index = *next++;
      for_each_piece(part.size(), [&](std::int64_t first, std::size_t count) {
        values.resize(count);
        tensors.read(index, first, values);
        if (part.is_zero_centered && tensors.values_of() == ValuesOf::files) {
          for (float& value : values) value += 1.0f;
        }
        parameters.upload(parameter, part.first + first, values);
      });
    }
  }
}

}  // namespace fp8lab
