// Cases as tests look at them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/cases/list.hpp"

namespace fp8lab::test {

inline const CaseSource& source_of(std::string_view operation) {
  for (const CaseSource& source : kCaseSources) {
    if (source.operation == operation) return source;
  }
  throw std::logic_error("no operation is called " + std::string(operation));
}

/// The tensors after the case has run on a backend that uses the memory of this machine.
inline std::vector<HostTensor> run_on_host(const OperationCase& drawn, Backend& backend) {
  std::vector<HostTensor> tensors = drawn.tensors;
  std::vector<TensorView> views;
  for (HostTensor& tensor : tensors) {
    views.push_back({tensor.data.data(), tensor.dtype, tensor.rows, tensor.cols, tensor.cols});
  }
  drawn.run(backend, views);
  return tensors;
}

/// Draws no further than the first one.
inline bool draws_a_case(const CaseSource& source, int round) {
  struct Found {};
  try {
    for_each_case(source, 1, round, [](const OperationCase&) { throw Found{}; });
  } catch (const Found&) {
    return true;
  }
  return false;
}

}  // namespace fp8lab::test
