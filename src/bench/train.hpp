// Speed of a whole training step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// One way of taking a step: wall seconds of each, from the first operation to the results on the
/// host.
struct StepTiming {
  std::string name;
  std::vector<double> seconds;

  double median() const;
};

/// Operations of one kind in a step of one micro-batch, each waited for: small ones come out dear.
struct KindTiming {
  std::string kind;
  WorkClass work_class = WorkClass::elementwise;
  std::int64_t calls = 0;
  double seconds = 0;   ///< of all calls
  double rate = 0;      ///< units of work a second: multiply-adds, or elements read and written
  double of_bound = 0;  ///< the rate over the bound of its class
};

struct TrainBench {
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;         ///< of a step
  double multiply_adds = 0;        ///< of a step's products and attention
  std::int64_t planned_bytes = 0;  ///< of memory for the stage
  std::vector<StepTiming> steps;   ///< plain; with a hash of the weights; with statistics as well
  std::vector<KindTiming> kinds;   ///< longest first
  /// Measured beside it: multiply-adds a second of a large BF16 product, elements a second that a
  /// large BF16 copy reads and writes.
  double product_bound = 0, copy_bound = 0;
};

/// Steps of the first stage of `config` from random weights on random tokens, after two that are
/// not counted. Memory is given back.
TrainBench bench_train(const RunConfig& config, Backend& backend, int repeats);

}  // namespace fp8lab
