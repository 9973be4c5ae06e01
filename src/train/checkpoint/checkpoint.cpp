#include "src/train/checkpoint/checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>

#include "emulation/base/input_error.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/model/weights/growth.hpp"
#include "src/model/weights/new_adapters.hpp"
#include "src/model/weights/weight_names.hpp"
#include "src/train/checkpoint/checkpoint_format.hpp"

namespace fp8lab {
namespace {

using Metadata = std::map<std::string, std::string>;

void restore(Backend& backend, const CheckpointFile& file, const std::string& name,
             const TensorView& view) {
  const StoredTensor& tensor = file.file().at(name);
  const TensorHeader wanted{name, stored_type(view.dtype), {view.rows, view.cols}};
  if (tensor.type != wanted.type || tensor.shape != wanted.shape) {
    throw InputError({.where = file.file().path(),
                      .noun = "tensor",
                      .key = name,
                      .found = shape_text(tensor),
                      .reason = fmt::format(", the model needs {}", shape_text(wanted))});
  }
  const std::size_t width = size_of(view.dtype);
  file.read(tensor, [&](std::size_t at, std::span<const std::byte> piece) {
    backend.upload(view.flat().columns(static_cast<std::int64_t>(at / width),
                                       static_cast<std::int64_t>(piece.size() / width)),
                   piece.data());
  });
}

/// Calls visit(name, view) for the smoothing factors of the linear layers among `modules`.
/// Attention has none.
template <class Visit>
void for_each_factor(const std::vector<NamedOperands>& modules, Visit visit) {
  for (const auto& [module, operands] : modules) {
    for (const GemmRole role : kGemmRoles) {
      const OperandId id{static_cast<std::size_t>(a_slot(role))};
      const TensorView factors = operands->smoothing_factors(id);
      if (factors.empty()) continue;
      visit(fmt::format("smoothing/{}/{}", module, gemm_role_name(role)), factors);
    }
  }
}

constexpr const char* kDelayed = "delayed/";

/// The master weights of a checkpoint of `model`.
class CheckpointTensors : public ModelTensors {
 public:
  CheckpointTensors(OpenCheckpoint file, const ModelConfig& model)
      : ModelTensors(ValuesOf::parameters), file_(std::move(file)) {
    const Declaration declaration = declaration_of(model);
    for (const ParameterDeclaration& shape : declaration.parameters()) {
      const StoredTensor& tensor = file_->file().at("weight/" + shape.name);
      const bool bf16 = tensor.type == StoredType::bf16;
      const TensorHeader wanted{
          tensor.name, bf16 ? StoredType::bf16 : StoredType::f32, {shape.rows, shape.cols}};
      if (tensor.type != wanted.type || tensor.shape != wanted.shape) {
        throw InputError({.where = file_->file().path(),
                          .noun = "tensor",
                          .key = tensor.name,
                          .found = shape_text(tensor),
                          .reason = fmt::format(", the model needs {}", shape_text(wanted))});
      }
      file_->verify(tensor);
      for (WeightPart& part : weight_parts(shape, model)) {
        headers_.push_back({std::move(part.name), tensor.type, std::move(part.shape)});
        places_.push_back({&tensor, part.first});
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Place& place = places_[index];
    read_elements(*place.tensor, place.first + first, destination);
    require_finite(destination, file_->path(), place.tensor->name, place.tensor->shape,
                   place.first + first);
  }

 private:
  struct Place {
    const StoredTensor* tensor;
    std::int64_t first;
  };

  OpenCheckpoint file_;
  std::vector<Place> places_;
};

/// Parses nonnegative numbers separated by commas.
std::vector<std::int64_t> integers(const Metadata& metadata, const std::string& origin,
                                   const std::string& key) {
  const std::string text = checkpoint_field(metadata, origin, key);
  const char* const end = text.data() + text.size();
  std::vector<std::int64_t> values;
  for (const char* at = text.data();; ++at) {
    const auto [last, error] = std::from_chars(at, end, values.emplace_back());
    const bool valid = error == std::errc{} && values.back() >= 0 && (last == end || *last == ',');
    if (!valid) {
      throw InputError({.where = origin,
                        .noun = "field",
                        .key = key,
                        .found = quoted_word(text),
                        .reason = ", not a number from 0 on"});
    }
    if (last == end) return values;
    at = last;
  }
}

std::int64_t integer(const Metadata& metadata, const std::string& origin, const std::string& key) {
  const std::vector<std::int64_t> values = integers(metadata, origin, key);
  if (values.size() == 1) return values.front();
  throw InputError({.where = origin, .noun = "field", .key = key, .found = "a list"});
}

std::vector<StreamPosition> parse_streams(const Metadata& metadata, const std::string& origin) {
  const std::vector<std::int64_t> numbers = integers(metadata, origin, "streams");
  std::size_t at = 0;
  const auto next = [&] {
    if (at < numbers.size()) return numbers[at++];
    throw InputError({.where = origin, .noun = "field", .key = "streams", .reason = "ends early"});
  };
  std::vector<StreamPosition> streams;
  for (std::int64_t left = next(); left > 0; --left) {
    StreamPosition& stream = streams.emplace_back();
    stream.sequences = next();
    for (std::int64_t cursors = next(); cursors > 0; --cursors) {
      const std::int64_t epoch = next(), document = next();
      stream.cursors.push_back({epoch, document, next()});
    }
  }
  if (at != numbers.size()) {
    throw InputError({.where = origin, .noun = "field", .key = "streams", .reason = "is too long"});
  }
  return streams;
}

void refresh_working_copies(Backend& backend, const Parameters& parameters) {
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.tensors.working.empty()) {
      backend.run(ops::Copy{parameter.master(), parameter.tensors.working});
    }
  }
}

}  // namespace

void for_each_state(const CheckpointScope& scope,
                    const std::function<void(const std::string&, const TensorView&)>& visit) {
  for (const Parameter& parameter : scope.parameters.all()) {
    visit("weight/" + parameter.name(), parameter.master());
    const ParameterTensors& tensors = parameter.tensors;
    for (const auto& [role, state] : {std::pair{"first_moment/", &tensors.first_moment},
                                      std::pair{"second_moment/", &tensors.second_moment}}) {
      if (!state->empty()) visit(role + parameter.name(), state->codes);
      if (!state->scales.empty()) visit(role + parameter.name() + "/scales", state->scales);
    }
    if (!tensors.weight_bound.empty()) {
      visit("weight_bound/" + parameter.name(), tensors.weight_bound);
    }
  }
  visit("scalars", scope.scalars);
  for (const auto& [module, operands] : scope.modules) {
    for (const OperandId id : operands->ids()) {
      const TensorView& state = operands->delayed_state(id);
      if (!state.empty())
        visit(kDelayed + amax_history_name(module, operands->declaration(id)), state);
    }
  }
  for_each_factor(scope.modules, visit);
}

RunPosition parse_position(const Metadata& metadata, const std::string& origin) {
  RunPosition position;
  position.step = integer(metadata, origin, "step");
  position.stage = integer(metadata, origin, "stage");
  position.stage_step = integer(metadata, origin, "stage_step");
  position.tokens = integer(metadata, origin, "tokens");
  if (metadata.count("microseconds") > 0) {  // older versions stored them here
    position.seconds = static_cast<double>(integer(metadata, origin, "microseconds")) * 1e-6;
  }
  position.streams = parse_streams(metadata, origin);
  if (metadata.count("stage_recipe") > 0) {
    position.recipe = integer(metadata, origin, "stage_recipe");
  }
  if (const auto found = metadata.find("fallback"); found != metadata.end()) {
    const std::optional<FallbackState> state = parse_fallback(found->second);
    if (!state) {
      throw InputError({.where = origin,
                        .noun = "field",
                        .key = "fallback",
                        .found = "no FALLEN:STEPS:LOSS:NORM"});
    }
    position.fallback = *state;
  }
  return position;
}

std::map<std::string, std::int64_t> parse_history_steps(const Metadata& metadata,
                                                        const std::string& origin) {
  std::map<std::string, std::int64_t> steps;
  const std::string text = checkpoint_field(metadata, origin, "history_steps");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::size_t equals = text.find('=', begin);
    std::int64_t count = -1;
    if (equals < end) std::from_chars(text.data() + equals + 1, text.data() + end, count);
    const std::string name = equals < end ? text.substr(begin, equals - begin) : std::string();
    if (count < 0 || !amax_history_owner(name)) {
      throw InputError({.where = origin,
                        .noun = "field",
                        .key = "history_steps",
                        .found = "no list of LAYER/x=STEPS"});
    }
    steps[name] = count;
    begin = end + 1;
  }
  return steps;
}

