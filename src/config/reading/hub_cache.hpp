// Finds models of the Hugging Face Hub by name in the local download cache.
#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// Returns the folder of the model `name`, "ORGANIZATION/MODEL", in the local cache of the Hub: the
/// snapshot that its branch main refers to. The cache is $HF_HUB_CACHE, else $HF_HOME/hub, else
/// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Returns `name` unchanged if that
/// path exists, if it has another form, or if the model is not in the cache.
std::string model_path(const std::string& name);

/// Like model_path, but throws Error with the download command if `name` can only be a model of the
/// Hub that is not in the cache: it is not an existing path and its folder does not exist.
std::string require_model_path(const std::string& name);

/// Returns the weights that `init_from` names: as model_path, and for the folder of a run or its
/// run.h5 the run's checkpoint if it has one.
std::string start_path(const std::string& name);

/// What commands accept as a model, for messages.
inline constexpr const char* kAcceptedModels =
    "a Hugging Face folder, the folder of a run, a checkpoint, a safetensors file, or "
    "ORGANIZATION/MODEL in the Hub's cache";

/// Like require_model_path, but throws Error with the nearest models also if there is no such path.
std::string existing_model_path(const std::string& name);

/// Returns " (did you mean 'models/b'?)" with what is named like `name` beside it, folders and
/// safetensors files, and with models in the Hub's cache; empty if nothing is near.
std::string did_you_mean_model(const std::string& name);

}  // namespace fp8lab
