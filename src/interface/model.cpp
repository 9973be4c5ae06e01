// fp8lab.h: models with weights, optimizer and numerics.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/backend/factory.hpp"
#include "src/config/config.hpp"
#include "src/config/config_names.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/config/tables/run_fields.hpp"
#include "src/interface/arrays.hpp"
#include "src/interface/guard.hpp"
#include "src/interface/handles.hpp"
#include "src/interface/keys.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/model/weights/weight_names.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/step/session.hpp"

namespace fp8lab::interface {

/// A tensor with its name in files: a part of a parameter.
struct NamedTensor {
  const Parameter* parameter = nullptr;
  WeightPart part;
  Shape shape;  ///< in files
};

namespace {

/// Weights from the caller's named arrays, which must outlive this.
class ArrayTensors : public ModelTensors {
 public:
  ArrayTensors(const char* const* names, const fp8lab_array* arrays, std::size_t count)
      : ModelTensors(ValuesOf::files) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name =
          text_of(given(names, "names") == nullptr ? nullptr : names[i], "the name of an array");
      Input input = read_array(&given(arrays, "arrays") + i, name);
      if (input.codes || input.view.dtype == DType::u8) {
        throw InputError({.where = name, .accepted = "float32, float16 or bfloat16"});
      }
      headers_.push_back({name, stored_type(input.view.dtype), input.shape});
      values_.push_back(std::move(input));
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const TensorHeader& header = headers_[index];
    const std::size_t size = size_of(header.type);
    const auto* const bytes = static_cast<const std::byte*>(values_[index].view.data);
    decode_elements(
        header.type,
        std::span(bytes + static_cast<std::size_t>(first) * size, destination.size() * size),
        destination);
    require_finite(destination, "parameters", header.name, header.shape, first);
  }

 private:
  std::vector<Input> values_;
};

OptimizerConfig optimizer_of(const fp8lab_key* keys, std::size_t count) {
  OptimizerConfig optimizer;
  set_keys(optimizer_fields(), optimizer, keys, count, "Model");
  return optimizer;
}

/// Reads tokens or targets, int32 (sequences, length).
std::vector<std::int32_t> read_tokens(const fp8lab_array* array, const std::string& name) {
  const Shape shape = shape_of(array, name);
  if (shape.size() != 2 || std::string(array->dtype) != "int32") {
    throw InputError({.where = name, .accepted = "int32 of shape (sequences, length)"});
  }
  const Elements elements = row_major(array, name, sizeof(std::int32_t));
  const auto* const tokens = static_cast<const std::int32_t*>(elements.data);
  return {tokens, tokens + elements.count};
}

}  // namespace
}  // namespace fp8lab::interface

struct fp8lab_model {
  std::string source;
  std::unique_ptr<fp8lab::Backend> backend;
  std::unique_ptr<fp8lab::ModelSession> session;
  std::vector<fp8lab::interface::NamedTensor> tensors;
};

struct fp8lab_completions {
  std::vector<fp8lab::Completion> completions;
};

