// Hadamard matrices: H with entries +-1 and H H^T = n I, and the defined order of x H / sqrt(n).
//
// H_n = S (x) C for n = 2^p * m. S is Sylvester's matrix of order 2^p,
// S(i, j) = (-1)^popcount(i & j). C is the core of order m = hadamard_core(n): (1) for powers of
// two, else the smallest of Paley's matrices (Paley, "On orthogonal matrices", J. Math. Phys. 12,
// 1933) and Williamson's (Williamson, "Hadamard's determinant theorem and the sum of four squares",
// Duke Math. J. 11, 1944) that divides n. Element i of a vector is element i mod m of group i / m.
#pragma once

#include <cstdint>

#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr int kMaxHadamardCore = 1024;

/// The field of `order` = prime^degree elements, degree 1 to 3 and the prime odd. An element is the
/// number whose digits to the base `prime` are the coefficients of a polynomial, taken modulo
/// t^degree - linear * t - constant. prime = 0: there is no such field.
struct FiniteField {
  int order = 0, prime = 0, degree = 0, linear = 0, constant = 0;

  FP8LAB_HD constexpr int subtract(int a, int b) const {
    int result = 0, unit = 1;
    for (int digit = 0; digit < degree; ++digit) {
      result += (a % prime - b % prime + prime) % prime * unit;
      a /= prime;
      b /= prime;
      unit *= prime;
    }
    return result;
  }

  FP8LAB_HD constexpr int multiply(int a, int b) const {
    int product[5] = {};
    for (int i = 0; i < degree; ++i, a /= prime) {
      for (int j = 0, rest = b; j < degree; ++j, rest /= prime) {
        product[i + j] += a % prime * (rest % prime);
      }
    }
    for (int power = 2 * degree - 2; power >= degree; --power) {
      product[power - degree + 1] += product[power] % prime * linear;
      product[power - degree] += product[power] % prime * constant;
    }
    int result = 0;
    for (int i = degree - 1; i >= 0; --i) result = result * prime + product[i] % prime;
    return result;
  }
};

/// Returns the field of `order` elements; prime = 0 if `order` is not the first to third power of
/// an odd prime. The modulus is the first without a root, so for degrees 2 and 3 it is irreducible.
FP8LAB_HD constexpr FiniteField finite_field(int order) {
  FiniteField field;
  if (order < 3 || order % 2 == 0) return field;
  int prime = 3;
  while (order % prime != 0) prime += 2;
  int degree = 0, rest = order;
  for (; rest % prime == 0; rest /= prime) ++degree;
  if (rest != 1 || degree > 3) return field;
  field = {order, prime, degree, 0, 0};
  for (int choice = 1; degree > 1 && choice < prime * prime; ++choice) {
    field.linear = choice / prime;
    field.constant = choice % prime;
    bool has_root = false;
    for (int t = 0; t < prime; ++t) {
      const int power = degree == 2 ? t * t : t * t % prime * t;
      has_root = has_root || power % prime == (field.linear * t + field.constant) % prime;
    }
    if (!has_root) break;
  }
  return field;
}

/// Returns Paley's first (1) or second (2) construction for a matrix of this order, 0 for neither.
/// The first needs a field of order - 1 = 3 mod 4 elements, the second one of
/// order / 2 - 1 = 1 mod 4.
FP8LAB_HD constexpr int paley_construction(int order) {
  if (order < 4 || order % 4 != 0) return 0;
  if (finite_field(order - 1).prime != 0) return 1;
  return order % 8 == 4 && finite_field(order / 2 - 1).prime != 0 ? 2 : 0;
}

/// Returns the signs of the first rows of Williamson's four symmetric circulant matrices A, B, C, D
/// of this side, for which A^2 + B^2 + C^2 + D^2 = 4 side I: bit i of the word is set if element i
/// is -1. Zeros for a side without a table.
FP8LAB_HD constexpr std::uint64_t williamson_signs(int side, int matrix) {
  if (side == 39) {
    return matrix == 0   ? 0x7749E792EEu
           : matrix == 1 ? 0x4FCD42B3F2u
           : matrix == 2 ? 0x3165FFA68Cu
                         : 0x761EA5786Eu;
  }
  if (side == 43) {
    return matrix == 0   ? 0x4F4C932F20u
           : matrix == 1 ? 0x1CD53FCAB38u
           : matrix == 2 ? 0x285B198DA14u
                         : 0x4F85108A1F2u;
  }
  return 0;
}

/// Returns whether this file has a Hadamard matrix of this order that is not made of smaller ones.
FP8LAB_HD constexpr bool is_core_order(int order) {
  return paley_construction(order) != 0 || (order % 4 == 0 && williamson_signs(order / 4, 0) != 0);
}

/// Returns the order of the core of H_n, see above; 0 if n has no core of at most kMaxHadamardCore.
FP8LAB_HD constexpr int hadamard_core(std::int64_t n) {
  if (n < 1) return 0;
  std::int64_t odd = n;
  while (odd % 2 == 0) odd /= 2;
  if (odd == 1) return 1;
  for (std::int64_t order = 4 * odd; order <= kMaxHadamardCore && n % order == 0; order *= 2) {
    if (is_core_order(static_cast<int>(order))) return static_cast<int>(order);
  }
  return 0;
}

