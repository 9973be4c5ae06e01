// The complete description of a run: model, stages, data, optimizer, logging.
// Read strictly from TOML.
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
#include "src/architecture/live_range.hpp"
#include "src/architecture/model_config.hpp"
#include "src/io/hdf5/study_design.hpp"

namespace fp8lab {

enum class DataKind : std::uint8_t {
  arithmetic,  ///< the embedded generator of worded arithmetic
  text,        ///< plain text files, documents separated by blank lines
  jsonl,       ///< JSON lines: {"question","answer"}, {"messages"} or {"text"}
  tokens,      ///< token shards of `fp8lab.tokens`, llm.c, llmq or Megatron (src/data/README.md)
};

enum class DataForm : std::uint8_t {
  running_text,     ///< trains on every token (pretrain, cpt)
  prompt_response,  ///< masks the prompt (sft)
};

/// How to split a file of tokens without document boundaries. -1: unused; at most one field is set.
struct DocumentDelimiter {
  std::int64_t begin = -1;  ///< the token that starts every document
  std::int64_t end = -1;    ///< the token that ends every document
  bool operator==(const DocumentDelimiter&) const = default;
};

/// One source of documents.
struct SourceConfig {
  DataKind kind = DataKind::arithmetic;
  std::vector<std::filesystem::path> paths;  ///< files in order; for tokens also folders
  double range_begin = 0.0;  ///< fraction of the documents, [begin, end), in file order
  double range_end = 1.0;
  DocumentDelimiter delimiter;        ///< tokens: delimiter for files without document boundaries
  std::vector<std::string> families;  ///< arithmetic: problem families; empty for all
  std::int64_t problems = 20000;      ///< arithmetic: size of the generated corpus
  std::uint64_t corpus_seed = 1;      ///< arithmetic: seed that selects the corpus
  bool held_out = false;              ///< arithmetic: problems disjoint from every training corpus
  double weight = 1.0;                ///< relative share of a mixture's tokens
  bool operator==(const SourceConfig&) const = default;
};

/// The documents of a stage or of an evaluation.
struct DataConfig {
  DataForm form = DataForm::running_text;
  std::vector<SourceConfig> sources = {SourceConfig{}};  ///< one, or those of a mixture
  bool operator==(const DataConfig&) const = default;
};

enum class StageKind : std::uint8_t { pretrain, cpt, sft };
enum class ScheduleKind : std::uint8_t { wsd, cosine, linear, constant };
/// Shape of the decay from `peak` to `final` in a wsd schedule.
enum class DecayShape : std::uint8_t { cosine, linear, one_minus_sqrt };

inline constexpr double kLargestRate = 10;  ///< of learning

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
  outlier_channels,  ///< scales channels up; keeps the function
  aligned_swiglu,    ///< makes gates a multiple of their other half; changes the function
  spike,             ///< large activations in one step, visible to quantizers only
};

/// A change to the model at a given step that tests its numerics; the same under every
/// recipe (src/model/stress.hpp).
struct StressConfig {
  StressKind kind = StressKind::outlier_channels;
  std::int64_t at_step = 0;  ///< steps of the stage before the stress is applied
  std::int64_t channels = 1;
  double gain = 1.0;                ///< outlier_channels: a power of two
  std::int64_t over_steps = 0;      ///< outlier_channels: steps until the gain is reached; 0: one
  double factor = 1.0;              ///< aligned_swiglu, spike: a power of two
  std::string layers = "layers.*";  ///< aligned_swiglu: pattern of layers, as in recipes
  bool operator==(const StressConfig&) const = default;
};

/// How generation draws the next token (src/evaluation/sampling.hpp).
struct SamplingConfig {
  double temperature = 1.0;  ///< 0: the token with the largest logit
  std::int64_t top_k = 0;    ///< 0: all tokens
  double top_p = 1.0;
  std::int64_t min_new_tokens = 0;  ///< number of tokens before the end token may be drawn
  std::uint64_t seed = 1;
  bool operator==(const SamplingConfig&) const = default;
};

