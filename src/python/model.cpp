// Python: Model, with weights, optimizer and numerics.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/backend/factory.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/config/tables/run_fields.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/model/weights/weight_names.hpp"
#include "src/python/arrays.hpp"
#include "src/python/bindings.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/step/session.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;
using Tokens = py::array_t<std::int32_t, py::array::c_style>;

using OptimizerWords = std::map<std::string, std::variant<double, std::string>>;

OptimizerConfig make_optimizer(const OptimizerWords& values) {
  OptimizerConfig optimizer;
  for (const auto& [word, value] : values) {
    const FieldValue given = std::visit([](const auto& v) -> FieldValue { return v; }, value);
    set_keyword(optimizer_fields(), optimizer, word, given, "Model");
  }
  return optimizer;
}

/// Weights from the caller's dict of named arrays.
class ArrayTensors : public ModelTensors {
 public:
  explicit ArrayTensors(const py::dict& arrays) {
    for (const auto& [key, value] : arrays) {
      const auto name = key.cast<std::string>();
      const Input input = copy_array(value, name);
      if (input.codes || input.matrix.dtype == DType::u8) {
        throw Error(name + ": accepted: float32, float16 or bfloat16");
      }
      headers_.push_back(
          {name, stored_type(input.matrix.dtype), {input.shape.begin(), input.shape.end()}});
      values_.push_back(input.matrix.data);
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const StoredType type = headers_[index].type;
    const std::span<const std::byte> bytes = values_[index];
    decode_elements(type,
                    bytes.subspan(static_cast<std::size_t>(first) * size_of(type),
                                  destination.size() * size_of(type)),
                    destination);
    require_finite(destination, "parameters", headers_[index].name, headers_[index].shape, first);
  }

 private:
  std::vector<std::vector<std::byte>> values_;
};

class Model {
 public:
  Model(const std::string& source, const std::string& recipe, const std::string& backend,
        const OptimizerWords& optimizer, std::uint64_t seed, int threads)
      : source_(require_model_path(source)),
        backend_(make_backend(backend, threads)),
        session_(*backend_, load_model(source_),
                 {load_recipe_for(load_model(source_), recipe, "recipe"), make_optimizer(optimizer),
                  AttentionConfig{}, seed}) {
    if (!is_hugging_face_folder(source_)) return;
    Parameters& parameters = session_.parameters();
    load_parameters(*open_initial_state(source_, parameters.model()).weights, source, parameters);
  }

  /// Saves the model. `dtype` is a name of a safetensors header. If `recipe` is empty, nothing is
  /// quantized.
  void save(const std::string& folder, const std::string& dtype, const std::string& recipe) {
    ExportOptions options;
    const std::optional<StoredType> type = parse_stored_type(dtype);
    const bool known =
        type == StoredType::bf16 || type == StoredType::f16 || type == StoredType::f32;
    if (!known) throw Error("dtype " + dtype + ": accepted: bf16, f16, f32");
    options.dtype = *type;
    if (!recipe.empty()) {
      options.recipe = load_recipe_for(session_.parameters().model(), recipe, "recipe");
    }
    if (is_hugging_face_folder(source_)) {
      options.tokenizer = source_;
      options.tokenizer_name = folder_tokenizer(source_);
    }
    const py::gil_scoped_release unlocked;
    const std::unique_ptr<Backend> backend = make_backend("cpu", 0);
    export_model(*backend, *tensors_of(session_.parameters()), session_.model(), options, folder);
  }

  std::string config() const { return model_table_text(session_.model()); }
  std::string device() const { return backend_->device(); }
  std::int64_t steps() const { return session_.steps(); }

  py::dict parameters() {
    return collect([](const Parameter& parameter) { return parameter.master(); });
  }
  py::dict gradients() {
    return collect([](const Parameter& parameter) { return parameter.gradient(); });
  }
  void set_parameters(const py::dict& arrays) {
    const std::unique_ptr<ModelTensors> tensors =
        oriented(std::make_unique<ArrayTensors>(arrays), "parameters");
    require_finite(*tensors);  // before the first weight is set
    load_parameters(*tensors, "parameters", session_.parameters());
  }

  py::array logits(const Tokens& tokens) {
    const Batch batch = make(tokens, tokens);
    std::vector<float> values;
    {
      const py::gil_scoped_release unlocked;
      values = session_.logits(batch);
    }
    py::array_t<float> result(
        {tokens.shape(0), tokens.shape(1), static_cast<py::ssize_t>(session_.model().vocab_size)});
    std::memcpy(result.mutable_data(), values.data(), values.size() * sizeof(float));
    return result;
  }
  py::array_t<float> token_losses(const Tokens& tokens, const Tokens& targets) {
    const Batch batch = make(tokens, targets);
    std::vector<float> values;
    {
      const py::gil_scoped_release unlocked;
      values = session_.token_losses(batch);
    }
    py::array_t<float> result({tokens.shape(0), tokens.shape(1)});
    std::memcpy(result.mutable_data(), values.data(), values.size() * sizeof(float));
    return result;
  }

