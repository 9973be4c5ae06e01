#include "kernels/runtime/context.hpp"

#include <string>
#include <vector>

#include "emulation/numerics/hadamard.hpp"

namespace fp8lab::cuda {
namespace {

struct FaultText {
  Fault fault;
  const char* text;
};
constexpr FaultText kFaultTexts[] = {
    {Fault::token_outside_table, "embedding: a token lies outside the table"},
    {Fault::target_outside_vocabulary, "cross_entropy: a target lies outside the vocabulary"},
    {Fault::document_start, "attention: a document starts after its token"},
    {Fault::position_outside_table, "rope: a position lies outside the table"},
    {Fault::cached_tokens, "attention_cached: new tokens do not fit the cache, or miscounted"},
};

}  // namespace

void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

Context::Context(int device) : device_(device) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || device >= count) {
    throw Error("backend 'cuda': no CUDA device " + std::to_string(device) + " here (found " +
                std::to_string(count) + "); use 'cpu'");
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (properties.major != 9 || properties.minor != 0) {
    throw Error(std::string("backend 'cuda': ") + properties.name + " has compute capability " +
                std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                "; the kernels need 9.0 (Hopper: wgmma)");
  }
  check(cudaSetDevice(device), "cudaSetDevice");
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  multiprocessors_ = properties.multiProcessorCount;
  description_ = std::string(properties.name) + ", CUDA " + std::to_string(runtime / 1000) + "." +
                 std::to_string(runtime % 1000 / 10);
  check(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = own_stream_;
  check(cudaEventCreateWithFlags(&hand_over_, cudaEventDisableTiming), "cudaEventCreate");
  faults_ = std::make_unique<DeviceArray<std::uint32_t>>(1);
  check(cudaMemsetAsync(faults_->data(), 0, sizeof(std::uint32_t), stream_), "cudaMemsetAsync");
  const std::size_t signals = static_cast<std::size_t>(multiprocessors_) * kSignals;
  signals_ = std::make_unique<DeviceArray<std::uint32_t>>(signals);
  check(cudaMemsetAsync(signals_->data(), 0, signals * sizeof(std::uint32_t), stream_),
        "cudaMemsetAsync");
}

Context::~Context() {
  if (own_stream_ == nullptr) return;
  cudaDeviceSynchronize();  // the stream of a caller may be gone by now
  if (hand_over_ != nullptr) cudaEventDestroy(hand_over_);
  cudaStreamDestroy(own_stream_);
}

void Context::use(cudaStream_t stream) {
  check(cudaSetDevice(device_), "cudaSetDevice");
  if (stream == stream_) return;
  catch_up();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  if (capture == cudaStreamCaptureStatusNone) {
    check(cudaEventRecord(hand_over_, stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream, hand_over_, 0), "cudaStreamWaitEvent");
  }
  stream_ = stream;
}

void* Context::grown(std::unique_ptr<DeviceArray<std::byte>>& memory, std::size_t bytes) {
  if (memory == nullptr || memory->size() < bytes) {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    memory.reset();
    memory = std::make_unique<DeviceArray<std::byte>>(bytes);
  }
  return memory->data();
}

void* Context::workspace(std::size_t bytes) { return grown(workspace_, bytes); }

void* Context::tensor_memory(std::size_t bytes) { return grown(tensor_memory_, bytes); }

void* Context::postponed_memory(std::size_t bytes) { return grown(postponed_memory_, bytes); }

void Context::catch_up() {
  if (postponed_ != nullptr) postponed_->enqueue(*this);
}

const float* Context::hadamard_core(int order) {
  std::unique_ptr<DeviceArray<float>>& kept = hadamard_cores_[order];
  if (kept == nullptr) {
    std::vector<float> core(static_cast<std::size_t>(order) * static_cast<std::size_t>(order));
    numerics::write_hadamard_core(order, core.data());
    kept = std::make_unique<DeviceArray<float>>(core.size());
    check(
        cudaMemcpy(kept->data(), core.data(), core.size() * sizeof(float), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  return kept->data();
}

void Context::synchronize() {
  catch_up();
  std::uint32_t faults = 0;
  check(cudaMemcpyAsync(&faults, faults_->data(), sizeof faults, cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (const FaultText& entry : kFaultTexts) {
    if ((faults & static_cast<std::uint32_t>(entry.fault)) != 0) throw Error(entry.text);
  }
}

}  // namespace fp8lab::cuda