CheckpointSummary read_checkpoint(const CheckpointFile& file) {
  return {parse_position(file.file().metadata(), file.file().path()), file.field("identity"),
          file.hash()};
}

void check_position(const RunPosition& position, const RunConfig& config,
                    const std::string& where) {
  const auto refuse = [&](const char* field, std::int64_t value, std::int64_t least,
                          std::int64_t most) {
    if (value >= least && value <= most) return;
    throw InputError(
        {.where = fmt::format("{}: damaged", where),
         .noun = "field",
         .key = field,
         .found = fmt::to_string(value),
         .reason = fmt::format("; a checkpoint of this run has {} to {}", least, most)});
  };
  refuse("stage", position.stage, 0, static_cast<std::int64_t>(config.stages.size()) - 1);
  const StageConfig& stage = config.stages[static_cast<std::size_t>(position.stage)];
  refuse("stage_step", position.stage_step, 1, stage.steps);
  std::int64_t step = position.stage_step;
  for (std::int64_t i = 0; i < position.stage; ++i) {
    step += config.stages[static_cast<std::size_t>(i)].steps;
  }
  refuse("step", position.step, step, step);
  refuse("stage_recipe", position.recipe, 0,
         static_cast<std::int64_t>(recipes_of(config, stage).size()) - 1);
  refuse("fallback", position.fallback.fallen ? 1 : 0, 0, stage.fallback ? 1 : 0);
  refuse("number of streams", static_cast<std::int64_t>(position.streams.size()),
         position.stage + 1, position.stage + 1);
}

