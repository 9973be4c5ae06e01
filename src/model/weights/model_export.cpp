#include "src/model/weights/model_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/json_document.hpp"
#include "src/io/tensors/tensor_store.hpp"
#include "src/model/linear/operand.hpp"
#include "src/model/weights/fp8_storage.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::array<const char*, 10> kTokenizerFiles = {"tokenizer.json",
                                                         "tokenizer_config.json",
                                                         "special_tokens_map.json",
                                                         "added_tokens.json",
                                                         "vocab.json",
                                                         "merges.txt",
                                                         "tokenizer.model",
                                                         "chat_template.jinja",
                                                         "chat_template.json",
                                                         "generation_config.json"};

constexpr std::int64_t kPiece = std::int64_t{1} << 18;  // elements, few enough for a cache

/// A tensor of the files and what it holds.
struct PlannedTensor {
  enum class Content { values, codes, scales };

  TensorHeader header;
  std::size_t source = 0;  ///< index in the ModelTensors
  Content content = Content::values;
  QuantSpec spec{};  ///< of codes and scales
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

/// The one tile of all quantized layers, and the quantization_config.
void plan_quantization(const Recipe& recipe, const ModelTensors& tensors, const ModelConfig& model,
                       Plan& plan) {
  std::optional<StoredScaleTile> tile;
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
    const StoredScaleTile own = stored_scale_tile(spec, layer);
    if (tile && own != *tile) {
      throw Error(
          fmt::format("recipe {}: the weights of {} and {} have different tiles; files have "
                      "one for all",
                      recipe.name, first, layer));
    }
    tile = own;
    linear = &recipe_of(recipe, layer, model);
    first = layer;
  }
  if (!tile) {
    throw Error(fmt::format("recipe {} quantizes no weight; export without it", recipe.name));
  }
  // A tied head has no tensor of its own, so that it is as high in precision as the embedding.
  if (model.tie_word_embeddings) kept.push_back("lm_head");
  plan.quantization = quantization_config(*tile, *linear, kept);
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
      plan.tensors.push_back({std::move(header), i, PlannedTensor::Content::values, {}});
      continue;
    }
    if (is_stored_transposed(header.name)) {
      throw Error(
          fmt::format("recipe {}: files of this family hold {} transposed, for which no "
                      "convention of FP8 scales exists; export without it",
                      options.recipe->name, header.name));
    }
    header.type = StoredType::f8_e4m3;
    const TensorHeader scales = scale_header(header, stored_scale_tile(spec, *layer));
    plan.tensors.push_back({std::move(header), i, PlannedTensor::Content::codes, spec});
    plan.tensors.push_back({scales, i, PlannedTensor::Content::scales, spec});
  }
  return plan;
}

/// Rounds `values` to `type`. Throws Error naming `tensor` for one that becomes infinite.
void round_values(const std::string& tensor, StoredType type, std::span<const float> values,
                  std::span<std::byte> bytes) {
  encode_elements(type, values, bytes);
  std::vector<float> back(values.size());
  decode_elements(type, bytes, back);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(back[i]) == std::isinf(values[i])) continue;
    throw Error(
        fmt::format("tensor '{}': {} is too large for {}", tensor, values[i], stored_name(type)));
  }
}

/// A weight that its file holds as (in, out).
TensorBytes transposed_values(const ModelTensors& tensors, const PlannedTensor& tensor) {
  const TensorHeader& header = tensor.header;
  std::vector<float> values(static_cast<std::size_t>(header.size()));
  tensors.read(tensor.source, 0, values);
  TensorBytes bytes(header.bytes());
  round_values(header.name, header.type, transposed(values, header.shape[1], header.shape[0]),
               bytes);
  return bytes;
}

TensorBytes rounded_values(const ModelTensors& tensors, const PlannedTensor& tensor) {
  const TensorHeader& header = tensor.header;
  if (is_stored_transposed(header.name)) return transposed_values(tensors, tensor);
  const std::size_t width = size_of(header.type);
  TensorBytes bytes(header.bytes());
  std::vector<float> values;
  for (std::int64_t first = 0; first < header.size(); first += kPiece) {
    values.resize(static_cast<std::size_t>(std::min(kPiece, header.size() - first)));
    tensors.read(tensor.source, first, values);
    round_values(
        header.name, header.type, values,
        std::span(bytes).subspan(static_cast<std::size_t>(first) * width, values.size() * width));
  }
  return bytes;
}

TensorBytes produce(Backend& backend, const ModelTensors& tensors, const PlannedTensor& tensor,
                    std::uint64_t seed) {
  if (tensor.content == PlannedTensor::Content::values) return rounded_values(tensors, tensor);
  const std::size_t mark = backend.memory_mark();
  const QuantizedOperand operand =
      quantize_weight(backend, tensors, tensor.source, tensor.spec, seed);
  TensorBytes bytes(tensor.header.bytes());
  if (tensor.content == PlannedTensor::Content::codes) {
    backend.download(bytes.data(), operand.codes);
  } else if (operand.scales.empty()) {  // codes without a scale are the values
    const float one = 1.0f;
    encode_elements(StoredType::f32, std::span(&one, 1), bytes);
  } else {
    backend.download(bytes.data(), operand.scales);
  }
  backend.release_to(mark);
  return bytes;
}

