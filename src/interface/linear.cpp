// fp8lab.h: linear layers on tensors of another framework.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config.hpp"
#include "src/interface/guard.hpp"
#include "src/interface/handles.hpp"
#include "src/interface/layer_handles.hpp"
#include "src/interface/module_names.hpp"

namespace fp8lab::interface {
namespace {

constexpr std::uint32_t kLayerLimit = (1u << 20) / kTensors.size();  // RandomKey::tensor

Recipe recipe_from(const std::string& source) {
  return source.find('\n') == std::string::npos ? load_recipe(source)
                                                : parse_recipe(source, "recipe");
}

/// Refuses what linear layers by themselves would leave out.
void require_linear_layers_alone(const Recipe& recipe) {
  const bool has_attention = !recipe.attention.empty();
  if (!has_attention && recipe.saved_activations.empty()) return;
  throw InputError({.where = "recipe " + recipe.name,
                    .reason = has_attention
                                  ? "quantizes attention, which linear layers do not contain"
                                  : "saves activations as codes, which linear layers do not",
                    .accepted = "a recipe without [attention] and [saved_activations]"});
}

std::vector<const LinearRecipe*> quantized_layers(const Recipe& recipe) {
  std::vector<const LinearRecipe*> layers = {&recipe.linear};
  for (const RecipeOverride& exception : recipe.overrides) layers.push_back(&exception.recipe);
  return layers;
}

template <class Is>
bool any_quantizer(const Recipe& recipe, const Is& is) {
  const std::vector<const LinearRecipe*> layers = quantized_layers(recipe);
  return std::any_of(layers.begin(), layers.end(), [&](const LinearRecipe* layer) {
    return std::any_of(kSlots.begin(), kSlots.end(),
                       [&](Slot slot) { return is(layer->slot(slot)); });
  });
}

std::vector<Module> modules_from(const fp8lab_module* modules, std::size_t count) {
  std::vector<Module> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back({text_of(modules[i].name, "modules"), modules[i].is_head != 0});
  }
  return result;
}

DType type_of(const char* name, const char* what) {
  const std::string word = text_of(name, what);
  if (word == "float32") return DType::f32;
  if (word == "bfloat16") return DType::bf16;
  throw InputError(
      {.noun = what, .found = fmt::format("of type {}", word), .accepted = "float32, bfloat16"});
}

LayerDescription description_of(const Recipe& recipe, const fp8lab_linear_description& given) {
  LayerDescription description;
  description.name = text_of(given.name, "name");
  const auto refuse = [&](ErrorFields fields) {
    fields.where = description.name;
    throw InputError(std::move(fields));
  };
  description.activation = type_of(given.activation, "activations");
  description.weight = type_of(given.weight, "weights");
  if (description.weight != description.activation && description.weight != DType::f32) {
    refuse({.reason = "float32 activations with a bfloat16 weight",
            .accepted = "one type, or a float32 weight"});
  }
  if (given.in < 1 || given.out < 1 || given.rows < 1) {
    refuse(
        {.found = fmt::format("a shape of {} rows, {} in, {} out", given.rows, given.in, given.out),
         .accepted = "at least 1 of each"});
  }
  if (given.index >= kLayerLimit) {
    refuse({.noun = "index",
            .found = fmt::to_string(given.index),
            .accepted = fmt::format("less than {}", kLayerLimit)});
  }
  const auto choices = static_cast<std::int32_t>(recipe.overrides.size());
  if (given.numerics < FP8LAB_HIGH_PRECISION || given.numerics > choices) {
    refuse({.noun = "numerics",
            .found = fmt::to_string(given.numerics),
            .accepted = fmt::format("-1 to {}", choices)});
  }
  description.index = given.index;
  description.recipe = given.numerics == FP8LAB_HIGH_PRECISION ? recipe.high_precision
                       : given.numerics == FP8LAB_DEFAULT_NUMERICS
                           ? recipe.linear
                           : recipe.overrides[static_cast<std::size_t>(given.numerics - 1)].recipe;
  description.in = given.in;
  description.out = given.out;
  description.tokens = given.rows;
  description.has_backward = given.has_backward != 0;
  return description;
}

Moment moment_of(const fp8lab_moment& given) {
  return {given.seed, given.step, given.micro_batch, given.is_measured != 0,
          given.is_training != 0};
}

void require(const void* memory, const char* name) {
  if (memory == nullptr) throw InputError({.where = name, .reason = "is NULL"});
}

const fp8lab_linear_pass& checked(const fp8lab_linear_pass* pass) {
  const fp8lab_linear_pass& whole = given(pass, "pass");
  require(whole.workspace, "workspace");
  require(whole.x, "x");
  require(whole.w, "w");
  return whole;
}

}  // namespace
}  // namespace fp8lab::interface