  /// Returns (tokens, log-probabilities, ended) for each prompt.
  std::vector<std::tuple<std::vector<std::int32_t>, std::vector<double>, bool>> generate(
      const std::vector<std::vector<std::int32_t>>& prompts, const py::dict& options) {
    GenerationConfig config;
    for (const Field<SamplingConfig>& field : sampling_fields()) {
      const py::object value = options[field.word.c_str()];
      const FieldValue given = PyIndex_Check(value.ptr()) != 0
                                   ? FieldValue(value.cast<std::int64_t>())
                                   : FieldValue(value.cast<double>());
      set_keyword(sampling_fields(), config.sampling, field.word, given, "generate");
    }
    config.max_new_tokens = options["max_new_tokens"].cast<std::int64_t>();
    config.end = options["end"].cast<std::int32_t>();
    config.log_probabilities = true;
    const auto together = options["together"].cast<std::int64_t>();
    const auto sample = options["sample"].cast<std::uint32_t>();
    std::vector<Prompt> asked;
    for (const auto& tokens : prompts) {
      asked.push_back({tokens, static_cast<std::uint32_t>(asked.size()), sample});
    }
    const py::gil_scoped_release unlocked;
    std::vector<std::tuple<std::vector<std::int32_t>, std::vector<double>, bool>> result;
    for (const Completion& completion : session_.generate(asked, config, together)) {
      result.emplace_back(completion.tokens, completion.log_probabilities, completion.ended);
    }
    return result;
  }
  double loss(const Tokens& tokens, const Tokens& targets) {
    const Batch batch = make(tokens, targets);
    const py::gil_scoped_release unlocked;
    return session_.loss(batch);
  }
  double backward(const Tokens& tokens, const Tokens& targets) {
    const Batch batch = make(tokens, targets);
    const py::gil_scoped_release unlocked;
    return session_.gradients(batch);
  }
  std::pair<double, double> step(const Tokens& tokens, const Tokens& targets,
                                 double learning_rate) {
    const Batch batch = make(tokens, targets);
    const py::gil_scoped_release unlocked;
    const ModelSession::Step step = session_.step(batch, learning_rate);
    return {step.loss, step.gradient_norm};
  }

 private:
  Batch make(const Tokens& tokens, const Tokens& targets) const {
    const auto values = [](const Tokens& array) {
      return std::vector<std::int32_t>(array.data(), array.data() + array.size());
    };
    return make_batch(values(tokens), values(targets), tokens.shape(0),
                      session_.model().vocab_size);
  }

  /// Returns a dict of arrays with the tensor names of transformers.
  template <class TensorOf>
  py::dict collect(TensorOf tensor_of) {
    py::dict result;
    for (const Parameter& parameter : session_.parameters().all()) {
      const TensorView view = tensor_of(parameter);
      for (const WeightPart& part : weight_parts(parameter.declaration, session_.model())) {
        std::vector<float> values(static_cast<std::size_t>(part.size()));
        download_floats(*backend_, view.flat().columns(part.first, part.size()), values);
        std::vector<py::ssize_t> shape(part.shape.begin(), part.shape.end());
        if (is_stored_transposed(part.name)) {
          values = transposed(values, shape[0], shape[1]);
          std::swap(shape[0], shape[1]);
        }
        py::array_t<float> array(shape);
        std::copy(values.begin(), values.end(), array.mutable_data());
        result[py::str(part.name)] = array;
      }
    }
    return result;
  }

  std::string source_;
  std::unique_ptr<Backend> backend_;
  ModelSession session_;
};

}  // namespace

void bind_model(py::module_& module) {
  py::class_<Model>(module, "Model")
      .def(py::init<const std::string&, const std::string&, const std::string&,
                    const OptimizerWords&, std::uint64_t, int>())
      .def_property_readonly("config", &Model::config)
      .def_property_readonly("device", &Model::device)
      .def_property_readonly("steps", &Model::steps)
      .def("parameters", &Model::parameters)
      .def("gradients", &Model::gradients)
      .def("set_parameters", &Model::set_parameters)
      .def("logits", &Model::logits)
      .def("token_losses", &Model::token_losses)
      .def("generate", &Model::generate)
      .def("loss", &Model::loss)
      .def("backward", &Model::backward)
      .def("step", &Model::step)
      .def("save", &Model::save);
}

}  // namespace fp8lab::python
