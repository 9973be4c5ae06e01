#include "src/bench/model_load.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_descriptor.hpp"
#include "src/io/tensors/tensor_store.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 18;  // elements per read, as in load_parameters

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Returns a field of /proc/self/status, in bytes.
std::uint64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  std::uint64_t kibibytes = 0;
  while (status >> name) {
    if (name == field + ":" && status >> kibibytes) return kibibytes * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  throw RuntimeFailure("/proc/self/status has no " + field);
}

/// Resets VmHWM to the present resident memory.
void reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  if (!(clear << "5" << std::flush)) throw RuntimeFailure("/proc/self/clear_refs is not writable");
}

void read_whole(const std::string& path, std::byte* destination) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (ssize_t count = 1; count != 0; destination += count) {
    count = file.valid() ? ::read(file.get(), destination, std::size_t{4} << 20) : -1;
    if (count < 0) {
      throw RuntimeFailure(fmt::format("{}: cannot read: {}", path, error_text(errno)));
    }
  }
}

/// Allocates a tensor of `dtype` with the number of elements of `tensor`.
TensorView allocate_like(Backend& backend, const StoredTensor& tensor, DType dtype) {
  return backend.allocate(dtype, 1, static_cast<std::int64_t>(tensor.size()));
}

/// Returns a backend type with elements of the tensor's size.
DType raw_type(const StoredTensor& tensor) {
  const std::size_t width = size_of(tensor.type);
  return width == 1 ? DType::u8 : width == 2 ? DType::bf16 : DType::f32;
}

class LoadBench {
 public:
  LoadBench(Backend& backend, const std::filesystem::path& path, int repetitions)
      : backend_(backend), path_(path), repetitions_(repetitions) {}

  ModelLoadBench run() {
    describe();
    measure(
        "read(2) of the files", result_.file_bytes,
        [&] { buffer_ = backend_.allocate(DType::u8, 1, bytes_with_room()); },
        [&] { read_files(); });
    measure(
        "tensors in their own type", raw_bytes_, [&] { allocate(false); }, [&] { load_raw(); });
    measure(
        "tensors as FP32", f32_bytes_, [&] { allocate(true); }, [&] { load_f32(); });
    return result_;
  }

 private:
  void describe() {
    const TensorStore store(path_);
    for (const SafetensorsFile& file : store.files()) {
      files_.push_back(file.path());
      result_.file_bytes += std::filesystem::file_size(file.path());
    }
    for (const StoredTensor* tensor : store.tensors()) {
      if (!is_decodable(tensor->type)) {
        throw Error(fmt::format("{}: tensor '{}' is {}; accepted: F32, BF16, F16, FP8",
                                path_.string(), tensor->name, stored_name(tensor->type)));
      }
      raw_bytes_ += tensor->bytes();
      f32_bytes_ += static_cast<std::uint64_t>(tensor->size()) * sizeof(float);
    }
    result_.files = static_cast<std::int64_t>(files_.size());
    result_.tensors = static_cast<std::int64_t>(store.tensors().size());
  }

  void measure(const std::string& operation, std::uint64_t result_bytes,
               const std::function<void()>& prepare, const std::function<void()>& work) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    ModelLoadRow row{operation, kNever, kNever, result_bytes, 0};
    const std::uint64_t before = status_bytes("VmRSS");
    const std::size_t mark = backend_.memory_mark();
    prepare();
    reset_peak();
    for (int i = 0; i <= repetitions_; ++i) {  // the extra pass fills the page cache
      const double began = now(), began_processor = processor_now();
      work();
      if (i == 0) continue;
      row.seconds = std::min(row.seconds, now() - began);
      row.processor_seconds = std::min(row.processor_seconds, processor_now() - began_processor);
    }
    row.peak_bytes = status_bytes("VmHWM") - std::min(before, status_bytes("VmHWM"));
    destinations_.clear();
    backend_.release_to(mark);
    result_.rows.push_back(row);
  }

  /// Returns a buffer size larger than the file, since read(2) must reach the end.
  std::int64_t bytes_with_room() const {
    return static_cast<std::int64_t>(result_.file_bytes) + (std::int64_t{4} << 20);
  }

  void read_files() {
    auto* destination = static_cast<std::byte*>(buffer_.data);
    for (const std::string& file : files_) {
      read_whole(file, destination);
      destination += std::filesystem::file_size(file);
    }
  }

  void allocate(bool as_f32) {
    const TensorStore store(path_);
    for (const StoredTensor* tensor : store.tensors()) {
      destinations_.push_back(
          allocate_like(backend_, *tensor, as_f32 ? DType::f32 : raw_type(*tensor)));
    }
  }

  void load_raw() {
    const TensorStore store(path_);
    for (std::size_t i = 0; i < store.tensors().size(); ++i) {
      const StoredTensor& tensor = *store.tensors()[i];
      const std::size_t width = size_of(destinations_[i].dtype);
      visit_data(tensor, 0, tensor.bytes(), [&](std::size_t at, std::span<const std::byte> piece) {
        backend_.upload(destinations_[i].columns(static_cast<std::int64_t>(at / width),
                                                 static_cast<std::int64_t>(piece.size() / width)),
                        piece.data());
      });
    }
  }

  void load_f32() {
    const TensorStore store(path_);
    std::vector<float> values;
    for (std::size_t i = 0; i < store.tensors().size(); ++i) {
      const StoredTensor& tensor = *store.tensors()[i];
      for (std::int64_t first = 0; first < tensor.size(); first += std::int64_t{kPiece}) {
        values.resize(std::min(kPiece, static_cast<std::size_t>(tensor.size() - first)));
        read_elements(tensor, first, values);
        backend_.upload(destinations_[i].columns(first, static_cast<std::int64_t>(values.size())),
                        values.data());
      }
    }
  }

  Backend& backend_;
  std::filesystem::path path_;
  int repetitions_;
  ModelLoadBench result_;
  std::vector<std::string> files_;
  std::uint64_t raw_bytes_ = 0, f32_bytes_ = 0;
  TensorView buffer_;
  std::vector<TensorView> destinations_;
};

}  // namespace

ModelLoadBench bench_model_load(Backend& backend, const std::filesystem::path& path,
                                int repetitions) {
  return LoadBench(backend, path, repetitions).run();
}

}  // namespace fp8lab
