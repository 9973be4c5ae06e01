#include "src/train/checkpoint.hpp"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <map>
#include <system_error>

#include "src/config/model_table.hpp"
#include "src/io/safetensors.hpp"
#include "src/model/weight_names.hpp"

namespace fp8lab {
namespace {

constexpr const char* kSchema = "fp8lab-checkpoint-1";

bool is_checkpoint(const SafetensorsFile& file) {
  const auto schema = file.metadata().find("schema");
  return schema != file.metadata().end() && schema->second == kSchema;
}

void restore(Backend& backend, const StoredTensor& tensor, const TensorView& view) {
  const TensorHeader wanted{tensor.name, stored_type(view.dtype), {view.rows, view.cols}};
  if (tensor.type != wanted.type || tensor.shape != wanted.shape) {
    throw Error(fmt::format("checkpoint tensor '{}' is {}, the model needs {}", tensor.name,
                            shape_text(tensor), shape_text(wanted)));
  }
  const std::size_t width = size_of(view.dtype);
  visit_data(tensor, 0, tensor.data.size(), [&](std::size_t at, std::span<const std::byte> piece) {
    backend.upload(view.flat().columns(static_cast<std::int64_t>(at / width),
                                       static_cast<std::int64_t>(piece.size() / width)),
                   piece.data());
  });
}

/// Calls visit(name, view) for everything that the quantizers of `linears` remember.
template <class Visit>
void for_each_state(const std::vector<std::unique_ptr<Linear>>& linears, Visit visit) {
  constexpr std::array<const char*, 3> kOperands = {"x", "w", "dy"};
  for (const auto& linear : linears) {
    for (std::size_t i = 0; i < kOperands.size(); ++i) {
      const TensorView& state = linear->delayed_states()[i];
      if (!state.empty()) visit(fmt::format("delayed/{}/{}", linear->name(), kOperands[i]), state);
    }
    for (const GemmRole role : kGemmRoles) {
      const TensorView& factors = linear->smoothing_factors()[static_cast<std::size_t>(role)];
      if (factors.empty()) continue;
      visit(fmt::format("smoothing/{}/{}", linear->name(), gemm_role_name(role)), factors);
    }
  }
}

/// Calls visit(name, view) for every tensor of a checkpoint, in file order.
template <class Visit>
void for_each_tensor(const CheckpointScope& scope, Visit visit) {
  for (const Parameter& parameter : scope.parameters.all()) {
    visit("weight/" + parameter.name, parameter.master());
    visit("first_moment/" + parameter.name, parameter.tensors.first_moment);
    visit("second_moment/" + parameter.name, parameter.tensors.second_moment);
  }
  visit("scalars", scope.scalars);
  if (scope.linears != nullptr) for_each_state(*scope.linears, visit);
}

/// The master weights of a checkpoint of `model`.
class CheckpointTensors : public ModelTensors {
 public:
  CheckpointTensors(const std::filesystem::path& path, const ModelConfig& model) : file_(path) {
    for (const ParameterShape& shape : ParameterLayout(model).shapes) {
      const StoredTensor& tensor = file_.at("weight/" + shape.name);
      const TensorHeader wanted{tensor.name, StoredType::f32, {shape.rows, shape.cols}};
      if (tensor.type != wanted.type || tensor.shape != wanted.shape) {
        throw Error(fmt::format("{}: tensor '{}' is {}, the model needs {}", file_.path(),
                                tensor.name, shape_text(tensor), shape_text(wanted)));
      }
      for (WeightPart& part : weight_parts(shape, model)) {
        headers_.push_back({std::move(part.name), StoredType::f32, std::move(part.shape)});
        places_.push_back({&tensor, part.first});
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    read_elements(*places_[index].tensor, places_[index].first + first, destination);
  }

 private:
  struct Place {
    const StoredTensor* tensor;
    std::int64_t first;
  };

  SafetensorsFile file_;
  std::vector<Place> places_;
};

std::string field(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) throw Error(fmt::format("checkpoint lacks '{}'", key));
  return found->second;
}

/// Numbers from 0 on, with commas between them.
std::vector<std::int64_t> integers(const SafetensorsFile& file, const std::string& key) {
  const std::string text = field(file, key);
  const char* const end = text.data() + text.size();
  std::vector<std::int64_t> values;
  for (const char* at = text.data();; ++at) {
    const auto [last, error] = std::from_chars(at, end, values.emplace_back());
    const bool valid = error == std::errc{} && values.back() >= 0 && (last == end || *last == ',');
    if (!valid) {
      throw Error(fmt::format("checkpoint field '{}' is '{}', not a number from 0 on", key, text));
    }
    if (last == end) return values;
    at = last;
  }
}

std::int64_t integer(const SafetensorsFile& file, const std::string& key) {
  const std::vector<std::int64_t> values = integers(file, key);
  if (values.size() != 1) throw Error(fmt::format("checkpoint field '{}' is a list", key));
  return values.front();
}

std::string joined(const std::vector<DataCursor>& cursors, std::int64_t DataCursor::*member) {
  std::string text;
  for (const DataCursor& cursor : cursors) {
    text += (text.empty() ? "" : ",") + std::to_string(cursor.*member);
  }
  return text;
}

void refresh_working_copies(Backend& backend, const Parameters& parameters) {
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.tensors.working.empty()) {
      backend.copy(parameter.master(), parameter.tensors.working);
    }
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const CheckpointScope& scope,
                     const RunPosition& position, const std::string& config_hash) {
  const std::map<std::string, std::string> metadata = {
      {"schema", kSchema},
      {"config_hash", config_hash},
      {"model", model_table_text(scope.parameters.model())},
      {"step", std::to_string(position.step)},
      {"stage", std::to_string(position.stage)},
      {"stage_step", std::to_string(position.stage_step)},
      {"tokens", std::to_string(position.tokens)},
      {"microseconds", std::to_string(static_cast<std::int64_t>(position.seconds * 1e6))},
      {"epoch", joined(position.cursors, &DataCursor::epoch)},
      {"document", joined(position.cursors, &DataCursor::document)},
      {"offset", joined(position.cursors, &DataCursor::offset)}};
  std::vector<TensorHeader> headers;
  std::vector<TensorView> views;
  for_each_tensor(scope, [&](const std::string& name, const TensorView& view) {
    headers.push_back({name, stored_type(view.dtype), {view.rows, view.cols}});
    views.push_back(view);
  });
  write_safetensors(path, metadata, headers, [&](std::size_t i) {
    TensorBytes bytes(headers[i].bytes());
    scope.backend.download(bytes.data(), views[i]);
    return bytes;
  });
}

RunPosition read_position(const std::filesystem::path& path, const std::string& config_hash) {
  const SafetensorsFile file(path);
  if (!is_checkpoint(file)) {
    throw Error(fmt::format("{}: not a checkpoint of fp8lab", path.string()));
  }
  if (field(file, "config_hash") != config_hash) {
    throw Error(
        fmt::format("{}: written under another configuration ({}, now {}); start a new "
                    "output directory",
                    path.string(), field(file, "config_hash"), config_hash));
  }
  RunPosition position;
  position.step = integer(file, "step");
  position.stage = integer(file, "stage");
  position.stage_step = integer(file, "stage_step");
  position.tokens = integer(file, "tokens");
  position.seconds = static_cast<double>(integer(file, "microseconds")) * 1e-6;
  const auto epochs = integers(file, "epoch");
  const auto documents = integers(file, "document"), offsets = integers(file, "offset");
  if (documents.size() != epochs.size() || offsets.size() != epochs.size()) {
    throw Error("checkpoint fields 'epoch', 'document' and 'offset' have different lengths");
  }
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    position.cursors.push_back({epochs[i], documents[i], offsets[i]});
  }
  return position;
}

void load_checkpoint(const std::filesystem::path& path, const CheckpointScope& scope) {
  const SafetensorsFile file(path);
  for_each_tensor(scope, [&](const std::string& name, const TensorView& view) {
    restore(scope.backend, file.at(name), view);
  });
  refresh_working_copies(scope.backend, scope.parameters);
}

void load_quantizer_states(const std::filesystem::path& path, Backend& backend,
                           const std::vector<std::unique_ptr<Linear>>& linears) {
  const SafetensorsFile file(path);
  for_each_state(linears, [&](const std::string& name, const TensorView& view) {
    const bool needed = name.starts_with("delayed/");
    if (needed || file.find(name) != nullptr) restore(backend, file.at(name), view);
  });
}

bool is_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && is_checkpoint(SafetensorsFile(path));
}

ModelConfig read_checkpoint_model(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  return parse_model_table(field(file, "model"), path.string() + ": model");
}

std::unique_ptr<ModelTensors> open_checkpoint_tensors(const std::filesystem::path& path,
                                                      const ModelConfig& model) {
  return std::make_unique<CheckpointTensors>(path, model);
}

void load_weights(const std::filesystem::path& path, Parameters& parameters) {
  const std::unique_ptr<ModelTensors> tensors =
      is_checkpoint(path) ? open_checkpoint_tensors(path, parameters.model())
                          : open_model_tensors(path);
  load_parameters(*tensors, path.string(), parameters);
}

}  // namespace fp8lab
