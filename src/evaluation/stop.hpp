// Ending an evaluation before it has a result.
#pragma once

#include <atomic>
#include <stdexcept>

namespace fp8lab {

/// Thrown by evaluations whose flag was raised. Delayed scales are as before; the evaluation can be
/// made again.
class EvaluationStopped : public std::runtime_error {
 public:
  EvaluationStopped() : std::runtime_error("evaluation interrupted") {}
};

/// Throws EvaluationStopped when `flag`, unless null, is raised.
inline void throw_if_raised(const std::atomic<bool>* flag) {
  if (flag != nullptr && flag->load()) throw EvaluationStopped();
}

}  // namespace fp8lab
