// The fp8lab program: the list of its commands.
#include <string>
#include <vector>

#include "src/cli/command.hpp"
#include "src/cli/standard_streams.hpp"
#include "src/cli/wait_policy.hpp"
#include "src/io/files/mapped_file.hpp"

int main(int argc, char** argv) {
  using namespace fp8lab;
  cli::open_standard_streams();
  cli::sleep_when_idle(argv);
  explain_lost_pages();
  const std::vector<cli::Command> commands = {
      {"info", "version, instruction sets, threads, devices", cli::info},
      {"recipes", "list, show or check quantization recipes", cli::recipes},
      {"presets", "the built-in run configurations", cli::presets},
      {"models", "the built-in models", cli::models},
      {"init", "write a run, recipe or study file to begin with", cli::init},
      {"train", "run one configuration through its stages", cli::train},
      {"assess", "what each recipe costs a checkpoint, and where", cli::assess},
      {"eval", "losses, answers, choices and rollouts of a model", cli::eval},
      {"generate", "complete prompts, in the numerics of a recipe", cli::generate},
      {"certify", "whether generation has the bits of training", cli::certify},
      {"data", "what token files hold", cli::data},
      {"ablate", "run every arm of a study; continues where it stopped", cli::ablate},
      {"compare", "the first step, operation and bit where two runs differ", cli::compare},
      {"verify", "whether steps of a run, executed again, have the bits it recorded", cli::verify},
      {"replay", "what the FP8 GEMMs of another program computed", cli::replay},
      {"doctor", "whether the files of a run, study or model are whole", cli::doctor},
      {"export", "a run's model as a folder for transformers, also in FP8", cli::export_command},
      {"convert", "a model between BF16 and the files of quantized models", cli::convert},
      {"report", "tables, figures and a page from run files", cli::report},
      {"validate", "compare codecs and tensor-core models with hardware recordings", cli::validate},
      {"gemm", "what the hardware returns for two matrices", cli::gemm},
      {"quantize", "quantize a matrix or a model and measure the error", cli::quantize},
      {"whatif", "which tensor breaks under which recipe, at one step of a run", cli::whatif},
      {"attribute", "which source of error a gradient has, at one step of a run", cli::attribute},
      {"bench", "speed of the emulator on this machine", cli::bench},
  };
  return cli::run(commands, {argv + 1, argv + argc});
}
