// A sequence of launches that is enqueued as one CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace fp8lab::cuda {

/// Launches and their arguments, captured from a stream.
class Graph {
 public:
  /// Captures the operations that `enqueue` enqueues on `stream`, without running them. Throws
  /// what `enqueue` throws, and RuntimeFailure if it does something that cannot be captured, such
  /// as waiting or allocating.
  Graph(cudaStream_t stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace fp8lab::cuda
