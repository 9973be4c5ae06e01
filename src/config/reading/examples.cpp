#include "src/config/reading/examples.hpp"

#include <sstream>

#include "src/config/key_help.hpp"

namespace fp8lab {
namespace {

constexpr const char* kRun =
    R"(# One stage of pre-training of the built-in model "tiny" on built-in data.
name = "mine"
recipe = "infir2"        # fp8lab recipes list, or the path of a recipe file
model = "tiny"           # fp8lab models, or a Hugging Face folder
seed = 1

[optimizer]
kind = "adamw"
weight_decay = 0.1
clip_norm = 1.0

[logging]
statistics_every_steps = 10
checkpoint_every_steps = 20

[[stages]]
name = "pretrain"
kind = "pretrain"
steps = 40
batch_sequences = 4      # sequences of a step
sequence_length = 128    # tokens

[stages.data]
kind = "arithmetic"      # or "text", "jsonl", "tokens" with path = "FILE"
form = "running_text"

[stages.learning_rate]
kind = "wsd"             # warm-up, stable, decay
peak = 1e-3
final = 1e-4
warmup_steps = 0.1       # with a point: a fraction of the stage's steps
decay_steps = 0.25

[stages.eval]
every_steps = 20
sequences = 8            # held-out
)";

constexpr const char* kRecipe =
    R"(# E4M3 with power-of-two scales: activations and gradients in groups of 128 along K, weights in
# blocks of 128 x 128, FP32 promotion every 128 elements of K.
name = "mine"
summary = "E4M3, 1x128 activations and gradients, 128x128 weights"

[slots.default]          # of all operands
format = "e4m3fn"
scale_format = "pow2"

[slots.x]                # of x in all GEMMs; [slots.wgrad.x] is of one
tile = "1x128"

[slots.w]
tile = "128x128"

[slots.dy]
tile = "1x128"

[gemm]                   # of all GEMMs; [gemm.wgrad] is of one
accumulator = "sm90_wgmma_fp8"   # fp8lab info --accumulators
schedule = "promote:128"
output = "bf16"

[gemm.wgrad]
output = "fp32"

[keep_high_precision]
modules = ["lm_head"]
)";

constexpr const char* kStudy =
    R"(# Two recipes and the baseline, two seeds each, which begin from one BF16 pre-training a seed.
name = "mine"
title = "What do two FP8 recipes cost?"
base = "quickstart"      # a preset (fp8lab presets), or the path of a run file from this file
baseline = "bf16"        # the recipe that the others are compared with
shared_stages = ["pretrain"]

[design]                 # stated before the first run
margin = 0.05

[shared]                 # the runs of the shared stages
axes = ["seed"]
set = { recipe = "bf16" }

[set]                    # of every run
stages.pretrain.steps = 40
stages.cpt.steps = 20
stages.sft.steps = 10

[[axis]]                 # all combinations of the values of all axes are arms
key = "recipe"
values = ["bf16", "infir2", "te_delayed"]

[[axis]]
key = "seed"
values = [1, 2]

[[arm]]                  # one more
name = "infir2-half_rate"
[arm.set]
recipe = "infir2"
seed = 1
stages.cpt.learning_rate.peak = 5e-4
)";

std::string commented(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    result += line.empty() ? "#\n" : "# " + line + "\n";
  }
  return result;
}

}  // namespace

std::string run_example() { return kRun; }
std::string recipe_example() { return kRecipe; }
std::string study_example() { return kStudy; }

std::string run_template() { return run_example() + "\n" + commented(run_key_list()); }
std::string recipe_template() { return recipe_example() + "\n" + commented(recipe_key_list()); }
std::string study_template() { return study_example() + "\n" + commented(study_key_list()); }

}  // namespace fp8lab
