// Ends an evaluation before it has a result.
#pragma once

#include <atomic>
#include <stdexcept>

namespace fp8lab {

/// Thrown by evaluations whose flag was set. Delayed scales are unchanged; the
/// evaluation can be repeated.
class EvaluationStopped : public std::runtime_error {
 public:
  EvaluationStopped() : std::runtime_error("evaluation interrupted") {}
};

/// Throws EvaluationStopped if `flag` is set; null: never.
inline void throw_if_raised(const std::atomic<bool>* flag) {
  if (flag != nullptr && flag->load()) throw EvaluationStopped();
}

}  // namespace fp8lab
