// fp8lab gemm: computes what the hardware would return.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/cpu/gemm/library_gemm.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/matrix_files.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/seed_option.hpp"
#include "src/config/reading/library_call.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab::cli {
namespace {

Options gemm_options() {
  Options options(
      "fp8lab gemm --a A.npy --b B.npy --spec SPEC --out D.npy\n"
      "D (M, N) = alpha A (M, K) B (N, K)^T + beta C + bias; bf16 and fp16 results are written as\n"
      "float32, FP8 results as uint8 codes.\n"
      "A file holds uint8 codes (with --scale-a, --scale-b where the operand has scales), or "
      "float32\n"
      "or bf16 (uint16 bits) values, which are quantized first");
  options.add("a", value<std::string>(), "A.npy, (M, K)");
  options.add("b", value<std::string>(), "B.npy, (N, K)");
  options.add("scale-a", value<std::string>(), "decode scales of A, float32, one for each tile");
  options.add("scale-b", value<std::string>(), "decode scales of B");
  options.add("spec", value<std::string>(),
              "RECIPE:ROLE such as infir2:fprop, ACCUMULATOR[/SCHEDULE][/OUTPUT] such as "
              "sm90_wgmma_fp8/promote:128/fp32 (fp8lab info --accumulators), or a library call "
              "cublaslt_h200:MODE[/fast][/OUTPUT][/split_k=N] with MODE tensor, row, 1x128x1x128, "
              "1x128x128x128, 128x128x1x128 or bf16");
  options.add(
      "operand-a", value<std::string>(),
      "quantizer of A such as e4m3fn/1x128/pow2, see fp8lab quantize --help (default: the recipe's "
      "or the mode's, else the accumulator's format, unscaled unless it takes block scales)");
  options.add("operand-b", value<std::string>(), "quantizer of B");
  options.add("alpha", value<float>(1.0f), "factor of A B^T");
  options.add("beta", value<float>(0.0f), "factor of C");
  options.add("c", value<std::string>(), "C.npy, (M, N), float32 or the bits of bf16 as uint16");
  options.add("bias", value<std::string>(),
              "bias.npy, one element for each row of A, as the library has it; types as C");
  options.add("d-scale", value<float>(1.0f), "factor of FP8 results before their cast");
  options.add("out", value<std::string>(), "D.npy");
  options.add("seed", value<std::uint64_t>(0),
              "random seed of stochastic rounding and random signs");
  options.add("backend", one_of(quantizing_backends(), "cpu"), "what computes");
  options.add("implementation", one_of({"own", "cublaslt"}, "own"),
              "with --backend cuda: own kernels, or cuBLASLt with the split_k of --spec");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  return options;
}

/// The multiplication: ops::Gemm, or a library call.
using Problem = LibraryCall;

Problem read_problem(const Values& values) {
  const std::string text = required(values, "spec", "gemm");
  Problem problem;
  if (is_library_call(text)) {
    problem = parse_library_call(text);
  } else {
    const GemmRequest request = parse_gemm_problem(text);
    problem.gemm = request.gemm;
    problem.a = request.a;
    problem.b = request.b;
    problem.output = request.gemm.output == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  }
  if (values.count("operand-a") != 0) {
    problem.a = parse_quant_spec(values["operand-a"].as<std::string>());
  }
  if (values.count("operand-b") != 0) {
    problem.b = parse_quant_spec(values["operand-b"].as<std::string>());
  }
  return problem;
}

std::optional<std::string> optional(const Values& values, const char* name) {
  if (values.count(name) == 0) return std::nullopt;
  return values[name].as<std::string>();
}

bool wants_epilogue(const Values& values) {
  return !values["alpha"].is_default || !values["beta"].is_default ||
         !values["d-scale"].is_default || values.count("c") != 0 || values.count("bias") != 0;
}

/// Reads the epilogue requested by the options, with its tensors in memory of `backend`. Throws
/// Error for options that would have no effect.
cpu::LibraryEpilogue read_epilogue(const Values& values, Backend& backend,
                                   const numerics::FormatSpec& output) {
  cpu::LibraryEpilogue epilogue;
  epilogue.alpha = values["alpha"].as<float>();
  epilogue.beta = values["beta"].as<float>();
  epilogue.output = output;
  epilogue.output_scale = values["d-scale"].as<float>();
  const bool has_c = values.count("c") != 0;
  if (has_c != (epilogue.beta != 0.0f)) {
    if (!has_c) throw InputError({.where = "gemm", .key = "--beta", .reason = "needs --c C.npy"});
    throw InputError({.where = "gemm",
                      .key = "--c",
                      .reason = "has no effect without --beta",
                      .accepted = "a --beta other than 0"});
  }
  if (!values["d-scale"].is_default && output.bits() > 8) {
    throw InputError({.where = "gemm",
                      .key = "--d-scale",
                      .reason = fmt::format("is for outputs e4m3fn and e5m2, this one is {}",
                                            format_name(output))});
  }
  const auto read = [&](const char* name) {
    NpyArray array = read_matrix(values[name].as<std::string>());
    return upload(backend, array.view());
  };
  if (has_c) epilogue.c = read("c");
  if (values.count("bias") != 0) epilogue.bias = read("bias");
  return epilogue;
}

/// Returns D of a library call, computed by the CPU backend.
TensorView call_library(const Values& values, Backend& backend, const Problem& problem,
                        const QuantizedOperand& a, const QuantizedOperand& b) {
  const cpu::LibraryEpilogue epilogue = read_epilogue(values, backend, problem.output);
  const TensorView d = backend.allocate(cpu::library_storage(problem.output), a.rows, b.rows);
  cpu::library_gemm(problem.gemm, a, b, epilogue, d);
  return d;
}

}  // namespace