namespace fp8lab::interface {
namespace {

ObjectiveConfig objective_of(const std::string& kind) {
  std::vector<std::string> names;
  for (const Named<ObjectiveKind>& known : kObjectiveKindNames) {
    if (kind == known.name) return {known.value};
    names.emplace_back(known.name);
  }
  throw InputError({.where = "Model",
                    .key = "objective",
                    .found = quoted_word(kind),
                    .nearest = did_you_mean(kind, names),
                    .accepted = fields::listed(names)});
}

std::unique_ptr<fp8lab_model> make_model(const std::string& source, const std::string& recipe,
                                         const std::string& backend, int threads,
                                         const OptimizerConfig& optimizer,
                                         const ObjectiveConfig& objective, std::uint64_t seed) {
  auto model = std::make_unique<fp8lab_model>();
  model->source = require_model_path(source);
  model->backend = make_backend(backend, threads);
  const ModelConfig config = load_model(model->source);
  model->session =
      std::make_unique<ModelSession>(*model->backend, config,
                                     SessionConfig{load_recipe_for(config, recipe, "recipe"),
                                                   optimizer, AttentionConfig{}, seed, objective});
  Parameters& parameters = model->session->parameters();
  if (is_hugging_face_folder(model->source)) {
    load_parameters(*open_initial_state(model->source, parameters.model()).weights, model->source,
                    parameters);
  }
  for (const Parameter& parameter : parameters.all()) {
    for (WeightPart& part : weight_parts(parameter.declaration, model->session->model())) {
      Shape shape(part.shape.begin(), part.shape.end());
      if (is_stored_transposed(part.name)) std::swap(shape[0], shape[1]);
      model->tensors.push_back({&parameter, std::move(part), std::move(shape)});
    }
  }
  return model;
}

Batch batch_of(const fp8lab_model& model, const fp8lab_array* tokens, const fp8lab_array* targets) {
  std::vector<std::int32_t> inputs = read_tokens(tokens, "tokens");
  return make_batch(std::move(inputs), read_tokens(targets, "targets"), tokens->shape[0],
                    model.session->model().vocab_size, model.session->columns());
}

/// "advantage"; "none, for this objective" without columns.
std::string accepted_columns(const ModelSession& session) {
  std::vector<std::string> names;
  for (const ColumnSpec& column : session.columns()) names.emplace_back(column.record_key);
  return names.empty() ? "none, for this objective" : fields::listed(names);
}

/// A batch with the columns of the objective.
Batch training_batch(const fp8lab_model& model, const fp8lab_array* tokens,
                     const fp8lab_array* targets, const fp8lab_columns& columns) {
  Batch batch = batch_of(model, tokens, targets);
  const ModelSession& session = *model.session;
  std::set<std::string> names;
  for (std::size_t i = 0; i < columns.count; ++i) {
    const std::string name =
        text_of(given(columns.names, "names") == nullptr ? nullptr : columns.names[i],
                "the name of a column");
    const auto column =
        std::find_if(session.columns().begin(), session.columns().end(),
                     [&](const ColumnSpec& known) { return known.record_key == name; });
    if (column == session.columns().end()) {
      throw InputError(
          {.noun = "unknown column", .key = name, .accepted = accepted_columns(session)});
    }
    const fp8lab_array* const array = &given(columns.arrays, "arrays") + i;
    const Shape shape{batch.sequences, batch.sequence_length}, found = shape_of(array, name);
    if (found != shape || std::string(array->dtype) != "float32") {
      throw InputError(
          {.noun = "column",
           .key = name,
           .found = fmt::format("{} of shape ({})", array->dtype, fmt::join(found, ", ")),
           .accepted =
               fmt::format("float32 of shape ({}, {}), that of the tokens", shape[0], shape[1])});
    }
    const Elements elements = row_major(array, name, sizeof(float));
    set_column(
        batch, *column,
        {static_cast<const float*>(elements.data), static_cast<std::size_t>(elements.count)});
    names.insert(name);
  }
  for (const ColumnSpec& column : session.columns()) {
    if (names.contains(std::string(column.record_key))) continue;
    throw InputError({.noun = "column",
                      .key = std::string(column.record_key),
                      .reason = "is missing",
                      .accepted = "float32 of the shape of the tokens"});
  }
  return batch;
}

/// Writes the elements of a tensor that `view_of` returns of its parameter, less `centre` if it is
/// the weight of a zero-centered norm.
template <class ViewOf>
void write_tensor(fp8lab_model& model, std::size_t index, const fp8lab_array* result,
                  const ViewOf& view_of, float centre = 0.0f) {
  if (index >= model.tensors.size()) {
    throw InputError({.reason = "the model has no tensor of this number"});
  }
  const NamedTensor& tensor = model.tensors[index];
  auto* const memory =
      static_cast<float*>(result_memory(result, tensor.part.name, "float32", tensor.shape));
  std::vector<float> values(static_cast<std::size_t>(tensor.part.size()));
  const TensorView view = view_of(*tensor.parameter);
  download_floats(*model.backend, view.flat().columns(tensor.part.first, tensor.part.size()),
                  values);
  if (tensor.part.is_zero_centered) {
    for (float& value : values) value -= centre;
  }
  if (is_stored_transposed(tensor.part.name)) {
    values = transposed(values, tensor.part.shape[0], tensor.part.shape[1]);
  }
  std::copy(values.begin(), values.end(), memory);
}

void write_floats(const std::vector<float>& values, const fp8lab_array* result, const char* name,
                  const Shape& shape) {
  auto* const memory = static_cast<float*>(result_memory(result, name, "float32", shape));
  std::copy(values.begin(), values.end(), memory);
}

std::vector<Prompt> prompts_of(const std::int32_t* const* prompts, const std::size_t* lengths,
                               std::size_t count, std::uint32_t sample) {
  std::vector<Prompt> result;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t* const tokens = prompts[i];
    result.push_back({{tokens, tokens + lengths[i]}, static_cast<std::uint32_t>(i), sample});
  }
  return result;
}

/// A model whose weights are not finite lost its training.
void require_saved_finite(const ModelTensors& weights) {
  std::vector<float> values;
  for (std::size_t i = 0; i < weights.headers().size(); ++i) {
    const TensorHeader& header = weights.headers()[i];
    values.resize(static_cast<std::size_t>(header.size()));
    weights.read(i, 0, values);
    require_finite(values, {}, header.name, header.shape, 0);
  }
}

/// Throws Error for a rate that no file of a run may have, NaN among them.
void check_rate(double rate) {
  if (rate >= 0.0 && rate <= kLargestRate) return;
  throw InputError({.where = "learning_rate",
                    .found = fmt::format("{}", rate),
                    .accepted = fmt::format("a number from 0 to {:g}", kLargestRate)});
}

void save(fp8lab_model& model, const std::string& folder, const std::string& dtype,
          const char* recipe) {
  ExportOptions options;
  const std::optional<StoredType> type = parse_stored_type(dtype);
  const bool known = type == StoredType::bf16 || type == StoredType::f16 || type == StoredType::f32;
  if (!known) throw InputError({.noun = "dtype", .found = dtype, .accepted = "bf16, f16, f32"});
  options.dtype = *type;
  Parameters& parameters = model.session->parameters();
  if (recipe != nullptr) options.recipe = load_recipe_for(parameters.model(), recipe, "recipe");
  if (is_hugging_face_folder(model.source)) {
    options.tokenizer = model.source;
    options.tokenizer_name = folder_tokenizer(model.source);
  }
  const std::unique_ptr<ModelTensors> weights = tensors_of(parameters);
  require_saved_finite(*weights);
  const std::unique_ptr<Backend> backend = make_backend("cpu", 0);
  export_model(*backend, *weights, model.session->model(), options, folder);
}

}  // namespace
}  // namespace fp8lab::interface

