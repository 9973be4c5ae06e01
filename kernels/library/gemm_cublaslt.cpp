#include "kernels/library/gemm_cublaslt.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "kernels/library/cublaslt_calls.hpp"
#include "kernels/pointwise/transpose.hpp"

namespace fp8lab::cuda {
namespace {

using ScaleMode = cublasLtMatmulMatrixScale_t;

constexpr ScaleMode kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
constexpr ScaleMode kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
constexpr ScaleMode kVector = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
constexpr ScaleMode kBlock = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

/// The workspace limit with which split-K was measured
/// (emulation/specification.md, "Epilogue and split K").
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kAlignment = 256;
constexpr std::int64_t kMultiple = 16;
constexpr int kAlgorithms = 16;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw RuntimeFailure(std::string(call) + ": " + cublaslt().status_string(status));
  }
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublaslt().set_of_operation(operation, name, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

std::optional<ScaleMode> scale_mode(const QuantSpec& spec) {
  const TileShape tile = spec.scale_tile();
  if (tile.is_tensor()) return kScalar;
  if (tile.is_row()) return kOuter;
  if (tile == TileShape{1, 128}) return kVector;
  if (tile == TileShape{128, 128}) return kBlock;
  return std::nullopt;
}

bool supported_pair(std::optional<ScaleMode> a, std::optional<ScaleMode> b) {
  if (!a || !b) return false;
  if (a != b) return (a == kVector && b == kBlock) || (a == kBlock && b == kVector);
  return a != kBlock;
}

bool is_fp8_format(const QuantSpec& spec) {
  return spec.format == numerics::kE4M3 || spec.format == numerics::kE5M2;
}

std::string refuse_formats(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  if (spec.accumulator == Accumulator::sm90_bf16) {
    const bool bf16 = a.format == numerics::kBF16 && b.format == numerics::kBF16;
    return bf16 ? "" : "multiplies bf16 by bf16 with sm90_bf16; quantized operands are refused";
  }
  if (spec.accumulator != Accumulator::sm90_wgmma_fp8) {
    return "has no accumulator " + accumulator_name(spec.accumulator) +
           "; accepted: sm90_wgmma_fp8, sm90_bf16";
  }
  if (!is_fp8_format(a) || !is_fp8_format(b)) {
    return "reads e4m3fn and e5m2 codes with sm90_wgmma_fp8, other formats are refused";
  }
  if (a.format == numerics::kE5M2 && b.format == numerics::kE5M2) {
    return "does not multiply e5m2 by e5m2; accepted: at most one operand in e5m2";
  }
  return {};
}

std::string refuse_schedule(const GemmSpec& spec, const GemmPlan& plan, bool scales_along_k) {
  if (spec.accumulator == Accumulator::sm90_bf16) {
    return plan.promoted ? "accumulates bf16 in one chain; accepted: fast" : "";
  }
  if (plan.promoted && plan.chunk != 128) {
    return "promotes every 128 of K, not " + std::to_string(plan.chunk) +
           "; accepted: promote:128" + (scales_along_k ? "" : ", fast");
  }
  if (!scales_along_k && plan.order != ScaleOrder::epilogue) {
    return "applies scales that are constant along K after the sum; accepted scale orders: "
           "automatic, epilogue";
  }
  return {};
}

std::string refuse_order(const GemmPlan& plan, bool blocks) {
  if (blocks != (plan.order == ScaleOrder::product_first)) {
    return blocks ? "multiplies the scales first where one tile is 128x128; accepted scale orders: "
                    "automatic, product_first"
                  : "applies 1x128 scales one after the other; accepted scale orders: automatic, "
                    "b_then_a, a_then_b";
  }
  return {};
}

/// Returns why the library refuses a GEMM that the emulator accepts, or an empty string.
std::string refuse_library(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  std::string reason = refuse_formats(spec, a, b);
  if (!reason.empty()) return reason;
  const auto mode_a = scale_mode(a), mode_b = scale_mode(b);
  if (!supported_pair(mode_a, mode_b)) {
    return "does not combine these scale tiles; accepted: both per tensor, both per row, 1x128 "
           "with 1x128, 1x128 with 128x128";
  }
  GemmSpec unsplit = spec;
  unsplit.split_k = 1;
  const GemmPlan plan = plan_gemm(unsplit, a, b, 128);
  const bool along_k = mode_a == kVector || mode_a == kBlock;
  reason = refuse_schedule(spec, plan, along_k);
  if (reason.empty() && along_k) reason = refuse_order(plan, mode_a == kBlock || mode_b == kBlock);
  return reason;
}

void refuse_shape(const GemmCall& call) {
  const auto shape = {call.a.rows, call.b.rows, call.a.k};
  if (std::any_of(shape.begin(), shape.end(), [](auto x) { return x < 1 || x % kMultiple != 0; })) {
    throw Error("cuBLASLt takes M, N and K that are positive multiples of 16, found (M, N, K) = (" +
                std::to_string(call.a.rows) + ", " + std::to_string(call.b.rows) + ", " +
                std::to_string(call.a.k) + ")");
  }
  const std::pair<const char*, const TensorView*> views[] = {
      {"A", &call.a.codes}, {"B", &call.b.codes}, {"D", &call.d}};
  for (const auto& [name, view] : views) {
    const auto bytes = static_cast<std::size_t>(view->row_stride) * size_of(view->dtype);
    if (reinterpret_cast<std::uintptr_t>(view->data) % 16 != 0 || bytes % 16 != 0) {
      throw Error(std::string("cuBLASLt takes rows aligned to 16 bytes; those of ") + name +
                  " are not");
    }
  }
}

void refuse_bias(const TensorView& bias, LibraryA library_a) {
  if (bias.empty()) return;
  if (bias.dtype != DType::bf16) throw Error("cuBLASLt adds a bf16 bias only");
  if (library_a == LibraryA::ours_a) {
    throw Error(
        "cuBLASLt adds a bias along its columns, and these scales put ours along its rows; "
        "accepted with a bias: scales per tensor or with one 128x128 tile, no scales");
  }
}

cudaDataType_t data_type(const QuantizedOperand& operand) {
  if (operand.spec.format == numerics::kBF16) return CUDA_R_16BF;
  return operand.spec.format == numerics::kE5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

cublasLtMatrixLayout_t make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t cols,
                                   std::int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublaslt().create_layout(&layout, type, static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(cols), leading),
        "cublasLtMatrixLayoutCreate");
  return layout;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Returns the shape of the scales in the library's layout (emulation/specification.md, "Calls of
/// cuBLASLt"), without memory.
TensorView library_scales(const QuantizedOperand& operand) {
  const TensorView& ours = operand.scales;
  if (ours.empty()) return {};
  const bool transposed = scale_mode(operand.spec) != kBlock;
  const std::int64_t rows = transposed ? ours.cols : ours.rows;
  const std::int64_t cols = transposed ? ours.rows : ours.cols;
  return {nullptr, DType::f32, rows, cols, round_up(cols, 4)};
}

std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kAlignment;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

template <class T>
T attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  std::size_t written = 0;
  check(cublaslt().algorithm_attribute(&algorithm, name, &value, sizeof value, &written),
        "cublasLtMatmulAlgoConfigGetAttribute");
  return value;
}

int split_of(const cublasLtMatmulAlgo_t& algorithm) {
  return std::max(1, attribute<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

/// Returns true if the algorithm reduces partial sums in FP32, the only reduction whose arithmetic
/// is known, or does not split.
bool known_reduction(const cublasLtMatmulAlgo_t& algorithm) {
  const auto scheme = attribute<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  return split_of(algorithm) == 1 || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

std::string describe(const cublasLtMatmulHeuristicResult_t& result) {
  const cublasLtMatmulAlgo_t& algorithm = result.algo;
  const auto word = [&](cublasLtMatmulAlgoConfigAttributes_t name) {
    return std::to_string(attribute<std::uint32_t>(algorithm, name));
  };
  const auto half = [&](cublasLtMatmulAlgoConfigAttributes_t name) {
    return std::to_string(attribute<std::uint16_t>(algorithm, name));
  };
  return "algorithm " +
         std::to_string(attribute<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID)) +
         ", tile id " + word(CUBLASLT_ALGO_CONFIG_TILE_ID) + ", stages id " +
         word(CUBLASLT_ALGO_CONFIG_STAGES_ID) + ", cluster id " +
         half(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) + ", inner shape " +
         half(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID) + ", custom option " +
         word(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) + ", swizzling " +
         word(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING) + ", split_k " +
         std::to_string(split_of(algorithm)) + ", reduction " +
         word(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) + ", workspace " +
         std::to_string(result.workspaceSize) + " bytes";
}

/// The constraints of the algorithm heuristic.
class Preference {
 public:
  Preference() { check(cublaslt().create_preference(&handle_), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { cublaslt().destroy_preference(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t name, const T& value) {
    check(cublaslt().set_of_preference(handle_, name, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t handle() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

std::string cublaslt_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  std::string reason = fp8lab::gemm_refusal(spec, a, b);
  if (!reason.empty()) return reason;
  reason = refuse_library(spec, a, b);
  return reason.empty() ? reason : "cuBLASLt " + reason;
}

LibraryA library_a(const GemmPlan& plan) {
  const bool per_row = plan.order == ScaleOrder::epilogue && !plan.scalar_scales;
  return per_row || plan.order == ScaleOrder::b_then_a ? LibraryA::ours_a : LibraryA::ours_b;
}

CublasLt::CublasLt() { check(cublaslt().create(&handle_), "cublasLtCreate"); }
CublasLt::~CublasLt() { cublaslt().destroy(handle_); }

std::string cublaslt_version() {
  const std::size_t version = cublaslt().version();
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

CublasLtGemm::CublasLtGemm(const CublasLt& library, const GemmCall& call, LibraryA library_a)
    : library_(library), call_(call), swapped_(library_a == LibraryA::ours_b), d_(call.d) {
  const std::string reason = cublaslt_refusal(call.spec, call.a.spec, call.b.spec);
  if (!reason.empty()) throw Error(reason);
  const GemmPlan plan = plan_gemm(call.spec, call.a.spec, call.b.spec, call.a.k);
  check_gemm_operands(call.spec, plan, call.a, call.b, call.bias, call.accumulate, call.d);
  refuse_shape(call);
  refuse_bias(call.bias, library_a);
  if (!swapped_) d_ = {nullptr, call.d.dtype, call.d.cols, call.d.rows, call.d.rows};
  // If C and D shared memory, the last bits differed from those of fma(A, s, C) on an H200.
  separate_c_ = swapped_ && call.accumulate && (call.a.spec.has_scale() || call.b.spec.has_scale());
  c_ = d_;
  if (separate_c_) c_.row_stride = c_.cols;
  set_operation();
  set_layouts();
  place_scratch();
}

void CublasLtGemm::Destroy::operator()(cublasLtMatmulDescOpaque_t* operation) const {
  cublaslt().destroy_operation(operation);
}

void CublasLtGemm::Destroy::operator()(cublasLtMatrixLayoutOpaque_t* layout) const {
  cublaslt().destroy_layout(layout);
}

void CublasLtGemm::set_operation() {
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublaslt().create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  operation_.reset(operation);
  // The library's matrices are column-major: our (rows, k) is its k x rows.
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA,
      operand(0).has_rows_contiguous() ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB,
      operand(1).has_rows_contiguous() ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (call_.spec.accumulator == Accumulator::sm90_wgmma_fp8) {
    const std::int8_t fast = call_.spec.schedule == Schedule::fast ? 1 : 0;
    set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, *scale_mode(operand(0).spec));
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, *scale_mode(operand(1).spec));
  }
  if (!call_.bias.empty()) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call_.bias.data);
  }
}

void CublasLtGemm::set_layouts() {
  for (int i = 0; i < 2; ++i) {
    const QuantizedOperand& source = operand(i);
    operand_layouts_[static_cast<std::size_t>(i)].reset(make_layout(
        data_type(source), source.codes.cols, source.codes.rows, source.codes.row_stride));
  }
  const cudaDataType_t type = d_.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
  d_layout_.reset(make_layout(type, d_.cols, d_.rows, d_.row_stride));
  c_layout_.reset(make_layout(type, c_.cols, c_.rows, c_.row_stride));
}

void CublasLtGemm::place_scratch() {
  for (int i = 0; i < 2; ++i) {
    const TensorView scales = library_scales(operand(i));
    scale_bytes_[static_cast<std::size_t>(i)] =
        padded(static_cast<std::size_t>(scales.rows * scales.row_stride) * sizeof(float));
  }
  d_bytes_ = swapped_ && !separate_c_
                 ? 0
                 : padded(static_cast<std::size_t>(d_.size()) * size_of(d_.dtype));
  scratch_bytes_ = scale_bytes_[0] + scale_bytes_[1] + d_bytes_ + kWorkspaceBytes;
}

void CublasLtGemm::copy_scales(Context& context, int i, std::byte* scratch) {
  const TensorView& ours = operand(i).scales;
  if (ours.empty()) return;
  TensorView theirs = library_scales(operand(i));
  theirs.data = scratch;
  cuda::check(
      cudaMemsetAsync(scratch, 0, scale_bytes_[static_cast<std::size_t>(i)], context.stream()),
      "cudaMemsetAsync");
  if (scale_mode(operand(i).spec) == kBlock) {
    cuda::check(cudaMemcpy2DAsync(scratch, static_cast<std::size_t>(theirs.row_stride) * 4,
                                  ours.data, static_cast<std::size_t>(ours.row_stride) * 4,
                                  static_cast<std::size_t>(ours.cols) * 4,
                                  static_cast<std::size_t>(ours.rows), cudaMemcpyDeviceToDevice,
                                  context.stream()),
                "cudaMemcpy2DAsync");
  } else {
    transpose(context, ours, theirs);
  }
  set(operation_.get(),
      i == 0 ? CUBLASLT_MATMUL_DESC_A_SCALE_POINTER : CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
      static_cast<const void*>(scratch));
}

void CublasLtGemm::prepare(Context& context, std::byte* scratch, std::optional<int> split_k) {
  copy_scales(context, 0, scratch);
  copy_scales(context, 1, scratch + scale_bytes_[0]);
  std::byte* place = scratch + scale_bytes_[0] + scale_bytes_[1];
  if (!swapped_) d_.data = place;
  c_.data = separate_c_ ? place : d_.data;
  workspace_ = place + d_bytes_;
  choose_algorithm(split_k);
}

void CublasLtGemm::choose_algorithm(std::optional<int> split_k) {
  std::set<int> found;
  // If the library prefers to split K, only a workspace of 0 yields algorithms that do not.
  for (const std::size_t workspace : {kWorkspaceBytes, std::size_t{0}}) {
    for (const cublasLtMatmulHeuristicResult_t& result : algorithms(workspace)) {
      split_k_ = split_of(result.algo);
      if (!split_k || *split_k == split_k_) {
        algorithm_ = result.algo;
        algorithm_name_ = describe(result);
        return;
      }
      found.insert(split_k_);
    }
  }
  std::string accepted;
  for (const int split : found) {
    accepted +=
        (accepted.empty() ? "; accepted here: split_k:" : ", split_k:") + std::to_string(split);
  }
  throw Error(cublaslt_version() + " has no algorithm for this GEMM, " + label(call_.spec) +
              accepted);
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasLtGemm::algorithms(std::size_t workspace) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(operand(0).codes.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(operand(1).codes.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c_.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(d_.data));
  std::vector<cublasLtMatmulHeuristicResult_t> results(kAlgorithms);
  int count = 0;
  const cublasStatus_t status = cublaslt().heuristic(
      library_.handle(), operation_.get(), operand_layouts_[0].get(), operand_layouts_[1].get(),
      c_layout_.get(), d_layout_.get(), preference.handle(), kAlgorithms, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(static_cast<std::size_t>(count));
  std::erase_if(results, [](const auto& result) {
    return result.state != CUBLAS_STATUS_SUCCESS || !known_reduction(result.algo);
  });
  return results;
}

void CublasLtGemm::run(Context& context) const {
  const float alpha = call_.spec.alpha;
  const float beta = call_.accumulate ? 1.0f : 0.0f;
  if (!swapped_ && call_.accumulate) transpose(context, call_.d, d_);
  if (separate_c_) {
    const std::size_t size = size_of(d_.dtype);
    const auto width = static_cast<std::size_t>(d_.cols) * size;
    cuda::check(cudaMemcpy2DAsync(
                    c_.data, width, d_.data, static_cast<std::size_t>(d_.row_stride) * size, width,
                    static_cast<std::size_t>(d_.rows), cudaMemcpyDeviceToDevice, context.stream()),
                "cudaMemcpy2DAsync");
  }
  check(
      cublaslt().matmul(library_.handle(), operation_.get(), &alpha, operand(0).codes.data,
                        operand_layouts_[0].get(), operand(1).codes.data, operand_layouts_[1].get(),
                        &beta, c_.data, c_layout_.get(), d_.data, d_layout_.get(), &algorithm_,
                        workspace_, kWorkspaceBytes, context.stream()),
      "cublasLtMatmul");
  if (!swapped_) transpose(context, d_, call_.d);
}

}  // namespace fp8lab::cuda
