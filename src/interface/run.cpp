// fp8lab.h: run files of trainings of other frameworks.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/interface/guard.hpp"
#include "src/interface/handles.hpp"
#include "src/interface/layer_handles.hpp"
#include "src/interface/module_names.hpp"
#include "src/io/hash.hpp"
#include "src/io/hdf5/run_log.hpp"

struct fp8lab_run {
  std::unique_ptr<fp8lab::RunLog> log;
  std::vector<std::string> layers;   ///< names
  std::int64_t last_step = 0;        ///< 0: none yet
  std::int64_t last_evaluation = 0;  ///< its step; 0: none yet
  bool is_complete = false;
};

namespace fp8lab::interface {
namespace {

std::vector<LinearLayer*> layers_from(fp8lab_linear* const* layers, std::size_t count) {
  std::vector<LinearLayer*> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(given(layers[i], "layers").layer.get());
  return result;
}

/// The names of the layers, with their stack named as in recipes where all stay different.
std::vector<std::string> names_in_run(const std::vector<LinearLayer*>& layers) {
  std::vector<std::string> own, in_stack;
  for (const LinearLayer* layer : layers) {
    const std::vector<std::string> names = names_of({layer->name()});
    own.push_back(layer->name());
    in_stack.push_back(names.size() > 1 ? names[1] : names[0]);
  }
  const std::set<std::string> different(in_stack.begin(), in_stack.end());
  return different.size() == in_stack.size() ? in_stack : own;
}

std::vector<TensorName> tensor_names(const std::vector<LinearLayer*>& layers) {
  const std::vector<std::string> of_layers = names_in_run(layers);
  std::vector<TensorName> names;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const OperandSet& operands = layers[i]->operands();
    for (const OperandId id : operands.ids()) {
      const OperandDeclaration& row = operands.declaration(id);
      names.push_back({of_layers[i], row.name, label(row.spec),
                       scale_bits_per_element(row.spec, row.rows(), row.k())});
    }
  }
  return names;
}

RunMeta meta_of(const fp8lab_run_description& run, const Recipe& recipe) {
  RunMeta meta;
  meta.run_name = text_of(run.name, "name");
  meta.recipe_name = recipe.name;
  meta.recipe_text = recipe.text;
  meta.recipe_resolved = describe(recipe);
  meta.recipe_hash = recipe.hash;
  meta.config_text = text_of(run.config, "config");
  meta.config_hash = hex16(xxh3(meta.config_text));
  meta.code_version = FP8LAB_VERSION;
  meta.device = text_of(run.device, "device");
  meta.backend = meta.device.starts_with("NVIDIA") ? "cuda" : "cpu";
  meta.math_profile = "exact";
  meta.simd_target = std::string(cpu::name_of(cpu::active_target()));
  meta.seed = run.seed;
  meta.parameter_count = run.parameters;
  const std::string stage = text_of(run.stage, "stage");
  meta.stage_names = {stage};
  meta.extra["stage_recipes"] = stage + "=" + recipe.name;
  meta.extra["stage_steps"] = std::to_string(run.steps);
  meta.extra["tensors_recipe"] = recipe.name;
  return meta;
}

/// The run, to which rows can still be added.
fp8lab_run& open_run(fp8lab_run* run, const char* what) {
  fp8lab_run& whole = given(run, "run");
  if (whole.is_complete) {
    throw InputError(
        {.where = what, .reason = "the run is complete", .accepted = "before fp8lab_run_complete"});
  }
  return whole;
}

/// Throws InputError for a configuration that readers could not parse.
void check_config(const std::string& config) {
  try {
    (void)parse_toml(config, "config");
  } catch (const InputError& error) {
    ErrorFields fields = error.fields();
    fields.accepted = "TOML, such as 'lr = 1e-3'";
    throw InputError(std::move(fields));
  }
}

/// Throws InputError for documents that cannot be those of an evaluation with this loss.
void check_documents(double loss, const fp8lab_run_document* documents, std::size_t count) {
  if (count == 0) return;
  (void)given(documents, "documents");
  double nats = 0, tokens = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (documents[i].tokens < 1) {
      throw InputError({.where = fmt::format("document {}", i),
                        .key = "tokens",
                        .found = std::to_string(documents[i].tokens),
                        .accepted = "at least 1"});
    }
    if (documents[i].nats < 0) {
      throw InputError({.where = fmt::format("document {}", i),
                        .key = "nats",
                        .found = fmt::format("{}", documents[i].nats),
                        .accepted = "0 or above, or NaN"});
    }
    nats += documents[i].nats;
    tokens += static_cast<double>(documents[i].tokens);
  }
  const double mean = nats / tokens;
  if (std::isfinite(loss) && !(std::abs(mean - loss) <= 1e-3 * std::abs(loss))) {
    throw InputError({.where = "documents",
                      .found = fmt::format("{:.6g} nats per token", mean),
                      .accepted = fmt::format("those of the loss, {:.6g}", loss)});
  }
}

}  // namespace
}  // namespace fp8lab::interface

