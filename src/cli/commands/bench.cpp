// fp8lab bench: speed of the emulator and of the CUDA kernels, compared with the best
// libraries on this machine.
#include <fmt/format.h>
#include <omp.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/backend/factory.hpp"
#include "src/bench/device_attention.hpp"
#include "src/bench/device_copy.hpp"
#include "src/bench/device_gemm.hpp"
#include "src/bench/emulation.hpp"
#include "src/bench/model_load.hpp"
#include "src/bench/quantize.hpp"
#include "src/bench/train.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/run_choice.hpp"
#include "src/config/reading/hub_cache.hpp"

namespace fp8lab::cli {
namespace {

Options bench_options() {
  Options options("fp8lab bench emulation|gemm|attention|copy|quantize|load|train");
  options.add(
      "what", value<std::string>(),
      "emulation: GEMM and quantization of the CPU emulator; gemm: our CUDA kernels beside "
      "cuBLASLt; attention: our CUDA kernels; copy: tensors to the GPU and back, beside "
      "cudaMemcpy; quantize: quantization of a backend; load: a model's files beside a plain read; "
      "train: steps of a run's first stage");
  options.add("model", value<std::string>(), "load: a Hugging Face folder or a safetensors file");
  options.add("backend", one_of(quantizing_backends(), "cpu"), "quantize, train: backend");
  add_run_choice(options);
  options.add("all-targets", "every instruction set that fp8lab info lists, not only the fastest");
  options.add("no-graphs", "train: backend cuda without CUDA graphs");
  options.add("repeats", value<int>(5), "number of measurements of each kind");
  options.add("rows", value<std::int64_t>(4096), "quantize: rows of the tensor");
  options.add("cols", value<std::int64_t>(4096), "quantize: columns of the tensor");
  options.add("json", value<std::string>(), "also write the result to this file");
  return options;
}

constexpr int kMostRepeats = 10000;

void check_repeats(const Values& values) {
  const int repeats = values["repeats"].as<int>();
  if (repeats >= 1 && repeats <= kMostRepeats) return;
  throw InputError({.where = "bench",
                    .key = "--repeats",
                    .found = fmt::to_string(repeats),
                    .accepted = fmt::format("1 to {}", kMostRepeats)});
}

/// Reads --rows and --cols of a tensor. Throws unless it fits into memory in
/// bf16, with codes and scales.
std::pair<std::int64_t, std::int64_t> tensor_shape(const Values& values) {
  const auto rows = values["rows"].as<std::int64_t>(), cols = values["cols"].as<std::int64_t>();
  if (rows < 1 || cols < 1)
    throw InputError(
        {.where = "bench", .key = "--rows", .reason = "and --cols must be at least 1"});
  require_memory(4.0 * static_cast<double>(rows) * static_cast<double>(cols),
                 fmt::format("bench: --rows {} --cols {}", rows, cols));
  return {rows, cols};
}

/// Prints a table of every accumulator by instruction set, from the rows of one
/// shape: ratios to FP32 GEMM.
void print_ratio_table(const std::vector<GemmBenchRow>& rows,
                       const std::vector<cpu::SimdTarget>& targets) {
  const GemmBenchRow& first = rows.front();
  fmt::print("ratio to FP32 GEMM of the same instruction set, {}x{}x{}, one thread\n  {:<22}",
             first.m, first.n, first.k, "operation");
  for (const cpu::SimdTarget target : targets) fmt::print(" {:>12}", cpu::name_of(target));
  for (const GemmBenchRow& row : rows) {
    const bool first_shape = row.m == first.m && row.n == first.n;
    if (row.target != first.target || !first_shape || row.k != first.k) continue;
    fmt::print("\n  {:<22}", row.operation);
    for (const GemmBenchRow& cell : rows) {
      const bool same_cell =
          cell.operation == row.operation && cell.m == row.m && cell.n == row.n && cell.k == row.k;
      if (same_cell) fmt::print(" {:>12.4f}", cell.ratio);
    }
  }
  fmt::print("\n");
}

/// Prints the fastest row with each peer's arithmetic and the peer's recorded speed.
nlohmann::ordered_json print_emulator_peers(const std::vector<GemmBenchRow>& rows) {
  nlohmann::ordered_json json = nlohmann::json::array();
  fmt::print(
      "beside other emulators, one core; their MAC/s as recorded on their hosts in "
      "November 2026\n");
  fmt::print("  {:<21} {:<36} {:>9}  {:<16} {:<12} {:>9} {:>9}\n", "emulator", "arithmetic",
             "MAC/s", "operation", "target", "MAC/s", "ratio");
  for (const EmulatorPeer& peer : kEmulatorPeers) {
    const GemmBenchRow* best = nullptr;
    for (const GemmBenchRow& row : rows) {
      if (row.operation != peer.operation) continue;
      if (best == nullptr || row.gigamac_per_second > best->gigamac_per_second) best = &row;
    }
    if (best == nullptr) continue;
    const double own = 1e9 * best->gigamac_per_second;
    const double ratio = own / peer.mac_per_second;
    fmt::print("  {:<21} {:<36} {:>9.2e}  {:<16} {:<12} {:>9.2e} {:>9.3g}\n", peer.name,
               peer.arithmetic, peer.mac_per_second, peer.operation, best->target, own, ratio);
    json.push_back({{"emulator", peer.name},
                    {"arithmetic", peer.arithmetic},
                    {"recorded_mac_per_second", peer.mac_per_second},
                    {"operation", peer.operation},
                    {"target", best->target},
                    {"mac_per_second", own},
                    {"ratio", ratio}});
  }
  return json;
}

nlohmann::ordered_json bench_gemms(const Values& values, nlohmann::ordered_json& peers) {
  GemmBenchOptions options;
  options.repeats = values["repeats"].as<int>();
  if (values.count("all-targets") != 0) options.targets = cpu::available_targets();
  nlohmann::ordered_json rows = nlohmann::json::array();
  fmt::print(
      "GEMM, one thread: multiply-adds beside the best FP32 GEMM of the same instruction set\n");
  fmt::print("  {:<22} {:<12} {:>16} {:>9} {:>9} {:>6}  {}\n", "operation", "target", "M x N x K",
             "GMAC/s", "FP32", "ratio", "peer");
  const std::vector<GemmBenchRow> results = bench_gemm(options);
  for (const GemmBenchRow& row : results) {
    fmt::print("  {:<22} {:<12} {:>16} {:>9.2f} {:>9.2f} {:>6.3f}  {}\n", row.operation, row.target,
               fmt::format("{}x{}x{}", row.m, row.n, row.k), row.gigamac_per_second,
               row.peer_gigamac_per_second, row.ratio, row.peer);
    rows.push_back({{"operation", row.operation},
                    {"target", row.target},
                    {"m", row.m},
                    {"n", row.n},
                    {"k", row.k},
                    {"gigamac_per_second", row.gigamac_per_second},
                    {"peer_gigamac_per_second", row.peer_gigamac_per_second},
                    {"ratio", row.ratio},
                    {"peer", row.peer}});
  }
  print_ratio_table(results, options.targets);
  peers = print_emulator_peers(results);
  return rows;
}

nlohmann::ordered_json print_quantizers(const std::vector<QuantizeBenchRow>& results) {
  nlohmann::ordered_json rows = nlohmann::json::array();
  fmt::print("  {:<52} {:<12} {:>8} {:>8} {:>8} {:>6}\n", "operation", "target", "readings", "GB/s",
             "copy", "ratio");
  for (const QuantizeBenchRow& row : results) {
    fmt::print("  {:<52} {:<12} {:>8} {:>8.2f} {:>8.2f} {:>6.3f}\n", row.operation, row.target,
               row.readings, row.gigabytes_per_second, row.copy_gigabytes_per_second, row.ratio);
    rows.push_back({{"operation", row.operation},
                    {"target", row.target},
                    {"readings", row.readings},
                    {"gigabytes_per_second", row.gigabytes_per_second},
                    {"copy_gigabytes_per_second", row.copy_gigabytes_per_second},
                    {"ratio", row.ratio}});
  }
  return rows;
}

#if defined(FP8LAB_HAVE_CUDA)
nlohmann::ordered_json bench_on_device(const Values& values) {
  const DeviceGemmBench bench = bench_device_gemm(values["repeats"].as<int>());
  nlohmann::ordered_json json = {{"device", bench.device}, {"library", bench.library}};
  fmt::print("GEMM on {}: TFLOP/s of our kernel beside {}, output bf16\n", bench.device,
             bench.library);
  std::string mode;
  for (const DeviceGemmRow& row : bench.rows) {
    if (row.mode != mode) {
      mode = row.mode;
      const double mean = mean_ratio(bench, mode);
      fmt::print("{}: geometric mean of the ratios {:.3f}{}\n", mode, mean,
                 row.library_bf16 ? ", to the library's BF16 GEMM" : "");
      fmt::print("  {:<20} {:<6} {:>18} {:>7} {:>8} {:>6} {:>7}\n", "layer", "pass", "M x N x K",
                 "own", "cuBLASLt", "ratio", "split_k");
      json["geometric_mean_ratio"][mode] = mean;
    }
    fmt::print("  {:<20} {:<6} {:>18} {:>7.1f} {:>8.1f} {:>6.3f} {:>7}\n", row.layer, row.pass,
               fmt::format("{}x{}x{}", row.m, row.n, row.k), row.own, row.library, row.ratio,
               row.split_k);
    json["rows"].push_back({{"mode", row.mode},
                            {"layer", row.layer},
                            {"pass", row.pass},
                            {"m", row.m},
                            {"n", row.n},
                            {"k", row.k},
                            {"own_tflops", row.own},
                            {"library_tflops", row.library},
                            {"library_bf16", row.library_bf16},
                            {"ratio", row.ratio},
                            {"library_split_k", row.split_k},
                            {"library_algorithm", row.algorithm}});
  }
  return json;
}

nlohmann::ordered_json bench_attention(const Values& values) {
  const DeviceAttentionBench bench = bench_device_attention(values["repeats"].as<int>());
  nlohmann::ordered_json json = {{"device", bench.device}};
  fmt::print("attention on {}: causal, one document a sequence; bf16 unless the pass says E4M3\n",
             bench.device);
  fmt::print("  {:<12} {:>7} {:>4} {:<21} {:>9} {:>8}\n", "sequences", "heads", "D", "pass", "ms",
             "TFLOP/s");
  for (const DeviceAttentionRow& row : bench.rows) {
    const AttentionShape& shape = row.shape;
    fmt::print("  {:<12} {:>7} {:>4} {:<21} {:>9.4f} {:>8.1f}\n",
               fmt::format("{} x {}", shape.batch, shape.sequence),
               fmt::format("{}/{}", shape.heads, shape.kv_heads), shape.head_dim, row.pass,
               1e3 * row.seconds, row.tflops);
    json["rows"].push_back({{"batch", shape.batch},
                            {"sequence", shape.sequence},
                            {"heads", shape.heads},
                            {"kv_heads", shape.kv_heads},
                            {"head_dim", shape.head_dim},
                            {"pass", row.pass},
                            {"seconds", row.seconds},
                            {"tflops", row.tflops}});
  }
  return json;
}

nlohmann::ordered_json bench_copies(const Values& values) {
  const DeviceCopyBench bench = bench_device_copy(values["repeats"].as<int>());
  const int threads = omp_get_max_threads();
  nlohmann::ordered_json json = {{"device", bench.device}, {"threads", threads}};
  fmt::print("copies between pageable memory and {}, {} threads: GB/s beside cudaMemcpy\n",
             bench.device, threads);
  fmt::print("  {:<9} {:>11} {:>8} {:>9} {:>12} {:>6}\n", "direction", "bytes", "own", "pageable",
             "page-locked", "ratio");
  for (const DeviceCopyRow& row : bench.rows) {
    fmt::print("  {:<9} {:>11} {:>8.2f} {:>9.2f} {:>12.2f} {:>6.3f}\n", row.direction, row.bytes,
               row.own, row.pageable, row.page_locked, row.ratio);
    json["rows"].push_back({{"direction", row.direction},
                            {"bytes", row.bytes},
                            {"own_gigabytes_per_second", row.own},
                            {"pageable_gigabytes_per_second", row.pageable},
                            {"page_locked_gigabytes_per_second", row.page_locked},
                            {"ratio", row.ratio}});
  }
  return json;
}
#else
[[noreturn]] nlohmann::ordered_json without_device(const char* what) {
  throw InputError({.where = fmt::format("bench {} is not available", what),
                    .reason = "this build has no CUDA backend"});
}
nlohmann::ordered_json bench_on_device(const Values&) { without_device("gemm"); }
nlohmann::ordered_json bench_attention(const Values&) { without_device("attention"); }
nlohmann::ordered_json bench_copies(const Values&) { without_device("copy"); }
#endif

nlohmann::ordered_json bench_backend(const Values& values) {
  const auto [rows, cols] = tensor_shape(values);
  const std::unique_ptr<Backend> backend = make_backend(values["backend"].as<std::string>(), 0);
  fmt::print("quantization of bf16 ({}, {}) on {}: bytes beside a copy\n", rows, cols,
             backend->device());
  return print_quantizers(bench_quantize(*backend, rows, cols, values["repeats"].as<int>()));
}

nlohmann::ordered_json bench_load(const Values& values) {
  const std::string model = existing_model_path(required(values, "model", "bench load"));
  const std::unique_ptr<Backend> backend = make_backend("cpu", 0);
  const ModelLoadBench bench = bench_model_load(*backend, model, values["repeats"].as<int>());
  const double gigabyte = 1e9;
  const auto size = [&](std::uint64_t bytes) { return static_cast<double>(bytes) / gigabyte; };
  nlohmann::ordered_json json = {
      {"files", bench.files}, {"tensors", bench.tensors}, {"file_bytes", bench.file_bytes}};
  fmt::print("{} tensors in {} files of {:.3f} GB, in the page cache\n", bench.tensors, bench.files,
             size(bench.file_bytes));
  fmt::print("  {:<34} {:>8} {:>6} {:>9} {:>8} {:>9} {:>10} {:>10} {:>9}\n", "operation", "seconds",
             "GB/s", "of a read", "CPU s", "of a read", "result GB", "peak GB", "of result");
  const ModelLoadRow& read = bench.rows.front();
  for (const ModelLoadRow& row : bench.rows) {
    const double speed = size(bench.file_bytes) / row.seconds;
    const double fraction = read.seconds / row.seconds;
    const double processor_fraction = read.processor_seconds / row.processor_seconds;
    const double copies = size(row.peak_bytes) / size(row.result_bytes);
    fmt::print(
        "  {:<34} {:>8.3f} {:>6.2f} {:>9.3f} {:>8.3f} {:>9.3f} {:>10.3f} {:>10.3f} {:>9.3f}\n",
        row.operation, row.seconds, speed, fraction, row.processor_seconds, processor_fraction,
        size(row.result_bytes), size(row.peak_bytes), copies);
    json["rows"].push_back({{"operation", row.operation},
                            {"seconds", row.seconds},
                            {"gigabytes_per_second", speed},
                            {"fraction_of_read", fraction},
                            {"processor_seconds", row.processor_seconds},
                            {"processor_fraction_of_read", processor_fraction},
                            {"result_bytes", row.result_bytes},
                            {"peak_resident_bytes", row.peak_bytes},
                            {"peak_over_result", copies}});
  }
  return json;
}

nlohmann::ordered_json bench_quantizers(const Values& values) {
  const auto [tensor_rows, tensor_cols] = tensor_shape(values);
  fmt::print("quantization of bf16 ({}, {}), {} threads: bytes beside a memory copy\n", tensor_rows,
             tensor_cols, omp_get_max_threads());
  return print_quantizers(bench_quantize(tensor_rows, tensor_cols, values["repeats"].as<int>()));
}

nlohmann::ordered_json print_steps(const TrainBench& bench) {
  nlohmann::ordered_json json;
  const auto tokens = static_cast<double>(bench.tokens);
  const double plain = bench.steps.front().median();
  for (const StepTiming& step : bench.steps) {
    const double median = step.median();
    fmt::print("  {:<28} {:>9.4f} s {:>10.0f} tokens/s {:>+7.1f} % time\n", step.name, median,
               tokens / median, 100.0 * (median / plain - 1.0));
    json.push_back({{"step", step.name},
                    {"seconds", step.seconds},
                    {"median_seconds", median},
                    {"tokens_per_second", tokens / median}});
  }
  return json;
}

nlohmann::ordered_json print_phases(const TrainBench& bench) {
  nlohmann::ordered_json json;
  fmt::print("  by phase, each waited for, without graphs:");
  for (const PhaseTiming& phase : bench.phases) {
    fmt::print(" {} {:.4f} s", name_of(phase.phase), phase.median());
    json.push_back({{"phase", name_of(phase.phase)},
                    {"seconds", phase.seconds},
                    {"median_seconds", phase.median()}});
  }
  fmt::print("\n");
  return json;
}

nlohmann::ordered_json print_kinds(const TrainBench& bench) {
  constexpr std::size_t kPrinted = 24;
  nlohmann::ordered_json json;
  fmt::print("a step of one micro-batch a shard by kind of operation, each waited for\n");
  fmt::print("  {:<13} {:>6} {:>10} {:>10} {:>9}  {}\n", "class", "calls", "ms", "G work/s",
             "of bound", "operation");
  for (std::size_t i = 0; i < bench.kinds.size(); ++i) {
    const KindTiming& kind = bench.kinds[i];
    if (i < kPrinted) {
      fmt::print("  {:<13} {:>6} {:>10.3f} {:>10.1f} {:>9.3f}  {}\n", name_of(kind.work_class),
                 kind.calls, 1e3 * kind.seconds, 1e-9 * kind.rate, kind.of_bound, kind.kind);
    }
    json.push_back({{"operation", kind.kind},
                    {"class", name_of(kind.work_class)},
                    {"calls", kind.calls},
                    {"seconds", kind.seconds},
                    {"work_per_second", kind.rate},
                    {"fraction_of_bound", kind.of_bound}});
  }
  return json;
}

nlohmann::ordered_json bench_training(const Values& values) {
  const RunConfig config = chosen_run(values, "bench train");
  require_accepted_backend(values, config, "the run", "bench train");
  const std::unique_ptr<Backend> backend =
      make_backend(config.backend, 0, "own", values.count("no-graphs") == 0);
  const TrainBench bench = bench_train(config, *backend, values["repeats"].as<int>());
  const double plain = bench.steps.front().median();
  const double rate = bench.multiply_adds / plain;
  fmt::print("{} on {}: {} parameters, {} tokens a step, planned memory {:.2f} GB\n", config.recipe,
             backend->device(), bench.parameters, bench.tokens,
             1e-9 * static_cast<double>(bench.planned_bytes));
  nlohmann::ordered_json json = {{"device", backend->device()},
                                 {"recipe", config.recipe},
                                 {"parameters", bench.parameters},
                                 {"tokens", bench.tokens},
                                 {"planned_bytes", bench.planned_bytes},
                                 {"multiply_adds", bench.multiply_adds},
                                 {"product_bound_per_second", bench.product_bound},
                                 {"copy_bound_per_second", bench.copy_bound}};
  json["steps"] = print_steps(bench);
  fmt::print("  {:.1f} TFLOP/s of the model, {:.3f} of a large BF16 product's {:.1f}\n",
             2e-12 * rate, rate / bench.product_bound, 2e-12 * bench.product_bound);
  json["model_flop_per_second"] = 2.0 * rate;
  json["phases"] = print_phases(bench);
  json["kinds"] = print_kinds(bench);
  return json;
}

/// Runs one benchmark and writes its results to the file of --json.
template <class Bench>
int run_bench(const Values& values, Bench bench) {
  check_repeats(values);
  check_output_files(values, "bench", {"json"});
  const nlohmann::ordered_json json = bench();
  if (values.count("json") != 0) {
    write_json(values["json"].as<std::string>(), json);
  }
  return ExitCode::kSuccess;
}

int emulation(const Values& values) {
  return run_bench(values, [&] {
    nlohmann::ordered_json json, peers;
    json["gemm"] = bench_gemms(values, peers);
    json["emulators"] = std::move(peers);
    json["quantize"] = bench_quantizers(values);
    return json;
  });
}

int device_gemms(const Values& values) {
  return run_bench(values, [&] { return bench_on_device(values); });
}

int device_attention(const Values& values) {
  return run_bench(values, [&] { return bench_attention(values); });
}

int device_copies(const Values& values) {
  return run_bench(values, [&] { return bench_copies(values); });
}

int quantizers(const Values& values) {
  return run_bench(values, [&] {
    nlohmann::ordered_json json;
    json["quantize"] = bench_backend(values);
    return json;
  });
}

int load(const Values& values) {
  return run_bench(values, [&] {
    nlohmann::ordered_json json;
    json["load"] = bench_load(values);
    return json;
  });
}

int training(const Values& values) {
  return run_bench(values, [&] {
    nlohmann::ordered_json json;
    json["train"] = bench_training(values);
    return json;
  });
}

}  // namespace

int bench(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("bench", bench_options(), arguments, {{"what", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  return run_action(
      "bench", values, "what",
      {{"emulation", "", {"all-targets", "repeats", "rows", "cols", "json"}, emulation},
       {"gemm", "", {"repeats", "json"}, device_gemms},
       {"attention", "", {"repeats", "json"}, device_attention},
       {"copy", "", {"repeats", "json"}, device_copies},
       {"quantize", "", {"backend", "repeats", "rows", "cols", "json"}, quantizers},
       {"load", "", {"model", "repeats", "json"}, load},
       {"train",
        "",
        {"config", "preset", "recipe", "set", "backend", "no-graphs", "repeats", "json"},
        training}});
}

}  // namespace fp8lab::cli
