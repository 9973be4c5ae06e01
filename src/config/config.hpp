// A run described completely: model, stages, data, optimizer, logging. Read from TOML, strictly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/state_rules.hpp"
#include "emulation/spec/update_spec.hpp"
#include "src/io/study_design.hpp"

namespace fp8lab {

enum class RopeType : std::uint8_t {
  unscaled,  ///< "default"
  linear,    ///< every frequency divided by `factor`
  dynamic,   ///< unscaled up to max_position_embeddings, beyond which no sequence goes
  yarn,      ///< Peng et al. 2023 (arXiv:2309.00071): by parts, from beta_fast to beta_slow
  llama3,    ///< by parts, from high_freq_factor to low_freq_factor
};

/// How rotary frequencies are stretched beyond the pre-training length. Names, formulas and
/// defaults are those of transformers 5 (modeling_rope_utils.py).
struct RopeScaling {
  RopeType type = RopeType::unscaled;
  double factor = 1.0;
  std::int64_t original_max_position_embeddings = 0;  ///< yarn and llama3: pre-training length
  double low_freq_factor = 1.0;   ///< llama3: rotations over that length below which all is scaled
  double high_freq_factor = 4.0;  ///< llama3: and above which nothing is
  double beta_fast = 32.0;        ///< yarn: such rotations above which nothing is scaled
  double beta_slow = 1.0;         ///< yarn: and below which all is
  bool truncate = true;           ///< yarn: the ramp between the two begins and ends at whole pairs
  double attention_factor = 0.0;  ///< yarn: of cosines and sines; 0: 0.1 ln(factor) + 1
  bool operator==(const RopeScaling&) const = default;
};

enum class NormKind : std::uint8_t {
  rmsnorm,    ///< Zhang and Sennrich 2019 (arXiv:1910.07467)
  layernorm,  ///< Ba et al. 2016 (arXiv:1607.06450), with weight and bias
};

enum class FeedForwardKind : std::uint8_t {
  swiglu,     ///< silu(gate) * up (Shazeer 2020, arXiv:2002.05202)
  gelu_tanh,  ///< GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)
};

enum class PositionKind : std::uint8_t {
  rope,     ///< queries and keys are rotated (Su et al. 2021, arXiv:2104.09864)
  learned,  ///< a table of max_position_embeddings rows is added to the embedding
};

/// Decoder-only transformer of the Llama, Qwen2, Qwen3 and GPT-2 families; field names follow
/// Hugging Face config.json, whose attention_bias of Llama and Qwen3 is qkv_bias and o_bias.
struct ModelConfig {
  std::int64_t vocab_size = 272;
  std::int64_t hidden_size = 256;
  std::int64_t intermediate_size = 512;
  std::int64_t num_hidden_layers = 2;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_key_value_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t max_position_embeddings = 4096;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  NormKind norm = NormKind::rmsnorm;
  FeedForwardKind feed_forward = FeedForwardKind::swiglu;
  PositionKind positions = PositionKind::rope;
  double rms_norm_eps = 1e-6;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool scaled_residual_init = false;  ///< attention.o and mlp.down begin smaller (GPT-2)
  bool qkv_bias = true;
  bool o_bias = false;
  bool mlp_bias = false;  ///< of the feed-forward layers
  bool qk_norm = false;   ///< RMSNorm over each head of q and k before the rotation (Qwen3)
  bool tie_word_embeddings = true;
  bool operator==(const ModelConfig&) const = default;
};

enum class DataKind : std::uint8_t {
  arithmetic,  ///< the embedded generator of worded arithmetic
  text,        ///< plain text files, documents separated by blank lines
  jsonl,       ///< JSON lines: {"question","answer"}, {"messages"} or {"text"}
  tokens,      ///< token shards of `fp8lab.tokens`, llm.c, llmq or Megatron (src/data/README.md)
};

enum class DataForm : std::uint8_t {
  running_text,     ///< every token is trained on (pretrain, cpt)
  prompt_response,  ///< the prompt is masked (sft)
};

/// How a file of tokens without document boundaries is cut. -1: not at all; at most one is set.
struct DocumentDelimiter {
  std::int64_t begin = -1;  ///< the token that starts every document
  std::int64_t end = -1;    ///< the token that ends every document
  bool operator==(const DocumentDelimiter&) const = default;
};

/// One source of documents.
struct SourceConfig {
  DataKind kind = DataKind::arithmetic;
  std::vector<std::filesystem::path> paths;  ///< files in order; tokens: or folders
  double range_begin = 0.0;  ///< fraction of the documents, [begin, end), in file order
  double range_end = 1.0;
  DocumentDelimiter delimiter;        ///< tokens: of files that do not hold their boundaries
  std::vector<std::string> families;  ///< arithmetic: problem families; empty for all
  std::int64_t problems = 20000;      ///< arithmetic: size of the generated corpus
  std::uint64_t corpus_seed = 1;      ///< arithmetic: which corpus
  bool held_out = false;              ///< arithmetic: problems disjoint from every training corpus
  double weight = 1.0;                ///< share of the tokens of a mixture, relative to the others
  bool operator==(const SourceConfig&) const = default;
};

/// The documents of a stage or of an evaluation.
struct DataConfig {
  DataForm form = DataForm::running_text;
  std::vector<SourceConfig> sources = {SourceConfig{}};  ///< one, or the parts of a mixture
  bool operator==(const DataConfig&) const = default;
};

enum class StageKind : std::uint8_t { pretrain, cpt, sft };
enum class ScheduleKind : std::uint8_t { wsd, cosine, linear, constant };
/// How wsd goes from `peak` to `final`.
enum class DecayShape : std::uint8_t { cosine, linear, one_minus_sqrt };

/// Learning rate over the `steps` of one stage.
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::wsd;
  double peak = 1e-3;
  double final = 1e-4;
  std::int64_t warmup_steps = 10;
  std::int64_t decay_steps = 0;           ///< wsd only: length of the closing decay
  DecayShape decay = DecayShape::cosine;  ///< wsd only
  bool operator==(const LearningRateSchedule&) const = default;
};

