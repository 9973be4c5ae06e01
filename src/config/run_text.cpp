#include "src/config/run_text.hpp"

#include <fmt/format.h>

#include "src/config/config_names.hpp"
#include "src/config/model_table.hpp"

namespace fp8lab {
namespace {

const char* truth(bool value) { return value ? "true" : "false"; }

std::string quoted_list(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) {
    text += (text.size() > 1 ? ", " : "") + toml_quoted(item);
  }
  return text + "]";
}

std::string optimizer_text(const OptimizerConfig& optimizer) {
  const AdamWSpec& adamw = optimizer.adamw;
  return fmt::format(
      "\n[optimizer]\nbeta1 = {}\nbeta2 = {}\nepsilon = {}\nweight_decay = {}\nclip_norm = {}\n"
      "first_moment = \"{}\"\nsecond_moment = \"{}\"\n",
      toml_number(adamw.beta1), toml_number(adamw.beta2), toml_number(adamw.epsilon),
      toml_number(adamw.weight_decay), toml_number(adamw.clip_norm),
      word_for(kStorageNames, optimizer.first_moment),
      word_for(kStorageNames, optimizer.second_moment));
}

std::string logging_text(const LoggingConfig& logging) {
  return fmt::format(
      "\n[logging]\nevery_steps = {}\nstatistics_every_steps = {}\ncheckpoint_every_steps = {}\n"
      "hash_every_step = {}\nnonfinite = \"{}\"\n",
      logging.every_steps, logging.statistics_every_steps, logging.checkpoint_every_steps,
      truth(logging.hash_every_step), word_for(kNonfinitePolicyNames, logging.nonfinite));
}

std::string paths_text(const std::vector<std::filesystem::path>& paths) {
  if (paths.size() == 1) return toml_quoted(paths.front().string());
  std::vector<std::string> names;
  for (const std::filesystem::path& path : paths) names.push_back(path.string());
  return quoted_list(names);
}

std::string source_text(const SourceConfig& source) {
  std::string text = fmt::format("range = [{}, {}]\n", toml_number(source.range_begin),
                                 toml_number(source.range_end));
  if (source.kind == DataKind::arithmetic) {
    return text + fmt::format("families = {}\nproblems = {}\ncorpus_seed = {}\nheld_out = {}\n",
                              quoted_list(source.families), source.problems, source.corpus_seed,
                              truth(source.held_out));
  }
  text += fmt::format("path = {}\n", paths_text(source.paths));
  if (source.delimiter.begin >= 0) {
    text += fmt::format("document_begin = {}\n", source.delimiter.begin);
  }
  if (source.delimiter.end >= 0) text += fmt::format("document_end = {}\n", source.delimiter.end);
  return text;
}

std::string data_text(const DataConfig& data, const std::string& path) {
  const std::string form = fmt::format("form = \"{}\"\n", word_for(kDataFormNames, data.form));
  const auto kind = [](const SourceConfig& source) {
    return fmt::format("kind = \"{}\"\n", word_for(kDataKindNames, source.kind));
  };
  if (data.sources.size() == 1) {
    const SourceConfig& source = data.sources.front();
    return fmt::format("\n[{}]\n", path) + kind(source) + form + source_text(source);
  }
  std::string text = fmt::format("\n[{}]\n", path) + form;
  for (const SourceConfig& source : data.sources) {
    text += fmt::format("\n[[{}.sources]]\nweight = {}\n", path, toml_number(source.weight)) +
            kind(source) + source_text(source);
  }
  return text;
}

std::string sampling_text(const SamplingConfig& sampling) {
  return fmt::format("temperature = {}\ntop_k = {}\ntop_p = {}\nmin_new_tokens = {}\nseed = {}\n",
                     toml_number(sampling.temperature), sampling.top_k, toml_number(sampling.top_p),
                     sampling.min_new_tokens, sampling.seed);
}

/// Tables that only some evaluations have.
std::string generation_text(const EvalConfig& eval) {
  std::string text;
  if (const auto& pass = eval.pass_at_k) {
    text += fmt::format("\n[stages.eval.pass_at_k]\nproblems = {}\nsamples = {}\nk = [{}]\n",
                        pass->problems, pass->samples, fmt::join(pass->k, ", ")) +
            sampling_text(pass->sampling);
  }
  if (const auto& rollout = eval.rollout) {
    text +=
        fmt::format("\n[stages.eval.rollout]\nrecipe = {}\nprompts = {}\nclip = {}\nbucket = {}\n",
                    toml_quoted(rollout->recipe), rollout->prompts, toml_number(rollout->clip),
                    rollout->bucket) +
        sampling_text(rollout->sampling);
  }
  return text;
}

std::string stage_text(const StageConfig& stage) {
  const LearningRateSchedule& rate = stage.learning_rate;
  std::string text = fmt::format(
      "\n[[stages]]\nname = {}\nkind = \"{}\"\nsteps = {}\nbatch_sequences = {}\n"
      "micro_batch_sequences = {}\nsequence_length = {}\nrecipe = {}\nreset_optimizer = {}\n"
      "reset_amax_history = {}\nrestart_data = {}\n",
      toml_quoted(stage.name), word_for(kStageKindNames, stage.kind), stage.steps,
      stage.batch_sequences, stage.micro_batch_sequences, stage.sequence_length,
      toml_quoted(stage.recipe), truth(stage.reset_optimizer), truth(stage.reset_amax_history),
      truth(stage.restart_data));
  text += fmt::format(
      "\n[stages.learning_rate]\nkind = \"{}\"\npeak = {}\nfinal = {}\nwarmup_steps = {}\n",
      word_for(kScheduleKindNames, rate.kind), toml_number(rate.peak), toml_number(rate.final),
      rate.warmup_steps);
  if (rate.kind == ScheduleKind::wsd) text += fmt::format("decay_steps = {}\n", rate.decay_steps);
  text += fmt::format("\n[stages.planted_outliers]\nchannels = {}\ngain = {}\n",
                      stage.planted_outliers.channels, toml_number(stage.planted_outliers.gain));
  text += data_text(stage.data, "stages.data");
  if (!stage.eval) return text;
  text += fmt::format(
      "\n[stages.eval]\nevery_steps = {}\nsequences = {}\nexact_match = {}\nmax_new_tokens = {}\n",
      stage.eval->every_steps, stage.eval->sequences, stage.eval->exact_match,
      stage.eval->max_new_tokens);
  if (!stage.eval->multiple_choice.empty()) {
    text +=
        fmt::format("multiple_choice = {}\n", toml_quoted(stage.eval->multiple_choice.string()));
  }
  return text + generation_text(*stage.eval) + data_text(stage.eval->data, "stages.eval.data");
}

}  // namespace

std::string toml_quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += fmt::format("\\{}", c);
    } else if (code < 0x20 || code == 0x7f) {
      result += fmt::format("\\u{:04x}", code);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string to_toml(const RunConfig& config) {
  std::string text =
      fmt::format("name = {}\nrecipe = {}\nbackend = {}\nseed = {}\ninit_from = {}\n",
                  toml_quoted(config.name), toml_quoted(config.recipe), toml_quoted(config.backend),
                  config.seed, toml_quoted(config.init_from.string()));
  text += model_table_text(config.model) + optimizer_text(config.optimizer) +
          logging_text(config.logging);
  text += fmt::format("\n[attention]\nkv_tile = {}\nq_tile = {}\n", config.attention.kv_tile,
                      config.attention.q_tile);
  for (const StageConfig& stage : config.stages) text += stage_text(stage);
  return text;
}

}  // namespace fp8lab
