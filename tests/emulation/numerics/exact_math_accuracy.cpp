// Largest errors of emulation/numerics/exact_math.hpp against MPFR, as a table; fails when one is
// above the bound that the header states.
//
// Without an argument every 9973rd FP32 input is compared with MPFR. With --exhaustive every input
// of the domain is compared with the C library's double precision, whose own error is below 1e-8 of
// an FP32 ulp, and the worst input then with MPFR: minutes. A function's name after that leaves the
// other FP32 functions out.
#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/philox.hpp"

namespace {

namespace numerics = fp8lab::numerics;

constexpr std::uint64_t kAllFloats = std::uint64_t{1} << 32;
constexpr std::uint64_t kSampleStep = 9973;  // prime
constexpr int kShare = 1 << 12;              // inputs a thread takes at a time
constexpr int kF64Samples = 200000;

/// A number of 200 bits.
class Real {
 public:
  explicit Real(double value) {
    mpfr_init2(value_, 200);
    mpfr_set_d(value_, value, MPFR_RNDN);
  }
  ~Real() { mpfr_clear(value_); }
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;
  mpfr_ptr get() { return value_; }
  double to_double() const { return mpfr_get_d(value_, MPFR_RNDN); }

 private:
  mpfr_t value_;
};

using Operation = int (*)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

template <Operation kOperation>
void apply(Real& x) {
  kOperation(x.get(), x.get(), MPFR_RNDN);
}

void sigmoid(Real& x) {
  mpfr_neg(x.get(), x.get(), MPFR_RNDN);
  mpfr_exp(x.get(), x.get(), MPFR_RNDN);
  mpfr_add_ui(x.get(), x.get(), 1, MPFR_RNDN);
  mpfr_ui_div(x.get(), 1, x.get(), MPFR_RNDN);
}

void silu(Real& x) {
  Real factor(x.to_double());
  sigmoid(x);
  mpfr_mul(x.get(), x.get(), factor.get(), MPFR_RNDN);
}

double libm_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double libm_silu(double x) { return x / (1.0 + std::exp(-x)); }
double libm_rsqrt(double x) { return 1.0 / std::sqrt(x); }

/// 2^-d
void weight(Real& x) {
  mpfr_neg(x.get(), x.get(), MPFR_RNDN);
  mpfr_exp2(x.get(), x.get(), MPFR_RNDN);
}
double libm_weight(double d) { return std::exp2(-d); }

/// An FP32 function on the inputs in [low, high].
struct Unary {
  const char* name;
  float (*function)(float);
  void (*exact)(Real&);
  double (*libm)(double);
  float low, high;
  double bound;  ///< ulp
};

constexpr float kSmallest = 0x1p-149f;
constexpr float kLargest = 0x1.FFFFFEp127f;

const Unary kUnary[] = {
    {"exp2", numerics::exp2, apply<mpfr_exp2>, std::exp2, -0x1.2BFFFEp7f, 0x1.FFFFFEp6f, 1.0},
    {"log2", numerics::log2, apply<mpfr_log2>, std::log2, kSmallest, kLargest, 1.0},
    {"log", numerics::log, apply<mpfr_log>, std::log, kSmallest, kLargest, 2.0},
    {"rsqrt", numerics::rsqrt, apply<mpfr_rec_sqrt>, libm_rsqrt, kSmallest, kLargest, 1.5},
    // Bounds of sigmoid: (2 + |x|) * 2^-23 relative is at most 2 * (2 + |x|) / 2 ulp.
    {"sigmoid, |x| <= 1", numerics::sigmoid, sigmoid, libm_sigmoid, -1.0f, 1.0f, 3.0},
    {"sigmoid, |x| <= 16", numerics::sigmoid, sigmoid, libm_sigmoid, -16.0f, 16.0f, 18.0},
    {"sigmoid, x >= -87", numerics::sigmoid, sigmoid, libm_sigmoid, -87.0f, kLargest, 89.0},
    {"silu, |x| <= 1", numerics::silu, silu, libm_silu, -1.0f, 1.0f, 4.0},
    {"silu, |x| <= 16", numerics::silu, silu, libm_silu, -16.0f, 16.0f, 19.0},
    {"silu, x >= -87", numerics::silu, silu, libm_silu, -87.0f, kLargest, 90.0},
    // 2^-18 relative is 64 ulp below a power of two.
    {"attention_weight", numerics::attention_weight, weight, libm_weight, -0.5f, 126.0f, 64.0},
};

/// Distance in units of the last place of the FP32 grid at the exact value.
double ulps(float got, double exact) {
  const int exponent = exact == 0.0 ? -149 : std::max(std::ilogb(exact), -126) - 23;
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent);
}

struct Worst {
  double error = 0.0;
  float input = 0.0f;
  std::uint64_t inputs = 0;

  void take(double candidate, float x) {
    ++inputs;
    if (candidate > error) error = candidate, input = x;
  }
  void take(const Worst& other) {
    inputs += other.inputs;
    if (other.error > error) error = other.error, input = other.input;
  }
};

double mpfr_error(const Unary& unary, float x) {
  Real exact(static_cast<double>(x));
  unary.exact(exact);
  return ulps(unary.function(x), exact.to_double());
}

