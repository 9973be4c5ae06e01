// Benchmark of a whole training step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/label.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// One way of running a step: wall time in seconds of each, from the first operation to
/// the results on the host.
struct StepTiming {
  std::string name;
  std::vector<double> seconds;

  double median() const;
};

/// One phase of a step: seconds of each step, the wait for the operations of the phase included.
/// No graph is replayed, and a phase does not overlap the next one.
struct PhaseTiming {
  Phase phase = Phase::load;
  std::vector<double> seconds;

  double median() const;
};

/// Operations of one kind in a step of one micro-batch a shard. Each is waited for, which
/// overstates the cost of small ones.
struct KindTiming {
  std::string kind;
  WorkClass work_class = WorkClass::elementwise;
  std::int64_t calls = 0;
  double seconds = 0;   ///< sum over all calls
  double rate = 0;      ///< units of work per second: multiply-adds, or elements read and written
  double of_bound = 0;  ///< rate / bound of its class
};

struct TrainBench {
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;          ///< tokens per step
  double multiply_adds = 0;         ///< multiply-adds of a step's GEMMs and attention
  std::int64_t planned_bytes = 0;   ///< planned memory of the stage
  std::vector<StepTiming> steps;    ///< plain; with a hash of the weights; also with statistics
  std::vector<PhaseTiming> phases;  ///< in the order of a step; several micro-batches are added up
  std::vector<KindTiming> kinds;    ///< longest first
  /// Reference rates: multiply-adds per second of a large BF16 GEMM, and elements per second that a
  /// large BF16 copy reads and writes.
  double product_bound = 0, copy_bound = 0;
};

/// Measures steps of the first stage of `config` from random weights on random tokens, after two
/// warm-up steps. Releases its memory.
TrainBench bench_train(const RunConfig& config, Backend& backend, int repeats);

}  // namespace fp8lab
