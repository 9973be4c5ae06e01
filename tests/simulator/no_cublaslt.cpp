// The library's GEMM, which the simulator does not have.
#include "emulation/base/error.hpp"
#include "kernels/library/gemm_cublaslt.hpp"

namespace fp8lab::cuda {
namespace {

[[noreturn]] void refuse() { throw Error("the simulated GPU has no cuBLASLt; use --gemm own"); }

}  // namespace

std::string cublaslt_refusal(const GemmSpec&, const QuantSpec&, const QuantSpec&) {
  return "the simulated GPU has no cuBLASLt";
}
LibraryA library_a(const GemmPlan&) { refuse(); }
CublasLt::CublasLt() { refuse(); }
CublasLt::~CublasLt() = default;
std::string cublaslt_version() { return "no cuBLASLt"; }
CublasLtGemm::CublasLtGemm(const CublasLt& library, const GemmCall& call, LibraryA)
    : library_(library), call_(call), swapped_(false) {
  refuse();
}
void CublasLtGemm::Destroy::operator()(cublasLtMatmulDescOpaque_t*) const {}
void CublasLtGemm::Destroy::operator()(cublasLtMatrixLayoutOpaque_t*) const {}
void CublasLtGemm::prepare(Context&, std::byte*, std::optional<int>) { refuse(); }
void CublasLtGemm::run(Context&) const { refuse(); }

}  // namespace fp8lab::cuda