namespace interface = fp8lab::interface;
using interface::given, interface::guarded, interface::text_of;

fp8lab_status fp8lab_device_new(int32_t kind, int32_t index, int32_t threads,
                                fp8lab_device** device) {
  return guarded([&] {
    if (kind != FP8LAB_CPU && kind != FP8LAB_CUDA) {
      throw fp8lab::InputError({.noun = "device",
                                .found = fmt::format("of kind {}", kind),
                                .accepted = "FP8LAB_CPU, FP8LAB_CUDA"});
    }
    const char* const name = kind == FP8LAB_CUDA ? "cuda" : "cpu";
    fp8lab_device*& result = given(device, "device");
    result = new fp8lab_device{{name, index, threads}};
  });
}

void fp8lab_device_free(fp8lab_device* device) { delete device; }

fp8lab_status fp8lab_recipe_new(const char* source, fp8lab_recipe** recipe) {
  return guarded([&] {
    given(recipe, "recipe") = new fp8lab_recipe{interface::recipe_from(text_of(source, "source"))};
  });
}

void fp8lab_recipe_free(fp8lab_recipe* recipe) { delete recipe; }

const char* fp8lab_recipe_name(const fp8lab_recipe* recipe) { return recipe->recipe.name.c_str(); }

const char* fp8lab_recipe_text(const fp8lab_recipe* recipe) { return recipe->recipe.text.c_str(); }

void fp8lab_recipe_traits(const fp8lab_recipe* recipe, int32_t* has_state, int32_t* is_random) {
  *has_state = interface::any_quantizer(recipe->recipe, [](const fp8lab::QuantSpec& spec) {
    const auto* const smoothing = spec.transform.as<fp8lab::Smoothing>();
    return spec.scale_source == fp8lab::ScaleSource::delayed ||
           (smoothing != nullptr && smoothing->is_static);
  });
  *is_random = interface::any_quantizer(recipe->recipe, [](const fp8lab::QuantSpec& spec) {
    const auto* const hadamard = spec.transform.as<fp8lab::Hadamard>();
    return spec.rounding == fp8lab::numerics::Rounding::stochastic ||
           (hadamard != nullptr && hadamard->signs == fp8lab::SignSource::drawn);
  });
}

fp8lab_status fp8lab_match_modules(const char* const* patterns, size_t pattern_count,
                                   const fp8lab_module* modules, size_t count, int32_t* found) {
  return guarded([&] {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < pattern_count; ++i) {
      texts.push_back(text_of(patterns[i], "patterns"));
    }
    const auto matches = interface::match(texts, interface::modules_from(modules, count));
    for (std::size_t i = 0; i < count; ++i) {
      found[i] = matches[i] ? static_cast<std::int32_t>(*matches[i]) : -1;
    }
  });
}

