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

}  // namespace fp8lab