CheckpointSummary read_checkpoint(const std::filesystem::path& path) {
  return read_checkpoint(CheckpointFile(path));
}

void load_checkpoint(const CheckpointFile& file, const CheckpointScope& scope) {
  for_each_state(scope, [&](const std::string& name, const TensorView& view) {
    restore(scope.backend, file, name, view);
  });
  const std::map<std::string, std::int64_t> steps =
      parse_history_steps(file.file().metadata(), file.file().path());
  for (const auto& [module, operands] : scope.modules) {
    for (const OperandId id : operands->ids()) {
      const auto found = steps.find(amax_history_name(module, operands->declaration(id)));
      if (found != steps.end()) operands->continue_history(id, found->second);
    }
  }
  refresh_working_copies(scope.backend, scope.parameters);
}

AmaxHistories read_amax_histories(const CheckpointFile& file) {
  AmaxHistories histories;
  const std::map<std::string, std::int64_t> steps =
      parse_history_steps(file.file().metadata(), file.file().path());
  if (steps.empty()) return histories;
  const Recipe recipe = parse_recipe(file.field("recipe"), file.file().path() + ": recipe");
  const ModelConfig model =
      parse_model_table(file.field(kCheckpointModel), file.file().path() + ": model");
  for (const auto& [name, count] : steps) {
    const StoredTensor& tensor = file.file().at(kDelayed + name);
    if (tensor.type != StoredType::f32) {
      throw InputError({.where = file.file().path(),
                        .noun = "tensor",
                        .key = tensor.name,
                        .found = shape_text(tensor),
                        .accepted = "F32"});
    }
    const HistoryOwner owner = amax_history_owner(name).value();
    const LinearRecipe& linear =
        recipe.for_layer(owner.layer, static_cast<int>(model.layer_count()));
    const QuantSpec spec =
        owner.attention ? recipe.attention.spec(*owner.attention, {}, recipe.activation_dtype)
                        : linear.slot(owner.slot);
    AmaxHistory history{spec, {}, count};
    history.state.resize(static_cast<std::size_t>(tensor.size()));
    file.verify(tensor);
    read_elements(tensor, 0, history.state);
    histories[name] = std::move(history);
  }
  return histories;
}

