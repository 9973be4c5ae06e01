// What the handles of fp8lab.h hold.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "emulation/backend.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/interface/fp8lab.h"

struct fp8lab_backend {
  std::unique_ptr<fp8lab::Backend> backend;
};

struct fp8lab_quantizer {
  fp8lab::QuantSpec spec;
};

namespace fp8lab::interface {

/// Returns what a handle or a result argument refers to. Throws Error that names it if it is NULL.
template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw InputError({.where = name, .reason = "is NULL"});
  return *pointer;
}

/// Frees what a call allocates from a backend when the call ends.
class CallMemory {
 public:
  explicit CallMemory(Backend& backend) : backend_(backend), mark_(backend.memory_mark()) {}
  ~CallMemory() { backend_.release_to(mark_); }
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

 private:
  Backend& backend_;
  std::size_t mark_;
};

}  // namespace fp8lab::interface