enum class StressKind : std::uint8_t {
  outlier_channels,  ///< channels become large, the function stays
  aligned_swiglu,  ///< channels whose gate is a multiple of their other half; the function changes
  spike,           ///< large activations for one step, which only quantizers see
};

/// What a stage does to a model to try its numerics, the same under every recipe
/// (src/model/stress.hpp).
struct StressConfig {
  StressKind kind = StressKind::outlier_channels;
  std::int64_t at_step = 0;  ///< steps of the stage before it
  std::int64_t channels = 1;
  double gain = 1.0;            ///< outlier_channels: a power of two
  std::int64_t over_steps = 0;  ///< outlier_channels: steps in which the gain is reached; 0: one
  double factor = 1.0;          ///< aligned_swiglu, spike: a power of two
  std::string layers = "layers.*";  ///< aligned_swiglu: pattern of layers, as in recipes
  bool operator==(const StressConfig&) const = default;
};

/// How the next token is drawn (src/evaluation/sampling.hpp).
struct SamplingConfig {
  double temperature = 1.0;  ///< 0: the token with the largest logit
  std::int64_t top_k = 0;    ///< 0: all tokens
  double top_p = 1.0;
  std::int64_t min_new_tokens = 0;  ///< before them the end token is never chosen
  std::uint64_t seed = 1;
  bool operator==(const SamplingConfig&) const = default;
};

/// Sampled answers: how many of `samples` are right, and from that the chance that one of k is.
struct PassAtKConfig {
  std::int64_t problems = 64;
  std::int64_t samples = 8;
  std::vector<std::int64_t> k = {1};  ///< at most `samples` each
  SamplingConfig sampling;
  bool operator==(const PassAtKConfig&) const = default;
};

/// Completions generated under `recipe` and scored under the recipe of training.
struct RolloutConfig {
  std::string recipe;  ///< name or file; empty: the recipe of training
  std::int64_t prompts = 32;
  double clip = 2.0;         ///< ratios above it count as clipped
  std::int64_t bucket = 32;  ///< positions whose gaps are averaged together
  SamplingConfig sampling;
  bool operator==(const RolloutConfig&) const = default;
};

struct EvalConfig {
  DataConfig data;
  std::int64_t every_steps = 50;  ///< also at the end of the stage
  std::int64_t sequences = 16;    ///< held-out loss on this many packed sequences
  bool weights_in_bf16 = true;    ///< also the held-out loss in BF16, after the stage
  double sharpness = 0.0;         ///< epsilon of src/evaluation/sharpness.hpp; 0: not measured
  std::int64_t exact_match = 0;   ///< greedy answers compared, end of the stage; 0: none
  std::int64_t max_new_tokens = 64;
  // Taken at the end of the stage, where they are asked for.
  std::filesystem::path multiple_choice;  ///< file of questions; empty: none
  std::optional<PassAtKConfig> pass_at_k;
  std::optional<RolloutConfig> rollout;
  bool operator==(const EvalConfig&) const = default;
};

