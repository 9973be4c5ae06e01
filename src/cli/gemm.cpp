// fp8lab gemm: what would the hardware return?
#include <fmt/format.h>

#include <optional>
#include <string>

#include "emulation/api/error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/matrices.hpp"
#include "src/config/spec_words.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

po::options_description gemm_options() {
  po::options_description options(
      "fp8lab gemm --a A.npy --b B.npy --spec SPEC --out D.npy\n"
      "D (M, N) = A (M, K) B (N, K)^T; bf16 results are written as float32.\n"
      "A file holds uint8 codes (with --scale-a, --scale-b where the operand has scales), or "
      "float32\n"
      "or bf16 (uint16 bits) values, which are quantized first");
  auto add = options.add_options();
  add("a", po::value<std::string>(), "A.npy, (M, K)");
  add("b", po::value<std::string>(), "B.npy, (N, K)");
  add("scale-a", po::value<std::string>(), "decode scales of A, float32, one a tile");
  add("scale-b", po::value<std::string>(), "decode scales of B");
  add("spec", po::value<std::string>(),
      "RECIPE:ROLE such as infir2:fprop, or ACCUMULATOR[/SCHEDULE][/OUTPUT] such as "
      "sm90_wgmma_fp8/promote:128/fp32");
  add("operand-a", po::value<std::string>(),
      "quantizer of A such as e4m3fn/1x128/pow2 (default: the recipe's, else e4m3fn or bf16 "
      "unscaled)");
  add("operand-b", po::value<std::string>(), "quantizer of B");
  add("out", po::value<std::string>(), "D.npy");
  add("seed", po::value<std::uint64_t>()->default_value(0), "for stochastic rounding");
  add("backend", po::value<std::string>()->default_value("cpu"), "cpu, truth or cuda");
  add("implementation", po::value<std::string>()->default_value("own"),
      "own, or with --backend cuda also cublaslt: the library, held to the spec's split_k");
  add("threads", po::value<int>()->default_value(0), "0: all processors");
  add("help", "this text");
  return options;
}

GemmRequest read_problem(const po::variables_map& values) {
  GemmRequest problem = parse_gemm_problem(required(values, "spec", "gemm"));
  if (values.count("operand-a") != 0) {
    problem.a = parse_quant_spec(values["operand-a"].as<std::string>());
  }
  if (values.count("operand-b") != 0) {
    problem.b = parse_quant_spec(values["operand-b"].as<std::string>());
  }
  return problem;
}

std::optional<std::string> optional(const po::variables_map& values, const char* name) {
  if (values.count(name) == 0) return std::nullopt;
  return values[name].as<std::string>();
}

}  // namespace

int gemm(const std::vector<std::string>& arguments) {
  const po::variables_map values = parse_arguments("gemm", gemm_options(), arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const GemmRequest problem = read_problem(values);
  const std::string file_a = required(values, "a", "gemm");
  const std::string file_b = required(values, "b", "gemm");
  const std::string out = required(values, "out", "gemm");
  const auto backend =
      make_backend(values["backend"].as<std::string>(), values["threads"].as<int>(),
                   values["implementation"].as<std::string>());
  const Support support = backend->supports(problem.gemm, problem.a, problem.b);
  if (!support) throw Error(fmt::format("backend {}: {}", backend->name(), support.reason));

  const auto seed = values["seed"].as<std::uint64_t>();
  const QuantizedOperand a =
      read_operand(*backend, file_a, optional(values, "scale-a"), problem.a, seed);
  const QuantizedOperand b =
      read_operand(*backend, file_b, optional(values, "scale-b"), problem.b, seed);
  if (a.k != b.k) {
    throw Error(
        fmt::format("{} is ({}, {}) and {} is ({}, {}); A (M, K) and B (N, K) must have the "
                    "same K",
                    file_a, a.rows, a.k, file_b, b.rows, b.k));
  }
  const TensorView d = backend->allocate(backend->storage(problem.gemm.output), a.rows, b.rows);
  backend->gemm(problem.gemm, a, b, TensorView{}, false, d);
  write_npy(out, download(*backend, d));
  fmt::print("{}: ({}, {}) from K = {}, {}, A {}, B {}\n", out, a.rows, b.rows, a.k,
             label(problem.gemm), label(problem.a), label(problem.b));
  const std::string algorithm = gemm_algorithm(*backend);
  if (!algorithm.empty()) fmt::print("  {}\n", algorithm);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