using namespace fp8lab::interface;

fp8lab_status fp8lab_model_new(const char* source, const char* recipe, const char* backend,
                               int32_t threads, const fp8lab_key* optimizer, size_t optimizer_keys,
                               const char* objective, uint64_t seed, fp8lab_model** model) {
  return guarded([&] {
    given(model, "model") =
        make_model(text_of(source, "source"), text_of(recipe, "recipe"),
                   text_of(backend, "backend"), threads, optimizer_of(optimizer, optimizer_keys),
                   objective_of(text_of(objective, "objective")), seed)
            .release();
  });
}

void fp8lab_model_free(fp8lab_model* model) { delete model; }

fp8lab_status fp8lab_model_config(const fp8lab_model* model, const char** toml) {
  return guarded([&] {
    given(toml, "toml") =
        kept_text(fp8lab::model_table_text(given(model, "model").session->model()));
  });
}

fp8lab_status fp8lab_model_device(const fp8lab_model* model, const char** device) {
  return guarded(
      [&] { given(device, "device") = kept_text(given(model, "model").backend->device()); });
}

int64_t fp8lab_model_steps(const fp8lab_model* model) { return model->session->steps(); }

int64_t fp8lab_model_vocabulary(const fp8lab_model* model) {
  return model->session->model().vocab_size;
}

size_t fp8lab_model_tensors(const fp8lab_model* model) { return model->tensors.size(); }

fp8lab_status fp8lab_model_tensor(const fp8lab_model* model, size_t index, const char** name,
                                  int32_t* rank, const int64_t** shape) {
  return guarded([&] {
    if (index >= given(model, "model").tensors.size()) {
      throw fp8lab::InputError({.reason = "the model has no tensor of this number"});
    }
    const NamedTensor& tensor = model->tensors[index];
    given(name, "name") = tensor.part.name.c_str();
    given(rank, "rank") = static_cast<int32_t>(tensor.shape.size());
    given(shape, "shape") = tensor.shape.data();
  });
}

fp8lab_status fp8lab_model_weight(fp8lab_model* model, size_t index, const fp8lab_array* values) {
  return guarded([&] {
    write_tensor(
        given(model, "model"), index, values,
        [](const fp8lab::Parameter& parameter) { return parameter.master(); }, 1.0f);
  });
}

int32_t fp8lab_model_is_trained(const fp8lab_model* model, size_t index) {
  if (model == nullptr || index >= model->tensors.size()) return 0;
  return model->tensors[index].parameter->is_trained() ? 1 : 0;
}

fp8lab_status fp8lab_model_gradient(fp8lab_model* model, size_t index, const fp8lab_array* values) {
  return guarded([&] {
    write_tensor(given(model, "model"), index, values, [](const fp8lab::Parameter& parameter) {
      if (parameter.is_trained()) return parameter.gradient();
      throw fp8lab::InputError(
          {.where = parameter.name(), .reason = "is frozen and has no gradient"});
    });
  });
}

