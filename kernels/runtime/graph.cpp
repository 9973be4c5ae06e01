#include "kernels/runtime/graph.hpp"

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

/// Owns the graph of a capture.
struct Recording {
  cudaGraph_t graph = nullptr;
  ~Recording() {
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

}  // namespace

Graph::Graph(cudaStream_t stream, const std::function<void()>& enqueue) {
  Recording recording;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &recording.graph);
    cudaGetLastError();  // clears the error of the aborted capture
    throw;
  }
  check(cudaStreamEndCapture(stream, &recording.graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&exec_, recording.graph, 0), "cudaGraphInstantiate");
}

Graph::~Graph() { cudaGraphExecDestroy(exec_); }

void Graph::launch(cudaStream_t stream) const {
  check(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
}

}  // namespace fp8lab::cuda