/// Another recipe for the linear layers, within a stage.
struct RecipeSwitch {
  std::int64_t step = 0;  ///< steps of the stage that are taken before
  std::string recipe;     ///< name or file
  bool operator==(const RecipeSwitch&) const = default;
};

/// What makes a stage fall back (src/train/fallback.hpp). 0: not a criterion.
struct FallbackCriteria {
  double loss_spike = 0.0;     ///< the loss, over its running mean
  double gradient_norm = 0.0;  ///< the norm of all gradients, over its running mean
  double saturation = 0.0;     ///< share of an operand's elements, at a logged step
  bool nonfinite = false;      ///< a loss or gradient norm; the update of that step is left out
  std::int64_t window = 16;    ///< steps of the running means
  bool operator==(const FallbackCriteria&) const = default;
};

/// The recipe with which a stage goes on after the step at which a criterion holds.
struct FallbackConfig {
  std::string recipe;  ///< name or file
  FallbackCriteria when;
  bool operator==(const FallbackConfig&) const = default;
};

struct StageConfig {
  std::string name;
  StageKind kind = StageKind::pretrain;
  DataConfig data;
  std::int64_t steps = 100;
  std::int64_t batch_sequences = 4;        ///< sequences of one optimizer step
  std::int64_t micro_batch_sequences = 4;  ///< sequences of one forward/backward; divides the batch
  std::int64_t sequence_length = 256;
  LearningRateSchedule learning_rate;
  std::optional<EvalConfig> eval;
  std::vector<StressConfig> stress;
  std::string recipe;           ///< name or file; empty: the run's recipe
  bool reset_optimizer = true;  ///< moments start from zero with the stage
  /// Delayed scaling starts without a history, as in a new run.
  bool reset_amax_history = false;
  /// The data start from their beginning, though an earlier stage of the same kind read them.
  bool restart_data = false;
  std::vector<RecipeSwitch> recipe_at;     ///< ascending
  std::optional<FallbackConfig> fallback;  ///< once it has happened, recipe_at does nothing more
  bool operator==(const StageConfig&) const = default;
};

/// Rates of the parameters whose name matches; of several groups the first.
struct OptimizerGroup {
  std::string match;           ///< as layer_pattern_matches reads it, "layers.*.mlp", "embedding"
  float learning_rate = 1.0f;  ///< factor of the stage's learning rate
  float weight_decay = -1.0f;  ///< below 0: as without the group
  bool operator==(const OptimizerGroup&) const = default;
};

/// The update rule, and what the optimizer's states are stored as (spec/state_rules.hpp).
struct OptimizerConfig {
  UpdateSpec update;
  QuantSpec weights = plain_state(DType::f32);  ///< that are updated; bf16: there is no FP32 master
  /// Of a whole step. bf16: of the weights of linear layers, in steps of one micro-batch.
  QuantSpec gradients = plain_state(DType::f32);
  QuantSpec first_moment = plain_state(DType::f32);
  QuantSpec second_moment = plain_state(DType::f32);
  std::vector<OptimizerGroup> groups;
};

/// What to do when the loss or the gradient norm is not finite.
enum class NonfinitePolicy : std::uint8_t { stop, keep_going };

struct LoggingConfig {
  std::int64_t every_steps = 1;                ///< /metrics rows
  std::int64_t statistics_every_steps = 20;    ///< /tensors rows; 0: never
  std::int64_t update_errors_every_steps = 0;  ///< /scores rows of UpdateErrors; 0: never
  std::int64_t checkpoint_every_steps = 100;   ///< 0: only at the end of a stage
  bool hash_every_step = true;
  NonfinitePolicy nonfinite = NonfinitePolicy::stop;
  double print_every_seconds = 1.0;  ///< lines of progress outside a terminal
};