void load_quantizer_states(const CheckpointFile& file, Backend& backend,
                           const std::vector<NamedOperands>& modules) {
  const std::vector<std::string> missing =
      continue_histories(backend, read_amax_histories(file), modules);
  if (!missing.empty()) {
    throw InputError(
        {.where = file.file().path(),
         .reason =
             fmt::format("has no amax history for {} as this recipe quantizes it", missing.front()),
         .accepted = "the recipe of its run, or one without delayed scaling"});
  }
  for_each_factor(modules, [&](const std::string& name, const TensorView& view) {
    if (file.file().find(name) != nullptr) restore(backend, file, name, view);
  });
}

void verify_checkpoint(const std::filesystem::path& path) {
  const CheckpointFile file(path);
  for (const StoredTensor& tensor : file.file().tensors()) {
    if (tensor.name != kCheckpointChecksums) file.verify(tensor);
  }
}

ModelConfig read_checkpoint_model(const CheckpointFile& file) {
  return parse_model_table(file.field(kCheckpointModel), file.path() + ": model");
}

std::unique_ptr<ModelTensors> open_checkpoint_tensors(OpenCheckpoint file,
                                                      const ModelConfig& model) {
  return std::make_unique<CheckpointTensors>(std::move(file), model);
}

namespace {

/// Refuses weights of another architecture, which would be incomplete or have another meaning.
/// Frequencies, lengths and epsilons may differ: a longer context may need others.
void check_architecture(const CheckpointFile& file, const ModelConfig& model) {
  const ModelConfig stored = read_checkpoint_model(file);
  ModelConfig wanted = model;
  wanted.max_position_embeddings = stored.max_position_embeddings;
  wanted.rope_theta = stored.rope_theta;
  wanted.rope_scaling = stored.rope_scaling;
  wanted.rms_norm_eps = stored.rms_norm_eps;
  wanted.layer_norm_eps = stored.layer_norm_eps;
  wanted.initializer_range = stored.initializer_range;
  wanted.scaled_residual_init = stored.scaled_residual_init;
  wanted.scaled_norm_init = stored.scaled_norm_init;
  if (wanted == stored) return;
  std::istringstream own(model_table_text(wanted)), other(model_table_text(stored));
  std::string line, stored_line;
  while (std::getline(own, line) && std::getline(other, stored_line) && line == stored_line) {
  }
  throw InputError({.where = file.path(),
                    .reason = fmt::format("its model has {}, this one {}", stored_line, line),
                    .accepted = "the architecture of the checkpoint, or [growth]"});
}

}  // namespace

InitialState open_initial_state(const std::filesystem::path& path, const ModelConfig& model,
                                const std::optional<GrowthConfig>& growth, std::uint64_t seed) {
  const OpenCheckpoint checkpoint = CheckpointFile::open_if(path);
  const bool has_new_adapters =
      model.lora.rank > 0 && !(checkpoint && read_checkpoint_model(*checkpoint).lora == model.lora);
  const ModelConfig base = has_new_adapters ? without_adapters(model) : model;
  const ModelConfig stored = growth ? model_before(*growth, base) : base;
  if (checkpoint) check_architecture(*checkpoint, stored);
  InitialState state;
  state.weights = checkpoint ? open_checkpoint_tensors(checkpoint, stored)
                             : fit_to_model(open_model_tensors(path), path.string(), stored);
  if (growth) state.weights = grown(std::move(state.weights), *growth, base);
  if (has_new_adapters) {
    state.weights = with_new_adapters(std::move(state.weights), model, seed);
  }
  if (checkpoint && !growth) state.histories = read_amax_histories(*checkpoint);
  return state;
}

}  // namespace fp8lab