namespace interface = fp8lab::interface;
using interface::given, interface::guarded, interface::text_of;

fp8lab_status fp8lab_run_new(const fp8lab_run_description* description, const fp8lab_recipe* recipe,
                             fp8lab_linear* const* layers, size_t count, fp8lab_run** run) {
  return guarded([&] {
    const fp8lab_run_description& described = given(description, "description");
    fp8lab_run*& result = given(run, "run");
    const auto all = interface::layers_from(layers, count);
    const fp8lab::RunMeta meta = interface::meta_of(described, given(recipe, "recipe").recipe);
    interface::check_config(meta.config_text);
    const std::string path = text_of(described.path, "path");
    if (std::filesystem::exists(path)) {
      throw fp8lab::InputError(
          {.where = path, .reason = "exists", .accepted = "the path of a new file"});
    }
    auto made = std::make_unique<fp8lab_run>();
    made->log = fp8lab::RunLog::create(path, meta, interface::tensor_names(all));
    for (const interface::LinearLayer* layer : all) made->layers.push_back(layer->name());
    result = made.release();
  });
}

void fp8lab_run_free(fp8lab_run* run) {
  (void)guarded([&] { delete run; });
}

fp8lab_status fp8lab_run_add_step(fp8lab_run* run, const fp8lab_run_step* step) {
  return guarded([&] {
    const fp8lab_run_step& row = given(step, "step");
    fp8lab::StepRecord record;
    record.step = row.step;
    record.tokens = row.tokens;
    record.loss = row.loss;
    record.grad_norm = row.gradient_norm;
    record.learning_rate = row.learning_rate;
    record.seconds = row.seconds;
    fp8lab_run& whole = interface::open_run(run, "step");
    whole.log->append(record);
    whole.log->flush();
    whole.last_step = row.step;
  });
}

fp8lab_status fp8lab_run_add_evaluation(fp8lab_run* run, int64_t step, double loss, uint64_t text,
                                        const fp8lab_run_document* documents, size_t count) {
  return guarded([&] {
    fp8lab_run& whole = interface::open_run(run, "evaluation");
    if (step != whole.last_step || step == 0) {
      throw fp8lab::InputError(
          {.key = "step",
           .found = std::to_string(step),
           .accepted = whole.last_step == 0
                           ? "after the first step"
                           : fmt::format("{}, the last step added", whole.last_step)});
    }
    if (step == whole.last_evaluation) {
      throw fp8lab::InputError({.key = "step",
                                .found = std::to_string(step),
                                .reason = "and has an evaluation",
                                .accepted = "one evaluation of a step"});
    }
    if (loss < 0) {
      throw fp8lab::InputError({.key = "loss",
                                .found = fmt::format("{}", loss),
                                .accepted = "nats per token, 0 or above, or NaN"});
    }
    interface::check_documents(loss, documents, count);
    fp8lab::RunLog& log = *whole.log;
    fp8lab::EvalRecord record;
    record.step = step;
    record.loss = loss;
    log.append(record);
    for (std::size_t i = 0; i < count; ++i) {
      fp8lab::DocumentRecord row;
      row.step = step;
      row.text = text;
      row.count = static_cast<std::int64_t>(count);
      row.document = static_cast<std::int64_t>(i);
      row.tokens = documents[i].tokens;
      row.nats = documents[i].nats;
      log.append(row);
    }
    whole.last_evaluation = step;
    log.flush();
  });
}

fp8lab_status fp8lab_run_add_statistics(fp8lab_run* run, int64_t step, fp8lab_linear* const* layers,
                                        size_t count, void* stream) {
  return guarded([&] {
    const fp8lab_run& whole = interface::open_run(run, "statistics");
    const auto all = interface::layers_from(layers, count);
    std::vector<fp8lab::OperandStatistics> statistics;
    std::vector<std::uint8_t> without_history;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i >= whole.layers.size() || all[i]->name() != whole.layers[i]) {
        throw fp8lab::InputError(
            {.where = all[i]->name(), .reason = fmt::format("is not layer {} of the run", i)});
      }
      const fp8lab::OperandSet& operands = all[i]->operands();
      statistics.resize(statistics.size() + operands.ids().size());
      all[i]->read_statistics(statistics.data() + statistics.size() - operands.ids().size(),
                              stream);
      for (const fp8lab::OperandId id : operands.ids()) {
        without_history.push_back(operands.is_without_history(id) ? 1 : 0);
      }
    }
    if (all.size() != whole.layers.size()) {
      throw fp8lab::InputError({.found = fmt::format("{} layers", all.size()),
                                .accepted = fmt::format("the {} of the run", whole.layers.size())});
    }
    whole.log->append_tensors(step, statistics, without_history);
    whole.log->flush();
  });
}

fp8lab_status fp8lab_run_complete(fp8lab_run* run) {
  return guarded([&] {
    fp8lab_run& whole = interface::open_run(run, "completion");
    whole.is_complete = true;  // Also if the disk is full: the row may be there.
    whole.log->complete(0);
  });
}