/// Writes Williamson's array [[A, B, C, D], [-B, A, -D, C], [-C, D, A, -B], [-D, -C, B, A]].
template <class T>
FP8LAB_HD constexpr void write_williamson(int order, T* core) {
  const int side = order / 4;
  for (int i = 0; i < order; ++i) {
    for (int j = 0; j < order; ++j) {
      const int row = i / side, column = j / side;
      const std::uint64_t signs = williamson_signs(side, row ^ column);
      const bool minus = (signs >> ((j - i + order) % side) & 1u) != 0;
      const bool negated = (row == 1 && column % 2 == 0) || (row == 2 && column % 3 == 0) ||
                           (row == 3 && column < 2);
      core[i * order + j] = T(minus != negated ? -1 : 1);
    }
  }
}

/// Writes the entries C(i, j) of the core of this order to core[i * order + j]. Precondition:
/// hadamard_core returns the order. For Paley's constructions let chi be the quadratic character of
/// the field and Q(a, b) = chi(a - b). The first is I + [[0, 1], [-1, Q]]; the second replaces the
/// zeros of [[0, 1], [1, Q]] by [[1, -1], [-1, -1]] and its other entries s by
/// s * [[1, 1], [1, -1]].
template <class T>
FP8LAB_HD constexpr void write_hadamard_core(int order, T* core) {
  if (order == 1) {
    core[0] = T(1);
    return;
  }
  const int construction = paley_construction(order);
  if (construction == 0) return write_williamson(order, core);
  const int side = order / construction;  // side of the bordered matrix of characters
  const FiniteField field = finite_field(side - 1);
  int character[kMaxHadamardCore] = {};
  for (int a = 1; a < field.order; ++a) character[a] = -1;
  for (int a = 1; a < field.order; ++a) character[field.multiply(a, a)] = 1;
  for (int i = 0; i < side; ++i) {
    for (int j = 0; j < side; ++j) {
      int entry = i == j ? 0 : j == 0 && construction == 1 ? -1 : 1;
      if (i > 0 && j > 0) entry = character[field.subtract(i - 1, j - 1)];
      if (construction == 1) {
        core[i * order + j] = T(i == j ? 1 : entry);
        continue;
      }
      T* square = core + 2 * i * order + 2 * j;
      square[0] = T(entry == 0 ? 1 : entry);
      square[1] = square[order] = T(entry == 0 ? -1 : entry);
      square[order + 1] = T(entry == 0 ? -1 : -entry);
    }
  }
}

/// Returns the factor that makes x H_n orthonormal: rsqrt of n, which is exact below 2^24.
FP8LAB_HD inline float hadamard_factor(std::int64_t n) { return rsqrt(static_cast<float>(n)); }

/// Computes values = values * H_n / sqrt(n), or by H_n^T with `transposed`, for `width` vectors
/// side by side: element i of vector w is values[i * width + w]. `core` holds the core of order
/// `order` = hadamard_core(n), `scratch` order * width values.
///
/// FP32, each operation rounded to nearest even, in this order. If order > 1, each group g of the
/// elements g * order + i becomes sum_i C(i, j) x_i, or C(j, i) x_i if transposed, i ascending from
/// the signed first term. Then for span = order, 2 * order, ... < n the elements i and i + span,
/// i / span even, become a + b and a - b. Last, every element is multiplied by hadamard_factor(n).
FP8LAB_HD inline void hadamard_multiply(float* values, std::int64_t n, std::int64_t width,
                                        const float* core, std::int64_t order, bool transposed,
                                        float* scratch) {
  for (std::int64_t group = 0; order > 1 && group < n; group += order) {
    float* const x = values + group * width;
    for (std::int64_t i = 0; i < order; ++i) {
      for (std::int64_t j = 0; j < order; ++j) {
        const float sign = transposed ? core[j * order + i] : core[i * order + j];
        float* const sum = scratch + j * width;
        const float* const term = x + i * width;
        if (i == 0) {
          for (std::int64_t w = 0; w < width; ++w) sum[w] = sign * term[w];
        } else {
          for (std::int64_t w = 0; w < width; ++w) sum[w] += sign * term[w];
        }
      }
    }
    for (std::int64_t e = 0; e < order * width; ++e) x[e] = scratch[e];
  }
  for (std::int64_t span = order; span < n; span *= 2) {
    const std::int64_t half = span * width;
    for (std::int64_t begin = 0; begin < n * width; begin += 2 * half) {
      float* const low = values + begin;
      float* const high = low + half;
      for (std::int64_t e = 0; e < half; ++e) {
        const float a = low[e], b = high[e];
        low[e] = a + b;
        high[e] = a - b;
      }
    }
  }
  const float factor = hadamard_factor(n);
  for (std::int64_t e = 0; e < n * width; ++e) values[e] *= factor;
}

FP8LAB_NUMERICS_END