Worst measure(const Unary& unary, bool exhaustive) {
  const std::uint64_t step = exhaustive ? 1 : kSampleStep;
  const auto count = static_cast<std::int64_t>((kAllFloats + step - 1) / step);
  Worst worst;
#pragma omp parallel
  {
    Worst mine;
#pragma omp for schedule(dynamic, kShare)
    for (std::int64_t i = 0; i < count; ++i) {
      const float x =
          numerics::bits_float(static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * step));
      if (!(x >= unary.low && x <= unary.high)) continue;
      mine.take(exhaustive ? ulps(unary.function(x), unary.libm(static_cast<double>(x)))
                           : mpfr_error(unary, x),
                x);
    }
#pragma omp critical
    worst.take(mine);
    mpfr_free_cache();
  }
  if (exhaustive) worst.error = mpfr_error(unary, worst.input);
  return worst;
}

/// Random numbers in [0, 1).
class Uniform {
 public:
  double next() {
    const numerics::PhiloxCounter block = numerics::random_block(1, 0, 0, 0, index_++);
    return block.word[0] * 0x1p-32 + block.word[1] * 0x1p-64;
  }

 private:
  std::uint64_t index_ = 0;
};

/// The difference of `got` and an exact value, as a multiple of `unit`.
double difference(double got, Real& exact, double unit) {
  mpfr_sub_d(exact.get(), exact.get(), got, MPFR_RNDN);
  return std::abs(exact.to_double()) / unit;
}

bool report_f64(const char* name, const char* unit, double worst, double bound) {
  std::printf("| %s | %.2e %s | %.0e | %d random |\n", name, worst, unit, bound, kF64Samples);
  return worst < bound;
}

bool measure_sincos() {
  Uniform uniform;
  double worst = 0.0;
  for (int i = 0; i < kF64Samples; ++i) {
    const double x = (2.0 * uniform.next() - 1.0) * std::exp2(20.0 * uniform.next());
    const numerics::SinCos got = numerics::sincos_f64(x);
    Real sine(x), cosine(x);
    apply<mpfr_sin>(sine);
    apply<mpfr_cos>(cosine);
    worst = std::max({worst, difference(got.sin, sine, 1.0), difference(got.cos, cosine, 1.0)});
  }
  return report_f64("sincos_f64, \\|x\\| <= 2^20", "absolute", worst, 4e-16);
}

bool measure_exp2_f64() {
  Uniform uniform;
  double worst = 0.0;
  for (int i = 0; i < kF64Samples; ++i) {
    const double x = 2000.0 * uniform.next() - 1000.0;
    Real exact(x);
    apply<mpfr_exp2>(exact);
    const double size = exact.to_double();
    worst = std::max(worst, difference(numerics::exp2_f64(x), exact, size));
  }
  return report_f64("exp2_f64, \\|x\\| <= 1000", "relative", worst, 1e-15);
}

bool measure_log2_f64() {
  Uniform uniform;
  double worst = 0.0;
  for (int i = 0; i < kF64Samples; ++i) {
    const double x = std::exp2(2000.0 * uniform.next() - 1000.0);
    Real exact(x);
    apply<mpfr_log2>(exact);
    const double size = std::max(1.0, std::abs(exact.to_double()));
    worst = std::max(worst, difference(numerics::log2_f64(x), exact, size));
  }
  return report_f64("log2_f64, normal x", "of max(1, \\|log2 x\\|)", worst, 4.5e-16);
}

bool measure_pow_f64() {
  Uniform uniform;
  double worst = 0.0;
  for (int i = 0; i < kF64Samples; ++i) {
    const double x = std::exp2(40.0 * uniform.next() - 20.0);
    const double y = 20.0 * uniform.next() - 10.0;
    Real exact(x);
    Real power(y);
    mpfr_pow(exact.get(), exact.get(), power.get(), MPFR_RNDN);
    const double size = exact.to_double() * (1.0 + std::abs(y));
    worst = std::max(worst, difference(numerics::pow_f64(x, y), exact, size));
  }
  return report_f64("pow_f64, 2^-20 <= x <= 2^20, \\|y\\| <= 10", "relative / (1 + \\|y\\|)", worst,
                    1e-15);
}

}  // namespace

int main(int count, char** arguments) {
  const bool exhaustive = count > 1 && std::strcmp(arguments[1], "--exhaustive") == 0;
  if (count > 3 || (count > 1 && !exhaustive)) {
    std::fprintf(stderr, "usage: exact_math_accuracy [--exhaustive [FUNCTION]]\n");
    return 2;
  }
  const std::string wanted = count == 3 ? arguments[2] : "";
  bool good = true;
  std::printf("| function | largest error | bound | inputs |\n| --- | --- | --- | --- |\n");
  for (const Unary& unary : kUnary) {
    if (std::string(unary.name).rfind(wanted, 0) != 0) continue;
    const Worst worst = measure(unary, exhaustive);
    std::printf("| %s | %.4f ulp at %a | %g | %llu |\n", unary.name, worst.error,
                static_cast<double>(worst.input), unary.bound,
                static_cast<unsigned long long>(worst.inputs));
    std::fflush(stdout);
    good = good && worst.error < unary.bound;
  }
  good = measure_sincos() && good;
  good = measure_exp2_f64() && good;
  good = measure_log2_f64() && good;
  good = measure_pow_f64() && good;
  return good ? 0 : 1;
}
