#include "src/cli/ranks.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "emulation/base/input_error.hpp"

namespace fp8lab::cli {
namespace {

struct Starter {
  const char* rank;
  const char* count;
  const char* on_this_machine;
};

constexpr std::array<Starter, 3> kStarters = {{
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"},
}};

int number_in(const char* variable, int least, int most) {
  const char* text = std::getenv(variable);
  int number = 0;
  const char* end = text == nullptr ? nullptr : text + std::strlen(text);
  if (text != nullptr && std::from_chars(text, end, number) == std::from_chars_result{end, {}} &&
      number >= least && number <= most) {
    return number;
  }
  throw InputError({.where = "ablate",
                    .key = "--launcher",
                    .found = "mpi",
                    .reason = fmt::format(": {} is '{}'", variable, text == nullptr ? "" : text),
                    .accepted = fmt::format("a number from {} to {}", least, most)});
}

}  // namespace

StartedRank rank_of_this_process() {
  constexpr int kMost = 1000000;
  for (const Starter& starter : kStarters) {
    if (std::getenv(starter.rank) == nullptr) continue;
    StartedRank started;
    started.rank.count = number_in(starter.count, 1, kMost);
    started.rank.place = number_in(starter.rank, 0, started.rank.count - 1);
    if (std::getenv(starter.on_this_machine) != nullptr) {
      started.on_this_machine = number_in(starter.on_this_machine, 1, kMost);
    }
    return started;
  }
  throw InputError({.where = "ablate",
                    .key = "--launcher",
                    .found = "mpi",
                    .reason = ": no rank in the environment; start it as mpirun -n N fp8lab ablate "
                              "--launcher mpi ..., or by srun"});
}

}  // namespace fp8lab::cli