int gemm(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("gemm", gemm_options(), arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const Problem problem = read_problem(values);
  const std::string file_a = required(values, "a", "gemm");
  const std::string file_b = required(values, "b", "gemm");
  const std::string out =
      output_file(required(values, "out", "gemm"), "gemm: --out", Replaces::npy).string();
  check_files_apart("gemm", named_files(values, {"out"}),
                    named_files(values, {"a", "b", "c", "bias", "scale-a", "scale-b"}));
  const auto backend = make_backend(values["backend"].as<std::string>(), threads_of(values, "gemm"),
                                    values["implementation"].as<std::string>());
  const auto shapeless = [](const QuantSpec& spec) {
    return QuantizedOperand::without_memory(spec, 0, 0);
  };
  const Support support =
      backend->supports(ops::Gemm{.spec = problem.gemm,
                                  .a = shapeless(problem.a),
                                  .b = shapeless(problem.b),
                                  .bias = {},
                                  .d = TensorView::without_memory(problem.gemm.output, 0, 0)});
  if (!support)
    throw InputError(
        {.where = fmt::format("backend {}", backend->name()), .reason = support.reason});

  const bool library = is_library_call(values["spec"].as<std::string>());
  if ((library || wants_epilogue(values)) && backend->name() != "cpu") {
    throw InputError({.where = "gemm",
                      .reason = fmt::format("library calls, --alpha, --beta, --c, --bias and "
                                            "--d-scale are for --backend cpu, not {}",
                                            backend->name())});
  }
  check_seed(values, "gemm", std::array{problem.a, problem.b});
  const auto seed = values["seed"].as<std::uint64_t>();
  const MatrixOperand left =
      read_operand(*backend, file_a, optional(values, "scale-a"), problem.a, seed);
  const MatrixOperand right =
      read_operand(*backend, file_b, optional(values, "scale-b"), problem.b, seed);
  require_unread(out, "gemm: --out");
  const QuantizedOperand &a = left.operand, &b = right.operand;
  if (a.k != b.k) {
    throw Error(
        fmt::format("{} is ({}, {}) and {} is ({}, {}); A (M, K) and B (N, K) must have the "
                    "same K",
                    file_a, a.rows, a.k, file_b, b.rows, b.k));
  }
  if (library) check_library_call(problem, a.rows, b.rows, a.k);
  TensorView d;
  if (library || wants_epilogue(values)) {
    d = call_library(values, *backend, problem, a, b);
  } else {
    d = backend->allocate(backend->storage(problem.gemm.output), a.rows, b.rows);
    multiply(*backend, problem.gemm, left, right, TensorView{}, false, d);
  }
  write_npy(out, read_back(*backend, d));
  fmt::print("{}: ({}, {}) from K = {}, {}, A {}, B {}\n", out, a.rows, b.rows, a.k,
             library ? values["spec"].as<std::string>() : label(problem.gemm), label(problem.a),
             label(problem.b));
  const std::string algorithm = gemm_algorithm(*backend);
  if (!algorithm.empty()) fmt::print("  {}\n", algorithm);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