/// True when the rows of `part` have other tiles by themselves than within `rows` rows.
bool has_own_tiles(const WeightPart& part, std::int64_t rows, const QuantSpec& spec) {
  const bool is_measured =
      spec.scale_source == ScaleSource::current || spec.scale_source == ScaleSource::delayed;
  const std::int64_t own = part.shape[0], first = part.first / part.shape[1], end = first + own;
  if (!is_measured || own == rows) return false;
  const std::int64_t tile = spec.tile.rows;
  return tile == 0 || first % tile != 0 || (end != rows && end % tile != 0);
}

ordered_json make_config(const ModelConfig& model, const ExportOptions& options, const Plan& plan) {
  const char* const dtype = options.dtype == StoredType::f32   ? "float32"
                            : options.dtype == StoredType::f16 ? "float16"
                                                               : "bfloat16";
  ordered_json config = hugging_face_config(model, dtype);
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

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  if (from.empty()) return;
  for (const char* name : kTokenizerFiles) {
    if (!is_file(from / name)) continue;
    write_file_atomically(to / name, read_file(from / name));
  }
}

void check_tokenizer(const ExportOptions& options) {
  if (options.tokenizer.empty() || options.tokenizer_name.empty()) return;
  const std::string copied = folder_tokenizer(options.tokenizer);
  if (copied.empty() || copied == options.tokenizer_name) return;
  throw Error(
      fmt::format("{}: holds the tokenizer {}, the weights are of {}; accepted: their own, "
                  "or none",
                  options.tokenizer.string(), copied, options.tokenizer_name));
}

/// A folder that vanishes unless it got its name.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& path) : path_(temporary_beside(path)) {
    make_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

  void rename_to(const fs::path& path) {
    std::error_code error;
    fs::rename(path_, path, error);  // replaces an empty folder
    if (error) {
      throw RuntimeFailure(
          fmt::format("{}: cannot rename a new folder to it: {}", path.string(), error.message()));
    }
    path_.clear();
  }

 private:
  fs::path path_;
};

bool is_exported_file(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!fs::is_regular_file(entry.symlink_status(ignored))) return false;
  const fs::path path = target_of_temporary(entry.path()).value_or(entry.path());
  const std::string name = path.filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == "config.json" ||
         std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end();
}

/// A folder, no link to one, that holds nothing but files which export_model writes.
bool holds_export(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(path, ignored))) return false;
  const fs::directory_iterator entries(path, ignored);
  return std::all_of(begin(entries), end(entries), is_exported_file);
}

/// The folder's path without a slash at its end.
fs::path check_folder(const fs::path& folder) {
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  std::error_code ignored;
  if (is_present(path) && (!is_folder(path) || !fs::is_empty(path, ignored))) {
    throw Error(fmt::format("{}: exists; accepted: a new folder or an empty one", folder.string()));
  }
  return path;
}

}  // namespace

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
  const bool rounded = !spec.is_cast() || spec.weight_source == WeightSource::bf16;
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

std::vector<fs::path> unfinished_exports(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& path : temporaries(folder)) {
    if (holds_export(path)) found.push_back(path);
  }
  return found;
}

std::vector<fs::path> folders_with_unfinished_exports(const fs::path& directory) {
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::optional<fs::path> target = target_of_temporary(entry.path());
    if (target && holds_export(entry.path())) found.insert(*target);
  }
  return {found.begin(), found.end()};
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (!error) return;
  throw RuntimeFailure(fmt::format("{}: cannot remove what a killed process left: {}",
                                   folder.string(), error.message()));
}

void export_model(Backend& backend, const ModelTensors& tensors, const ModelConfig& model,
                  const ExportOptions& options, const fs::path& folder, const PartReport& report) {
  const fs::path path = check_folder(folder);
  check_tokenizer(options);
  const Plan plan = make_plan(tensors, model, options);
  const ordered_json config = make_config(model, options, plan);
  std::vector<TensorHeader> headers;
  for (const PlannedTensor& tensor : plan.tensors) headers.push_back(tensor.header);
  make_directories(path.parent_path());
  const std::optional<FileLock> lock = FileLock::try_acquire(path);
  if (!lock) {
    throw Error(fmt::format("{}: is being written by {}", folder.string(), FileLock::owner(path)));
  }
  for (const fs::path& left : unfinished_exports(path)) remove_folder(left);
  TemporaryFolder temporary(path);
  const auto megabytes = [](std::uint64_t bytes) {
    return static_cast<std::size_t>(bytes / 1'000'000);
  };
  const std::string part = "writing " + folder.string();
  std::uint64_t all = 0, done = 0;
  for (const TensorHeader& header : headers) all += header.bytes();
  write_tensor_store(temporary.path(), options.shard_bytes, headers, [&](std::size_t i) {
    if (report) report(part, megabytes(done), std::max<std::size_t>(megabytes(all), 1), "MB");
    done += headers[i].bytes();
    return produce(backend, tensors, plan.tensors[i], options.seed);
  });
  copy_tokenizer(options.tokenizer, temporary.path());
  write_file_atomically(temporary.path() / "config.json", config.dump(2) + "\n");
  temporary.rename_to(path);
}

}  // namespace fp8lab
