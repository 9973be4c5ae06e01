// Models by their names on the Hugging Face Hub, where they have been downloaded.
#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// The folder of the model `name`, "ORGANIZATION/MODEL", in the local cache of the Hub: the
/// snapshot that its branch main refers to. Looked up in $HF_HUB_CACHE, else $HF_HOME/hub, else
/// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. `name` itself where something
/// lies at that path, for other names, and for models that are not in the cache.
std::string model_path(const std::string& name);

/// The same. Throws Error with the command that downloads it where `name` can only be that of a
/// model of the Hub that is not in the cache: no path, and in no folder that is here.
std::string require_model_path(const std::string& name);

}  // namespace fp8lab
