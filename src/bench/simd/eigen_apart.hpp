// Includes Eigen in a namespace of the instruction set for which a source is compiled,
// so that the linker cannot give AVX-512 code to callers compiled without it. Only for
// the sources of this folder.
#pragma once

#define FP8LAB_JOIN_EXPANDED(a, b) a##b
#define FP8LAB_JOIN(a, b) FP8LAB_JOIN_EXPANDED(a, b)
#define Eigen FP8LAB_JOIN(eigen_, FP8LAB_ISA)
#define EIGEN_NO_DEBUG
#define EIGEN_DONT_PARALLELIZE

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