/// Online detectors of training that is about to break (src/train/early_warning.hpp), and from what
/// level on each of them warns.
struct WarningsConfig {
  bool enabled = true;
  double outlier_channels = 6.0;   ///< deviations
  double swiglu_alignment = 0.85;  ///< magnitude of a cosine
  double kurtosis = 12.0;          ///< deviations
  double scale_drift = 12.0;       ///< deviations
  double amax_lag = 4.0;           ///< ratio
  double gradient_norm = 12.0;     ///< deviations
  bool operator==(const WarningsConfig&) const = default;
};

/// Which layer of a shallower model a layer of the grown one copies.
enum class GrowthOrder : std::uint8_t {
  interpose,  ///< each layer is followed by its copies: 0 0 1 1
  stack,      ///< all layers once more: 0 1 0 1
};

/// Depth growth: the run's model starts from the weights of one with fewer layers ("Recycling
/// pretrained checkpoints: orthogonal growth of mixture-of-experts").
struct GrowthConfig {
  std::int64_t from_layers = 1;  ///< of init_from; those of the model are a multiple
  GrowthOrder order = GrowthOrder::interpose;
  /// Copies add nothing to the residual stream: what attention and feed-forward write there starts
  /// at zero, so that the function is that of init_from.
  bool silent_copies = false;
  bool operator==(const GrowthConfig&) const = default;
};

struct AttentionConfig {
  std::int64_t kv_tile = 64;
  std::int64_t q_tile = 64;
};

/// Activation checkpointing: which activations the backward pass computes again, from those before
/// them, and no layer keeps.
enum class Recompute : std::uint8_t {
  none,
  gate_up,       ///< of each layer what goes into the activation, and the norm before it
  feed_forward,  ///< and what comes out of the activation: all that follows the sum behind
                 ///< attention
  layer,         ///< of each layer everything but its input
};

/// How long the quantized weights of linear layers live.
enum class WeightCodes : std::uint8_t {
  keep,    ///< both orientations, for the step
  remake,  ///< one orientation, for one product
};

/// What a step keeps in memory. Each choice costs work for what is computed again.
struct MemoryConfig {
  Recompute recompute = Recompute::none;
  WeightCodes weight_codes = WeightCodes::keep;
  /// Tokens whose logits exist at once; divides those of a micro-batch. 0: all of it.
  std::int64_t loss_chunk = 0;
  bool operator==(const MemoryConfig&) const = default;
};

/// TOML of recipes by what a run file calls them, a name or a path.
using RecipeTexts = std::map<std::string, std::string>;

struct RunConfig {
  std::string name = "run";
  std::string recipe = "bf16";  ///< name or file
  std::string backend = "cpu";  ///< cpu, truth or cuda
  std::uint64_t seed = 1;
  /// Weights that start the first stage: a checkpoint, a Hugging Face folder, or a safetensors
  /// file; empty: random. Without a [model] the run has that of the folder's config.json.
  std::filesystem::path init_from;
  /// Sources of error that exact arithmetic replaces, by their names (src/error_sources), "all", or
  /// alone "all but NAME".
  std::vector<std::string> exact;
  std::optional<GrowthConfig> growth;  ///< of the weights of init_from
  ModelConfig model;
  OptimizerConfig optimizer;
  LoggingConfig logging;
  WarningsConfig warnings;
  AttentionConfig attention;
  MemoryConfig memory;
  std::vector<StageConfig> stages;
  RecipeTexts recorded;  ///< of a run read back from its run file: what its recipes are, wherever

  std::string text;  ///< to_toml: what a run stores, and can be run again
  /// 16 hex digits, XXH3-64 of the keys that matter, are not at their default, and are part of what
  /// tells two configurations apart: not the run's name, its backend, and the spelling of what has
  /// a content of its own: recipes, data, questions, initial weights (src/train/identity.hpp).
  std::string hash;
};

/// Assignment "dotted.key=value" from --set or a study axis; the value is TOML ("3", "\"bf16\"",
/// "[1,2]"); a bare word that is not TOML is taken as a string. "stages.NAME.key" and
/// "stages.*.key" address stages.
struct Assignment {
  std::string key;
  std::string value;
};

inline constexpr double kLargestScale = 1000;

/// Throws Error, "WHERE SCALE: ...", unless the scale of a run is above 0 and at most the largest.
void check_scale(double scale, const std::string& where);

/// Reads `file` and applies `assignments` in order. Then everything that counts steps of training
/// is multiplied by `scale`: rounded to the nearest, at least 1; fractions are of the scaled steps.
/// Relative data paths are resolved against the working directory. Unknown keys, wrong types and
/// impossible values throw Error with file:line.
RunConfig load_run_config(const std::filesystem::path& file,
                          const std::vector<Assignment>& assignments, double scale = 1.0);

