// The one place that knows which backends exist.
#pragma once

#include <memory>
#include <string>

#include "emulation/backend.hpp"

namespace fp8lab {

/// "cpu", "truth" or "cuda". `threads`, with "cuda" those of the host, 0 means all processors.
/// Throws Error for an unknown name, for more than thread_limit() and for "cuda" where no CUDA
/// backend or no device is present. `gemm` says what multiplies: "own", or with "cuda" also
/// "cublaslt". Without `graphs`, which is for "cuda" as well, kernels that repeat are launched one
/// by one.
std::unique_ptr<Backend> make_backend(const std::string& name, int threads,
                                      const std::string& gemm = "own", bool graphs = true);

/// "cpu", or "cuda" on device `index`, for operations on memory of the caller, which are enqueued
/// where enqueue_on() says. `threads` as for make_backend. Throws Error as make_backend does.
std::unique_ptr<Backend> make_guest_backend(const std::string& name, int index, int threads);

/// Makes the device of the backend current on the calling thread and enqueues later operations on
/// `stream`, a cudaStream_t of the caller, after all earlier ones. Does nothing on the host.
void enqueue_on(Backend& backend, void* stream);

/// The library and algorithm of the backend's last GEMM; empty for our own implementations.
std::string gemm_algorithm(const Backend& backend);

}  // namespace fp8lab