fp8lab_status fp8lab_model_set_weights(fp8lab_model* model, const char* const* names,
                                       const fp8lab_array* arrays, size_t count) {
  return guarded([&] {
    const std::unique_ptr<fp8lab::ModelTensors> tensors =
        fp8lab::oriented(std::make_unique<ArrayTensors>(names, arrays, count), "parameters");
    fp8lab::require_finite(*tensors);  // before the first weight is set
    fp8lab::load_parameters(*tensors, "parameters", given(model, "model").session->parameters());
  });
}

fp8lab_status fp8lab_model_logits(fp8lab_model* model, const fp8lab_array* tokens,
                                  const fp8lab_array* logits) {
  return guarded([&] {
    const fp8lab::Batch batch = batch_of(given(model, "model"), tokens, tokens);
    write_floats(model->session->logits(batch), logits, "logits",
                 {tokens->shape[0], tokens->shape[1], model->session->model().vocab_size});
  });
}

fp8lab_status fp8lab_model_token_losses(fp8lab_model* model, const fp8lab_array* tokens,
                                        const fp8lab_array* targets, const fp8lab_array* losses) {
  return guarded([&] {
    const fp8lab::Batch batch = batch_of(given(model, "model"), tokens, targets);
    write_floats(model->session->token_losses(batch), losses, "losses",
                 {tokens->shape[0], tokens->shape[1]});
  });
}

fp8lab_status fp8lab_model_loss(fp8lab_model* model, const fp8lab_array* tokens,
                                const fp8lab_array* targets, double* loss) {
  return guarded([&] {
    const fp8lab::Batch batch = batch_of(given(model, "model"), tokens, targets);
    given(loss, "loss") = model->session->loss(batch);
  });
}

fp8lab_status fp8lab_model_backward(fp8lab_model* model, const fp8lab_array* tokens,
                                    const fp8lab_array* targets, const fp8lab_columns* columns,
                                    double* loss) {
  return guarded([&] {
    const fp8lab::Batch batch =
        training_batch(given(model, "model"), tokens, targets, given(columns, "columns"));
    given(loss, "loss") = model->session->gradients(batch);
  });
}

fp8lab_status fp8lab_model_step(fp8lab_model* model, const fp8lab_array* tokens,
                                const fp8lab_array* targets, const fp8lab_columns* columns,
                                double learning_rate, double* loss, double* gradient_norm) {
  return guarded([&] {
    check_rate(learning_rate);
    const fp8lab::Batch batch =
        training_batch(given(model, "model"), tokens, targets, given(columns, "columns"));
    const fp8lab::ModelSession::Step step = model->session->step(batch, learning_rate);
    given(loss, "loss") = step.loss;
    given(gradient_norm, "gradient_norm") = step.gradient_norm;
  });
}

fp8lab_status fp8lab_model_generate(fp8lab_model* model, const int32_t* const* prompts,
                                    const size_t* lengths, size_t count,
                                    const fp8lab_generation* generation,
                                    fp8lab_completions** completions) {
  return guarded([&] {
    const fp8lab_generation& asked = given(generation, "generation");
    fp8lab::GenerationConfig config;
    set_keys(fp8lab::sampling_fields(), config.sampling, asked.sampling, asked.sampling_keys,
             "generate");
    config.max_new_tokens = asked.max_new_tokens;
    config.end = asked.end;
    config.log_probabilities = true;
    auto made = std::make_unique<fp8lab_completions>();
    made->completions = given(model, "model")
                            .session->generate(prompts_of(prompts, lengths, count, asked.sample),
                                               config, asked.together);
    given(completions, "completions") = made.release();
  });
}

void fp8lab_completions_free(fp8lab_completions* completions) { delete completions; }

fp8lab_status fp8lab_completion(const fp8lab_completions* completions, size_t index,
                                const int32_t** tokens, const double** log_probabilities,
                                size_t* length, int32_t* ended) {
  return guarded([&] {
    const auto& all = given(completions, "completions").completions;
    if (index >= all.size()) {
      throw fp8lab::InputError({.reason = "there is no completion of this number"});
    }
    const fp8lab::Completion& completion = all[index];
    given(tokens, "tokens") = completion.tokens.data();
    given(log_probabilities, "log_probabilities") = completion.log_probabilities.data();
    given(length, "length") = completion.tokens.size();
    given(ended, "ended") = completion.ended ? 1 : 0;
  });
}

fp8lab_status fp8lab_model_save(fp8lab_model* model, const char* folder, const char* dtype,
                                const char* recipe) {
  return guarded([&] {
    save(given(model, "model"), text_of(folder, "folder"), text_of(dtype, "dtype"), recipe);
  });
}
