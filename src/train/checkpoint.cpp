#include "src/train/checkpoint.hpp"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstring>

#include "src/io/safetensors.hpp"

namespace fp8lab {
namespace {

StoredTensor capture(Backend& backend, const std::string& name, const TensorView& view) {
  StoredTensor tensor{name, view.dtype, view.rows, view.cols, {}};
  tensor.bytes.resize(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  backend.download(tensor.bytes.data(), view);
  return tensor;
}

void restore(Backend& backend, const StoredTensor& tensor, const TensorView& view) {
  if (tensor.dtype != view.dtype || tensor.rows != view.rows || tensor.cols != view.cols) {
    throw Error(fmt::format("checkpoint tensor '{}' is {} ({}, {}), the model needs {} ({}, {})",
                            tensor.name, name_of(tensor.dtype), tensor.rows, tensor.cols,
                            name_of(view.dtype), view.rows, view.cols));
  }
  backend.upload(view, tensor.bytes.data());
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
  if (scope.linears == nullptr) return;
  constexpr std::array<const char*, 3> kOperands = {"x", "w", "dy"};
  for (const auto& linear : *scope.linears) {
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

std::string field(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) throw Error(fmt::format("checkpoint lacks '{}'", key));
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
  SafetensorsFile file;
  file.metadata = {
      {"schema", "fp8lab-checkpoint-1"},
      {"config_hash", config_hash},
      {"step", std::to_string(position.step)},
      {"stage", std::to_string(position.stage)},
      {"stage_step", std::to_string(position.stage_step)},
      {"tokens", std::to_string(position.tokens)},
      {"microseconds", std::to_string(static_cast<std::int64_t>(position.seconds * 1e6))},
      {"epoch", joined(position.cursors, &DataCursor::epoch)},
      {"document", joined(position.cursors, &DataCursor::document)},
      {"offset", joined(position.cursors, &DataCursor::offset)}};
  for_each_tensor(scope, [&](const std::string& name, const TensorView& view) {
    file.tensors.push_back(capture(scope.backend, name, view));
  });
  write_safetensors(path, file);
}

RunPosition read_position(const std::filesystem::path& path, const std::string& config_hash) {
  const SafetensorsFile file = read_safetensors(path);
  if (field(file, "schema") != "fp8lab-checkpoint-1") {
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
  const SafetensorsFile file = read_safetensors(path);
  for_each_tensor(scope, [&](const std::string& name, const TensorView& view) {
    restore(scope.backend, file.at(name), view);
  });
  refresh_working_copies(scope.backend, scope.parameters);
}

void load_weights(const std::filesystem::path& path, Parameters& parameters) {
  const SafetensorsFile file = read_safetensors(path);
  for (const Parameter& parameter : parameters.all()) {
    const StoredTensor& tensor = file.at("weight/" + parameter.name);
    if (tensor.dtype != DType::f32 || tensor.rows != parameter.master().rows ||
        tensor.cols != parameter.master().cols) {
      throw Error(fmt::format("{}: '{}' is ({}, {}), the model needs f32 ({}, {})", path.string(),
                              tensor.name, tensor.rows, tensor.cols, parameter.master().rows,
                              parameter.master().cols));
    }
    std::vector<float> values(static_cast<std::size_t>(parameter.master().size()));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    parameters.upload(parameter, values);
  }
}

}  // namespace fp8lab