/// pass@k: draws `samples` answers per problem, counts the correct ones, and estimates the
/// probability that at least one of k answers is correct.
struct PassAtKConfig {
  std::int64_t problems = 64;
  std::int64_t samples = 8;
  std::vector<std::int64_t> k = {1};  ///< at most `samples` each
  SamplingConfig sampling;
  bool operator==(const PassAtKConfig&) const = default;
};

/// Generates completions under `recipe` and scores them under the training recipe.
struct RolloutConfig {
  std::string recipe;  ///< name or file; empty: the training recipe
  std::int64_t prompts = 32;
  double clip = 2.0;         ///< ratio above which a token counts as clipped
  std::int64_t bucket = 32;  ///< number of positions whose gaps are averaged together
  SamplingConfig sampling;
  bool operator==(const RolloutConfig&) const = default;
};

struct EvalConfig {
  DataConfig data;
  std::int64_t every_steps = 50;  ///< interval in steps; also evaluated at the end of the stage
  std::int64_t sequences = 16;    ///< packed sequences of the held-out loss
  bool weights_in_bf16 = true;    ///< also measures the held-out loss in BF16 after the stage
  double sharpness = 0.0;         ///< epsilon of src/evaluation/sharpness.hpp; 0: not measured
  std::int64_t exact_match = 0;   ///< greedy answers compared at the stage's end; 0: none
  std::int64_t max_new_tokens = 64;
  // The following are evaluated at the end of the stage, if they are set.
  std::filesystem::path multiple_choice;  ///< file of questions; empty: none
  std::optional<PassAtKConfig> pass_at_k;
  std::optional<RolloutConfig> rollout;
  bool operator==(const EvalConfig&) const = default;
};

/// A change of the linear layers' recipe within a stage.
struct RecipeSwitch {
  std::int64_t step = 0;  ///< steps of the stage before the change
  std::string recipe;     ///< name or file
  bool operator==(const RecipeSwitch&) const = default;
};

/// Criteria that make a stage fall back (src/train/step/fallback.hpp). 0: criterion not used.
struct FallbackCriteria {
  double loss_spike = 0.0;     ///< ratio of the loss to its running mean
  double gradient_norm = 0.0;  ///< ratio of the norm of all gradients to its running mean
  double saturation = 0.0;     ///< share of saturated elements of an operand, at a logged step
  bool nonfinite = false;      ///< a non-finite loss or gradient norm; the step's update is skipped
  std::int64_t window = 16;    ///< length of the running means, in steps
  bool operator==(const FallbackCriteria&) const = default;
};

/// The recipe that a stage uses after the step at which a criterion is met.
struct FallbackConfig {
  std::string recipe;  ///< name or file
  FallbackCriteria when;
  bool operator==(const FallbackConfig&) const = default;
};

/// What a stage minimizes (src/objectives).
enum class ObjectiveKind : std::uint8_t { cross_entropy, policy_gradient };

struct ObjectiveConfig {
  ObjectiveKind kind = ObjectiveKind::cross_entropy;
  bool operator==(const ObjectiveConfig&) const = default;
};

struct StageConfig {
  std::string name;
  StageKind kind = StageKind::pretrain;
  DataConfig data;
  std::int64_t steps = 100;
  std::int64_t batch_sequences = 4;        ///< sequences in one optimizer step
  std::int64_t micro_batch_sequences = 4;  ///< sequences in one pass; divides the batch
  std::int64_t sequence_length = 256;
  LearningRateSchedule learning_rate;
  ObjectiveConfig objective;
  std::optional<EvalConfig> eval;
  std::vector<StressConfig> stress;
  std::string recipe;           ///< name or file; empty: the run's recipe
  bool reset_optimizer = true;  ///< resets the moments to zero at the start of the stage
  /// Delayed scaling starts with an empty history, as in a new run.
  bool reset_amax_history = false;
  /// The data start from their beginning, even if an earlier stage of the
  /// same kind read part of them.
  bool restart_data = false;
  std::vector<RecipeSwitch> recipe_at;     ///< ascending
  std::optional<FallbackConfig> fallback;  ///< disables recipe_at once it is in effect
  bool operator==(const StageConfig&) const = default;
};