/// load_run_config of a preset that comes with the program. Throws Error listing their names.
RunConfig load_preset(const std::string& name, const std::vector<Assignment>& assignments,
                      double scale = 1.0);

/// The same from text; `origin` stands for the file name in messages. Recipes of the names in
/// `recorded` are those, whatever files there are.
RunConfig parse_run_config(const std::string& text, const std::string& origin,
                           const std::vector<Assignment>& assignments, double scale = 1.0,
                           const RecipeTexts& recorded = {});

/// The complete configuration as TOML, every key that matters explicit; parse_run_config reads it
/// back unchanged. load_run_config and parse_run_config store it in RunConfig::text.
std::string to_toml(const RunConfig& config);

/// The same without keys at their defaults, so that it stays as it is when keys are added; reads
/// back unchanged as well.
std::string canonical_text(const RunConfig& config);

/// One point of a study.
struct StudyArm {
  std::string name;  ///< folder name, unique, for example "infir2-seed1"
  std::vector<Assignment> assignments;
  std::string shared_run;  ///< the run of the shared stages that it starts from; empty: none
  bool is_alone = false;   ///< shared = false: its own stages, from its own initial weights
};

/// A run of the shared stages.
struct SharedRun {
  std::string name;  ///< folder name: "shared", with `shared_axes` for example "shared-seed1"
  std::vector<Assignment> assignments;
};

/// A grid of runs over one base configuration.
struct StudyConfig {
  std::string name;
  std::string title;                       ///< one line for the report
  std::filesystem::path base;              ///< run configuration file, relative to the study file
  std::vector<Assignment> assignments;     ///< applied to every arm first
  double scale = 1.0;                      ///< of the steps of every run
  std::vector<std::string> shared_stages;  ///< leading stages that arms start from, run before them
  std::vector<std::string> shared_axes;    ///< keys with a shared run for each value that arms have
  std::vector<SharedRun> shared_runs;      ///< in the order of the arms that need them
  std::string baseline = "bf16";           ///< recipe that the others are compared with
  std::vector<Assignment> baseline_set;    ///< settings that baselines have besides; mostly none
  /// Those that a stage names itself, by stage, of the base configuration.
  std::map<std::string, std::vector<std::string>> stage_recipes;
  std::vector<StudyArm> arms;         ///< the expanded grid, in order
  std::optional<StudyDesign> design;  ///< of [design]; nothing: none is stated
  std::string text;  ///< TOML of the study; assignments from elsewhere follow as comments
  std::string hash;  ///< of `text` and of every run's resolved configuration
};

/// True for an arm that others are compared with, as far as recipes go: its own is the baseline,
/// with all its errors, and no stage has another than that or the base configuration's.
bool runs_baseline(const StudyConfig& study, const RunConfig& arm);

/// The configuration of one run of the study, with all its stages. Throws Error that names the
/// study and `what`, for example "arm 'bf16'".
RunConfig configure(const StudyConfig& study, const std::string& what,
                    const std::vector<Assignment>& assignments);

/// `configure` of an arm with the settings of baselines in place of its own: but for the recipe,
/// that of the run which it is compared with.
RunConfig configure_as_baseline(const StudyConfig& study, const StudyArm& arm);

/// Reads `file`; `assignments` (--set) come after its own [set], and `scale` stands for its own.
/// Every run of the study is checked. Throws Error with file:line.
StudyConfig load_study_config(const std::filesystem::path& file,
                              const std::vector<Assignment>& assignments = {},
                              std::optional<double> scale = std::nullopt);

/// A model by name (built in), by the path of its TOML file, or the one that a Hugging Face folder
/// describes. Throws Error listing the known names.
ModelConfig load_model(const std::string& name_or_path);

/// A recipe by name (built in) or by file path. Throws Error listing the known names.
Recipe load_recipe(const std::string& name_or_path);
/// What `name` stands for in a run: as the run file recorded it, else load_recipe.
Recipe load_recipe(const std::string& name, const RecipeTexts& recorded);
/// Names of the built-in recipes, sorted.
std::vector<std::string> builtin_recipe_names();
/// Parses one recipe file's text.
Recipe parse_recipe(const std::string& text, const std::string& origin);

}  // namespace fp8lab