fp8lab_status fp8lab_recipe_choose(const fp8lab_recipe* recipe, const fp8lab_module* modules,
                                   size_t count, int32_t* numerics) {
  return guarded([&] {
    const fp8lab::Recipe& source = given(recipe, "recipe").recipe;
    interface::require_linear_layers_alone(source);
    const auto chosen = interface::recipes_of(source, interface::modules_from(modules, count));
    const std::vector<const fp8lab::LinearRecipe*> choices = interface::quantized_layers(source);
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = std::find(choices.begin(), choices.end(), chosen[i]);
      numerics[i] = chosen[i] == nullptr ? FP8LAB_HIGH_PRECISION
                                         : static_cast<std::int32_t>(place - choices.begin());
    }
  });
}

fp8lab_status fp8lab_linear_new(fp8lab_device* device, const fp8lab_recipe* recipe,
                                const fp8lab_linear_description* description, void* stream,
                                fp8lab_linear** linear) {
  return guarded([&] {
    const fp8lab::Recipe& source = given(recipe, "recipe").recipe;
    interface::require_linear_layers_alone(source);
    const interface::LayerDescription layer =
        interface::description_of(source, given(description, "description"));
    interface::Device& there = given(device, "device").device;
    fp8lab_linear*& result = given(linear, "linear");
    auto handle = std::make_unique<fp8lab_linear>();
    {
      const interface::Device::Turn turn(there, stream);
      handle->layer = std::make_unique<interface::LinearLayer>(there, turn, layer);
    }
    result = handle.release();
  });
}

void fp8lab_linear_free(fp8lab_linear* linear) { delete linear; }

int64_t fp8lab_linear_workspace_bytes(const fp8lab_linear* linear) {
  return linear->layer->workspace_bytes();
}

fp8lab_status fp8lab_linear_forward(fp8lab_linear* linear, const fp8lab_linear_pass* pass,
                                    const void* bias, void* y) {
  return guarded([&] {
    const auto& [moment, rows, workspace, stream, x, w] = interface::checked(pass);
    interface::require(y, "y");
    given(linear, "linear")
        .layer->forward(interface::moment_of(moment), rows, {x, w, bias, y}, workspace, stream);
  });
}

fp8lab_status fp8lab_linear_backward(fp8lab_linear* linear, const fp8lab_linear_pass* pass,
                                     const void* dy, void* dx, void* dw, void* dbias) {
  return guarded([&] {
    const auto& [moment, rows, workspace, stream, x, w] = interface::checked(pass);
    interface::require(dy, "dy");
    given(linear, "linear")
        .layer->backward(interface::moment_of(moment), rows, {x, w, dy, dx, dw, dbias}, workspace,
                         stream);
  });
}

fp8lab_status fp8lab_linear_end_step(fp8lab_linear* linear, void* stream) {
  return guarded([&] { given(linear, "linear").layer->end_step(stream); });
}

void fp8lab_linear_state(const fp8lab_linear* linear, size_t index, const char** name,
                         int64_t* length) {
  const std::vector<interface::LayerState>& states = linear->layer->states();
  const bool is_there = index < states.size();
  *name = is_there ? states[index].name.c_str() : nullptr;
  *length = is_there ? states[index].values.size() : 0;
}

fp8lab_status fp8lab_linear_read_state(fp8lab_linear* linear, size_t index, void* stream,
                                       float* values, int64_t* steps) {
  return guarded([&] { *steps = linear->layer->read_state(index, values, stream); });
}

fp8lab_status fp8lab_linear_write_state(fp8lab_linear* linear, size_t index, void* stream,
                                        const float* values, int64_t steps) {
  return guarded([&] { linear->layer->write_state(index, values, steps, stream); });
}

size_t fp8lab_linear_histories(const fp8lab_linear* linear) {
  return linear->layer->history_count();
}

fp8lab_status fp8lab_linear_read_amaxes(fp8lab_linear* linear, void* stream, float* amaxes) {
  return guarded([&] { linear->layer->read_amaxes(amaxes, stream); });
}

fp8lab_status fp8lab_linear_write_amaxes(fp8lab_linear* linear, void* stream, const float* amaxes) {
  return guarded([&] { linear->layer->write_amaxes(amaxes, stream); });
}
