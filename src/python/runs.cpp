// Python: run files. HDF5 is not thread-safe, so these functions keep the GIL.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/io/run_reader.hpp"
#include "src/io/run_schema.hpp"
#include "src/python/bindings.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;
namespace fs = std::filesystem;

/// One member of every row as an array.
template <class Row, class Member>
py::array column(const std::vector<Row>& rows, Member Row::*member) {
  py::array_t<Member> result(static_cast<py::ssize_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) result.mutable_data()[i] = rows[i].*member;
  return result;
}

template <class Row>
py::list texts(const std::vector<Row>& rows, std::string Row::*member) {
  py::list result;
  for (const Row& row : rows) result.append(row.*member);
  return result;
}

py::dict meta_dict(const RunMeta& meta) {
  py::dict result;
  result["run_name"] = meta.run_name;
  result["recipe_name"] = meta.recipe_name;
  result["recipe_text"] = meta.recipe_text;
  result["recipe_resolved"] = meta.recipe_resolved;
  result["recipe_hash"] = meta.recipe_hash;
  result["config_text"] = meta.config_text;
  result["config_hash"] = meta.config_hash;
  result["data_hash"] = meta.data_hash;
  result["initial_weights_hash"] = meta.initial_weights_hash;
  result["code_version"] = meta.code_version;
  result["backend"] = meta.backend;
  result["device"] = meta.device;
  result["math_profile"] = meta.math_profile;
  result["simd_target"] = meta.simd_target;
  result["optimizer_states"] = meta.optimizer_states;
  result["seed"] = meta.seed;
  result["parameter_count"] = meta.parameter_count;
  result["stage_names"] = meta.stage_names;
  result["extra"] = meta.extra;
  return result;
}

py::dict tensors_dict(const RunData& run) {
  py::dict result;
  result["layer"] = texts(run.tensors, &TensorName::layer);
  result["slot"] = texts(run.tensors, &TensorName::slot);
  result["format"] = texts(run.tensors, &TensorName::format);
  result["scale_bits_per_element"] = column(run.tensors, &TensorName::scale_bits_per_element);
  result["step"] = py::array_t<std::int64_t>(static_cast<py::ssize_t>(run.tensor_steps.size()),
                                             run.tensor_steps.data());
  return result;
}

py::dict metrics_dict(const std::vector<StepRecord>& rows) {
  py::dict result;
  result["step"] = column(rows, &StepRecord::step);
  result["stage"] = column(rows, &StepRecord::stage);
  result["tokens"] = column(rows, &StepRecord::tokens);
  result["loss"] = column(rows, &StepRecord::loss);
  result["grad_norm"] = column(rows, &StepRecord::grad_norm);
  result["learning_rate"] = column(rows, &StepRecord::learning_rate);
  result["seconds"] = column(rows, &StepRecord::seconds);
  result["weight_hash"] = column(rows, &StepRecord::weight_hash);
  return result;
}

py::dict eval_dict(const std::vector<EvalRecord>& rows) {
  py::dict result;
  result["step"] = column(rows, &EvalRecord::step);
  result["stage"] = column(rows, &EvalRecord::stage);
  result["loss"] = column(rows, &EvalRecord::loss);
  result["exact_match"] = column(rows, &EvalRecord::exact_match);
  result["exact_match_count"] = column(rows, &EvalRecord::exact_match_count);
  return result;
}

py::dict scores_dict(const std::vector<ScoreRecord>& rows) {
  py::dict result;
  result["step"] = column(rows, &ScoreRecord::step);
  result["stage"] = column(rows, &ScoreRecord::stage);
  result["name"] = texts(rows, &ScoreRecord::name);
  result["value"] = column(rows, &ScoreRecord::value);
  result["count"] = column(rows, &ScoreRecord::count);
  return result;
}

py::dict read_run_file(const fs::path& path) {
  const RunData run = read_run(path);
  py::dict events;
  events["step"] = column(run.events, &EventRecord::step);
  events["kind"] = texts(run.events, &EventRecord::kind);
  events["message"] = texts(run.events, &EventRecord::message);
  py::dict result;
  result["meta"] = meta_dict(run.meta);
  result["metrics"] = metrics_dict(run.metrics);
  result["eval"] = eval_dict(run.eval);
  result["scores"] = scores_dict(run.scores);
  result["events"] = events;
  result["tensors"] = tensors_dict(run);
  result["complete"] = run.complete;
  result["final_weight_hash"] = run.final_weight_hash;
  return result;
}

py::array statistic(const fs::path& path, const std::string& name) {
  const std::vector<double> values = read_statistic(path, name);
  const RunData run = read_run(path);
  std::vector<py::ssize_t> shape{0, static_cast<py::ssize_t>(run.tensors.size())};
  for (const StatisticField& field : statistic_fields()) {
    if (field.name == name && field.width > 1) shape.push_back(field.width);
  }
  py::ssize_t row = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  // A running writer may have added rows between the two reads: `values` counts.
  if (row > 0) shape[0] = static_cast<py::ssize_t>(values.size()) / row;
  return py::array_t<double>(shape, values.data());
}

py::list samples(const fs::path& path) {
  py::list result;
  for (const Sample& sample : read_samples(path)) {
    result.append(py::make_tuple(
        sample.step, sample.name,
        py::array_t<float>(static_cast<py::ssize_t>(sample.values.size()), sample.values.data())));
  }
  return result;
}

std::vector<std::string> statistic_names() {
  std::vector<std::string> names;
  for (const StatisticField& field : statistic_fields()) names.emplace_back(field.name);
  return names;
}

}  // namespace

void bind_runs(py::module_& module) {
  module.def("read_run", &read_run_file);
  module.def("read_statistic", &statistic);
  module.def("read_samples", &samples);
  module.def("statistic_names", &statistic_names);
}

}  // namespace fp8lab::python