/// How the parameters whose name matches train. If several groups match, the first applies.
/// The rule of a group's parameters where the optimizer's is muon.
enum class GroupRule : std::uint8_t {
  automatic,  ///< muon for the weights of linear layers but the head's, adamw for the others
  adamw,
  muon,  ///< for matrices; adamw for vectors
};

struct OptimizerGroup {
  std::string match;           ///< pattern of layer_pattern_matches: "layers.*.mlp", "embedding"
  float learning_rate = 1.0f;  ///< factor of the stage's learning rate
  /// Above 0: the rate of a matrix with `in` columns has the factor sqrt(base_inputs / in) as well.
  std::int64_t base_inputs = 0;
  float weight_decay = -1.0f;  ///< below 0: the value that applies without the group
  bool frozen = false;         ///< no gradients, no moments, no updates
  GroupRule rule = GroupRule::automatic;
  bool operator==(const OptimizerGroup&) const = default;
};

/// The update rule, and the storage formats of the optimizer's states (spec/state_rules.hpp).
struct OptimizerConfig {
  UpdateSpec update;
  QuantSpec weights = plain_state(DType::f32);  ///< updated weights; bf16: no FP32 master
  /// Format of the gradients of a whole step. bf16: applies to the weights of linear layers, in
  /// steps of one micro-batch.
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
  std::int64_t update_errors_every_steps = 0;  ///< UpdateErrors rows of /scores; 0: never
  std::int64_t checkpoint_every_steps = 100;   ///< checkpoints; 0: only at a stage's end
  bool hash_every_step = true;
  NonfinitePolicy nonfinite = NonfinitePolicy::stop;
  double print_every_seconds = 1.0;  ///< interval of progress lines outside a terminal
};

/// Warning levels of the online detectors of imminent training failure
/// (src/train/watch/early_warning.hpp).
struct WarningsConfig {
  bool enabled = true;
  double outlier_channels = 6.0;   ///< in deviations
  double swiglu_alignment = 0.85;  ///< share of the way from a start to alignment
  double kurtosis = 12.0;          ///< in deviations
  double scale_drift = 12.0;       ///< in deviations
  double amax_lag = 4.0;           ///< as a ratio
  double gradient_norm = 12.0;     ///< in deviations
  bool operator==(const WarningsConfig&) const = default;
};

/// Maps each layer of the grown model to the layer of the shallower model that it copies.
enum class GrowthOrder : std::uint8_t {
  interpose,  ///< copies follow their layer: 0 0 1 1
  stack,      ///< the whole stack is repeated: 0 1 0 1
};

/// Depth growth: the run's model starts from the weights of one with fewer layers ("Recycling
/// pretrained checkpoints: orthogonal growth of mixture-of-experts").
struct GrowthConfig {
  std::int64_t from_layers = 1;  ///< layers of init_from; divide those of the model
  GrowthOrder order = GrowthOrder::interpose;
  /// Copies contribute nothing to the residual stream: the output weights of their
  /// attention and feed-forward blocks start at zero, so that the grown model computes the
  /// same function as init_from.
  bool silent_copies = false;
  bool operator==(const GrowthConfig&) const = default;
};

struct AttentionConfig {
  std::int64_t kv_tile = 64;
  std::int64_t q_tile = 64;
};

/// Lifetime of the quantized weights of linear layers.
enum class WeightCodes : std::uint8_t {
  keep,    ///< both orientations are kept for the whole step
  remake,  ///< one orientation is quantized again for each product
};

