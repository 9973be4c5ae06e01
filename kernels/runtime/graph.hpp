// A sequence of launches that is enqueued as one CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace fp8lab::cuda {

/// Launches, with their arguments, as a stream recorded them.
class Graph {
 public:
  /// Records what `enqueue` enqueues on `stream`, which does not run it. Throws what `enqueue`
  /// throws, and RuntimeFailure where it did what cannot be recorded: waited, or took memory.
  Graph(cudaStream_t stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace fp8lab::cuda
