#include "src/bench/emulation.hpp"

#include <omp.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <random>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/gemm/gemm_operand.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/bench/simd/peer_gemm.hpp"

namespace fp8lab {
namespace {

enum class Operation { fp8_promote, fp8_blocks, bf16 };
constexpr Operation kOperations[] = {Operation::fp8_promote, Operation::fp8_blocks,
                                     Operation::bf16};

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::fp8_promote: return "fp8 promote:128";
    case Operation::fp8_blocks: return "fp8 1x128";
    case Operation::bf16: return "bf16";
  }
  return "?";
}

/// Sets one thread and one SIMD target for the lifetime of the object.
class Environment {
 public:
  explicit Environment(cpu::SimdTarget target)
      : threads_(omp_get_max_threads()), target_(cpu::active_target()) {
    omp_set_num_threads(1);
    cpu::set_active_target(target);
  }
  ~Environment() {
    omp_set_num_threads(threads_);
    cpu::set_active_target(target_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  int threads_;
  cpu::SimdTarget target_;
};

/// A matrix of Gaussian values as FP32, e4m3 (largest magnitude near 448) and bf16.
struct Matrix {
  std::int64_t rows, k;
  std::vector<float> values;
  std::vector<std::uint8_t> fp8;
  std::vector<std::uint16_t> bf16;
  std::vector<float> scales;
};

Matrix make_matrix(std::int64_t rows, std::int64_t k, std::uint32_t seed) {
  Matrix matrix{rows, k, {}, {}, {}, {}};
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 100.0f);
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const float value = normal(generator);
    matrix.values.push_back(value);
    matrix.fp8.push_back(numerics::to_e4m3(value));
    matrix.bf16.push_back(numerics::to_bf16(value));
  }
  matrix.scales.assign(static_cast<std::size_t>(rows * ((k + 127) / 128)), 0.0078125f);
  return matrix;
}

QuantizedOperand operand(Matrix& matrix, Operation operation, TileShape tile) {
  QuantizedOperand result;
  result.rows = matrix.rows;
  result.k = matrix.k;
  if (operation == Operation::bf16) {
    result.codes = {matrix.bf16.data(), DType::bf16, matrix.rows, matrix.k, matrix.k};
    return result;
  }
  result.spec.format = numerics::kE4M3;
  result.spec.scale_source = ScaleSource::current;
  result.spec.tile = operation == Operation::fp8_blocks ? tile : TileShape{};
  result.codes = {matrix.fp8.data(), DType::u8, matrix.rows, matrix.k, matrix.k};
  const std::int64_t columns = result.spec.tile_cols(matrix.k);
  result.scales = {matrix.scales.data(), DType::f32, result.spec.tile_rows(matrix.rows), columns,
                   columns};
  return result;
}