/// What a step keeps in memory. Keeping less costs time for recomputation.
struct MemoryConfig {
  Recompute recompute = Recompute::none;
  WeightCodes weight_codes = WeightCodes::keep;
  /// Tokens per chunk of logits in memory; divides the tokens of a micro-batch. 0: all of them.
  std::int64_t loss_chunk = 0;
  bool operator==(const MemoryConfig&) const = default;
};

/// How the batch of a step is divided.
struct ParallelConfig {
  /// Parts of the batch whose gradients are computed separately and added as a binary tree; a power
  /// of two that divides the batch. A pass holds at most one shard.
  std::int64_t shards = 1;
  bool operator==(const ParallelConfig&) const = default;
};

/// TOML texts of recipes. The keys are the names or paths by which a run file refers to them.
using RecipeTexts = std::map<std::string, std::string>;

struct RunConfig {
  std::string name = "run";
  std::string recipe = "bf16";  ///< name or file
  std::string backend = "cpu";  ///< cpu, truth or cuda
  std::uint64_t seed = 1;
  /// Weights that the first stage starts from: a checkpoint, a Hugging Face folder, or a
  /// safetensors file; empty: random. If the run has no [model], the folder's
  /// config.json defines the model.
  std::filesystem::path init_from;
  /// Names of the error sources (src/error_sources) that are replaced by exact arithmetic, or
  /// "all", or, as the only entry, "all but NAME".
  std::vector<std::string> exact;
  std::optional<GrowthConfig> growth;  ///< depth growth of the weights of init_from
  ModelConfig model;
  OptimizerConfig optimizer;
  LoggingConfig logging;
  WarningsConfig warnings;
  AttentionConfig attention;
  MemoryConfig memory;
  ParallelConfig parallel;
  std::vector<StageConfig> stages;
  RecipeTexts recorded;  ///< recipes stored in the run file; replace recipe files

  /// What reading changed, for the notes of a run.
  std::vector<std::string> notes;

  std::string text;  ///< result of to_toml: stored with the run; can be run again
  /// 16 hex digits, XXH3-64 of all keys that have an effect, are not at their default, and identify
  /// the configuration. The run's name, its backend, and the spelling of anything hashed by its
  /// content (recipes, data, questions, initial weights) are left out
  /// (src/train/checkpoint/identity.hpp).
  std::string hash;
};

/// Assignment "dotted.key=value" from --set or a study axis. The value is TOML ("3", "\"bf16\"",
/// "[1,2]"); a bare word that is not TOML is read as a string. "stages.NAME.key" and
/// "stages.*.key" address stages.
struct Assignment {
  std::string key;
  std::string value;
  std::string place = {};  ///< file:line:column in a study file; empty: the command line
};

inline constexpr double kLargestScale = 1000;

/// Throws Error, "WHERE SCALE: ...", unless the scale is above 0 and at most
/// the largest accepted one.
void check_scale(double scale, const std::string& where);

/// Reads `file` and applies `assignments` in order, then multiplies every key that counts training
/// steps by `scale`, rounded to the nearest integer, at least 1. Fractions refer to the scaled
/// steps. Relative data paths are resolved against the working directory. Throws Error with
/// file:line for unknown keys, wrong types and impossible values.
RunConfig load_run_config(const std::filesystem::path& file,
                          const std::vector<Assignment>& assignments, double scale = 1.0);

/// Calls load_run_config for a built-in preset. Throws Error that lists the known names.
RunConfig load_preset(const std::string& name, const std::vector<Assignment>& assignments,
                      double scale = 1.0);

/// Like load_run_config, but reads `text`; messages name `origin` as the file. Recipes named in
/// `recorded` are taken from there, even if files of those names exist.
RunConfig parse_run_config(const std::string& text, const std::string& origin,
                           const std::vector<Assignment>& assignments, double scale = 1.0,
                           const RecipeTexts& recorded = {});

/// Returns the complete configuration as TOML, with every key that has an effect. parse_run_config
/// reads it back unchanged. load_run_config and parse_run_config store it in RunConfig::text.
std::string to_toml(const RunConfig& config);

