#include "src/model/weights/adapter_export.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/model/dialects/folder_writer.hpp"
#include "src/model/weights/model_export.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

/// "q_proj" of "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
std::string target_of(const std::string& name) {
  const std::string module = name.substr(0, name.find(".lora_"));
  return module.substr(module.rfind('.') + 1);
}

}  // namespace

void export_adapters(const ModelTensors& tensors, const ModelConfig& model, StoredType dtype,
                     const std::string& base, const std::filesystem::path& folder,
                     const PartReport& report) {
  ModelFolderContent content;
  std::vector<std::size_t> sources;
  std::set<std::string> targets;
  for (std::size_t i = 0; i < tensors.headers().size(); ++i) {
    TensorHeader header = tensors.headers()[i];
    if (header.name.find(".lora_") == std::string::npos) continue;
    if (!header.name.starts_with(kPrefix)) {
      hugging_face_config(model, "bfloat16");  // throws Error for a model of no family
      throw InputError({.noun = "adapter",
                        .key = header.name,
                        .reason = "is of an output that is no module of its own in the files of "
                                  "the model's family",
                        .accepted = "lora_targets that are"});
    }
    targets.insert(target_of(header.name));
    header.type = dtype;
    content.headers.push_back(std::move(header));
    sources.push_back(i);
  }
  nlohmann::ordered_json config;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base.empty() ? nlohmann::json() : nlohmann::json(base);
  config["r"] = model.lora.rank;
  config["lora_alpha"] = model.lora.alpha;
  config["lora_dropout"] = 0.0;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["use_rslora"] = false;
  config["target_modules"] = targets;
  config["inference_mode"] = true;
  content.file = "adapter_model.safetensors";
  content.files["adapter_config.json"] = config.dump(2) + "\n";
  content.produce = [&](std::size_t i) {
    return rounded_values(tensors, sources[i], content.headers[i]);
  };
  write_model_folder(folder, content, report);
}

}  // namespace fp8lab
