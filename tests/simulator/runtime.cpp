// The CUDA runtime and the driver's tensor maps over ordinary memory.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

using Work = std::function<void()>;

struct SimulatedGraph {
  std::vector<Work> work;
};
struct SimulatedStream {
  std::unique_ptr<SimulatedGraph> recording;
};
struct SimulatedEvent {
  std::chrono::steady_clock::time_point time;
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int recordings = 0;  ///< streams that this thread's calls are recorded of

constexpr std::size_t kAlignment = 256;
constexpr int kPoison = 0xA5;

cudaError_t allocate(void** memory, std::size_t bytes) {
  if (recordings > 0) return cudaErrorStreamCaptureUnsupported;
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *memory = std::aligned_alloc(kAlignment, std::max(whole, kAlignment));
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, kPoison, std::min<std::size_t>(whole, std::size_t{1} << 20));
  return cudaSuccess;
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t width, std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                static_cast<const std::byte*>(from) + row * from_pitch, width);
  }
}

}  // namespace

namespace fp8lab::simulator {

cudaError_t set_last_error(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (stream != nullptr && stream->recording != nullptr) {
    stream->recording->work.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

cudaError_t enqueue_kernel(const char* name, const Shape& shape, cudaStream_t stream, Work kernel) {
  const std::uint64_t threads = std::uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  const bool empty = shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0 || threads == 0;
  if (empty || threads > 1024 || shape.grid.y > 65535 || shape.grid.z > 65535 ||
      shape.shared_bytes > kMostSharedBytes || shape.grid.x % shape.cluster != 0) {
    return cudaErrorInvalidConfiguration;
  }
  return enqueue(stream,
                 [name, shape, kernel = std::move(kernel)] { run_grid(name, shape, kernel); });
}

}  // namespace fp8lab::simulator

using fp8lab::simulator::enqueue;

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "simulated Hopper GPU");
  properties->major = 9;
  properties->multiProcessorCount = fp8lab::simulator::kMultiprocessors;
  std::size_t free = 0;
  return cudaMemGetInfo(&free, &properties->totalGlobalMem);
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  *free = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  *total = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memset(static_cast<std::byte*>(to) + row * pitch, value, width);
    }
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (to_pitch < width || from_pitch < width) return cudaErrorInvalidValue;
  return enqueue(stream, [=] { copy_rows(to, to_pitch, from, from_pitch, width, height); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new SimulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const bool recording = stream != nullptr && stream->recording != nullptr;
  return recording ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->recording = std::make_unique<SimulatedGraph>();
  ++recordings;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->recording.release();
  --recordings;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new SimulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->work) enqueue(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return enqueue(stream, [=] { function(argument); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new SimulatedEvent{};
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue(stream, [=] { event->time = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  const bool allowed = static_cast<std::size_t>(value) <= fp8lab::simulator::kMostSharedBytes;
  return allowed ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

/// Refuses what the driver refuses (CUDA driver API, cuTensorMapEncodeTiled).
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* data, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr std::uint32_t kBytes[] = {1, 2, 4};
  constexpr std::uint64_t kLine[] = {256, 32, 64, 128};
  *map = {};
  map->data = static_cast<std::byte*>(data);
  map->rank = rank;
  map->element_bytes = kBytes[type];
  map->swizzle = swizzle;
  if (rank < 1 || rank > 3 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (cuuint32_t i = 0; i < 3; ++i) {
    map->sizes[i] = i < rank ? sizes[i] : 1;
    map->box[i] = i < rank ? box[i] : 1;
    map->strides[i] = i == 0 ? map->element_bytes : i < rank ? strides[i - 1] : 0;
    if (i < rank && (sizes[i] == 0 || sizes[i] > (std::uint64_t{1} << 32) || box[i] == 0 ||
                     box[i] > 256 || steps[i] != 1)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (i > 0 && i < rank && (strides[i - 1] % 16 != 0 || strides[i - 1] >> 40 != 0)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const std::uint64_t line = std::uint64_t{box[0]} * map->element_bytes;
  if (line % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && line > kLine[swizzle]) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