/// Like to_toml, but leaves out keys at their defaults, so that new keys do not change the text.
/// parse_run_config reads it back unchanged.
std::string canonical_text(const RunConfig& config);

/// One arm of a study.
struct StudyArm {
  std::string name;  ///< folder name, unique, for example "infir2-seed1"
  std::vector<Assignment> assignments;
  std::string shared_run;  ///< name of the shared run that the arm starts from; empty: none
  bool is_alone = false;   ///< shared = false: own stages, from own initial weights
};

/// A run of a study's shared stages.
struct SharedRun {
  std::string name;  ///< folder name: "shared", or with `shared_axes` for example "shared-seed1"
  std::vector<Assignment> assignments;
};

/// A grid of runs over one base configuration.
struct StudyConfig {
  std::string name;
  std::string title;                       ///< one-line title of the report
  std::filesystem::path base;              ///< run configuration file, relative to the study file
  std::vector<Assignment> assignments;     ///< assignments applied to every arm first
  double scale = 1.0;                      ///< factor of the steps of every run
  std::vector<std::string> shared_stages;  ///< leading stages that the arms start from
  std::vector<std::string> shared_axes;    ///< keys with one shared run for each value
  std::vector<SharedRun> shared_runs;      ///< in the order of the arms that need them
  std::string baseline = "bf16";           ///< recipe that others are compared with
  std::vector<Assignment> baseline_set;    ///< additional settings of baseline arms; usually none
  /// The recipes that stages of the base configuration name themselves, by stage.
  std::map<std::string, std::vector<std::string>> stage_recipes;
  std::vector<StudyArm> arms;         ///< the expanded grid, in order
  std::optional<StudyDesign> design;  ///< table [design]; nothing: the study states no design
  std::string text;  ///< TOML of the study; assignments from elsewhere are appended as comments
  std::string hash;  ///< of `text` and of every run's resolved configuration
};

/// Returns true if the arm can be a baseline as far as recipes are concerned: its recipe is the
/// study's baseline, no error source is exact, and each stage uses either that recipe or the
/// recipes of the base configuration.
bool runs_baseline(const StudyConfig& study, const RunConfig& arm);

/// Returns the configuration of one run of the study, with all its stages. Throws Error that names
/// the study and `what`, for example "arm 'bf16'".
RunConfig configure(const StudyConfig& study, const std::string& what,
                    const std::vector<Assignment>& assignments);

/// Like `configure` for an arm, but with the settings of baselines instead of the arm's own. Except
/// for the recipe, the result is the configuration of the run that the arm is compared with.
RunConfig configure_as_baseline(const StudyConfig& study, const StudyArm& arm);

/// Reads `file` and checks every run of the study. `assignments` (--set) are applied after the
/// file's own [set]; `scale` replaces the file's own scale. Throws Error with file:line.
StudyConfig load_study_config(const std::filesystem::path& file,
                              const std::vector<Assignment>& assignments = {},
                              std::optional<double> scale = std::nullopt);

/// Loads a model by name (built in), by the path of its TOML file, or from a Hugging Face folder.
/// Throws Error that lists the known names.
ModelConfig load_model(const std::string& name_or_path);

/// Loads a recipe by name (built in) or by file path. Throws Error that lists the known names.
Recipe load_recipe(const std::string& name_or_path);
/// Returns the recipe recorded under `name` in the run file, else load_recipe(name).
Recipe load_recipe(const std::string& name, const RecipeTexts& recorded);
/// Names of the built-in recipes, sorted.
std::vector<std::string> builtin_recipe_names();
/// Parses the text of a file of one recipe. Throws Error with file:line; also for a file with axes.
Recipe parse_recipe(const std::string& text, const std::string& origin);
/// Parses the text of any recipe file: one recipe, or one for each combination of its axes.
std::vector<Recipe> parse_recipes(const std::string& text, const std::string& origin);

}  // namespace fp8lab
