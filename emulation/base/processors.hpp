// Functions that are compiled for several generations of processors.
#pragma once

// In front of a function whose loops the compiler vectorizes: the loader chooses the instruction
// set. For integers, and for floating-point operations each of which is rounded by itself: without
// contraction the bits are the same everywhere. The loader's choice comes before AddressSanitizer
// can take it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define FP8LAB_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FP8LAB_FOR_EACH_PROCESSOR
#endif