GemmSpec specification(Operation operation) {
  GemmSpec spec;
  if (operation == Operation::bf16) return spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = Schedule::promote;
  spec.promote_interval = 128;
  return spec;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Returns the processor time of this thread: all contenders run only on this thread, and time
/// spent in other programs does not count.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

/// A matrix quantized for an accumulator, with its memory.
struct ProfileOperand {
  QuantizedOperand operand;
  std::vector<std::byte> codes;
  std::vector<float> scales;

  ProfileOperand(Matrix& matrix, const QuantSpec& spec)
      : codes(static_cast<std::size_t>(matrix.rows * matrix.k) * size_of(spec.storage())) {
    const std::int64_t rows = matrix.rows;
    operand.spec = spec;
    operand.rows = rows;
    operand.k = matrix.k;
    operand.codes = {codes.data(), spec.storage(), rows, matrix.k, matrix.k};
    if (spec.has_scale()) {
      const std::int64_t columns = spec.tile_cols(matrix.k);
      scales.resize(static_cast<std::size_t>(rows * columns));
      operand.scales = {scales.data(), DType::f32, rows, columns, columns};
    }
    const TensorView values{matrix.values.data(), DType::f32, rows, matrix.k, matrix.k};
    cpu::run(ops::Quantize{.source = values, .operand = operand});
  }
};

/// The installed FP32 libraries, with the instructions of one target.
class Peers {
 public:
  explicit Peers(cpu::SimdTarget target) : openblas_(target), list_{eigen_peer(target)} {
    if (openblas_.peer().gemm != nullptr) list_.push_back(openblas_.peer());
  }
  const std::vector<Peer>& list() const { return list_; }

 private:
  OpenBlas openblas_;
  std::vector<Peer> list_;
};

/// Times `spec` on the operands, and the peers on the matrices from which the operands were made.
GemmBenchRow measure(const std::string& name, const GemmSpec& spec, const QuantizedOperand& left,
                     const QuantizedOperand& right, const Matrix& a, const Matrix& b,
                     const std::vector<Peer>& peers, int repeats) {
  GemmBenchRow row;
  row.operation = name;
  row.target = cpu::name_of(cpu::active_target());
  row.m = left.rows;
  row.n = right.rows;
  row.k = a.k;
  std::vector<std::uint16_t> d(static_cast<std::size_t>(row.m * row.n));
  std::vector<float> c(static_cast<std::size_t>(a.rows * b.rows));
  const TensorView view{d.data(), DType::bf16, row.m, row.n, row.n};

  std::vector<double> own;
  std::vector<std::vector<double>> other(peers.size());
  for (int i = -1; i < repeats; ++i) {  // the first round warms caches and memory
    const double time = seconds_of(
        [&] { cpu::run(ops::Gemm{.spec = spec, .a = left, .b = right, .bias = {}, .d = view}); });
    if (i >= 0) own.push_back(time);
    for (std::size_t p = 0; p < peers.size(); ++p) {
      const double peer_time = seconds_of(
          [&] { peers[p].gemm(a.values.data(), b.values.data(), c.data(), a.rows, b.rows, a.k); });
      if (i >= 0) other[p].push_back(peer_time);
    }
  }
  const auto gigamacs = [k = row.k](std::int64_t m, std::int64_t n) {
    return 1e-9 * static_cast<double>(m * n) * static_cast<double>(k);
  };
  row.gigamac_per_second = gigamacs(row.m, row.n) / median(own);
  const double share = static_cast<double>(row.m * row.n) / static_cast<double>(a.rows * b.rows);
  for (std::size_t p = 0; p < peers.size(); ++p) {
    const double speed = gigamacs(a.rows, b.rows) / median(other[p]);
    if (speed <= row.peer_gigamac_per_second) continue;
    row.peer_gigamac_per_second = speed;
    row.peer = peers[p].name;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < own.size(); ++i) ratios.push_back(share * other[p][i] / own[i]);
    row.ratio = median(ratios);
  }
  return row;
}

GemmBenchRow measure(Operation operation, Matrix& a, Matrix& b, const std::vector<Peer>& peers,
                     int repeats) {
  return measure(name_of(operation), specification(operation), operand(a, operation, {1, 128}),
                 operand(b, operation, {128, 128}), a, b, peers, repeats);
}

GemmBenchRow measure(const TensorCoreProfile& profile, Matrix& a, Matrix& b,
                     const std::vector<Peer>& peers, int repeats) {
  const QuantSpec own = profile.accumulator.default_operand();
  const ProfileOperand left(a, own), right(b, own);
  GemmSpec spec;
  spec.accumulator = profile.accumulator;
  return measure(std::string(profile.name), spec, left.operand, right.operand, a, b, peers,
                 repeats);
}

}  // namespace

std::vector<GemmBenchRow> bench_gemm(const GemmBenchOptions& options) {
  if (options.repeats < 1) throw Error("bench: repeats must be positive");
  std::vector<GemmBenchRow> rows;
  for (const auto& shape : options.shapes) {
    const auto [m, n, k] = shape;
    if (m < 1 || n < 1 || k < 1) throw Error("bench: shapes must be positive");
    Matrix a = make_matrix(m, k, 1);
    Matrix b = make_matrix(n, k, 2);
    for (const cpu::SimdTarget target : options.targets) {
      const Environment environment(target);
      const Peers peers(target);
      for (const Operation operation : kOperations) {
        rows.push_back(measure(operation, a, b, peers.list(), options.repeats));
      }
      if (&shape != options.shapes.data()) continue;
      for (const TensorCoreProfile& profile : tensor_core_profiles()) {
        // Skips duplicates of a record, and accumulators that the reference
        // computes element by element.
        const bool first = profile_of(profile.accumulator) == &profile;
        if (!first || !cpu::fast_method(profile.accumulator)) continue;
        rows.push_back(measure(profile, a, b, peers.list(), options.repeats));
      }
    }
  }
  return rows;
}

}  // namespace fp8lab
