// Eigen under a namespace of the instruction set that a source is compiled for, so that the linker
// cannot hand AVX-512 code to callers compiled without it. For the sources of this folder only.
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
