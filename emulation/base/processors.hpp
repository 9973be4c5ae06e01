// Compiles functions for several generations of processors.
#pragma once

// Put this before a function whose loops the compiler vectorizes; the loader then selects the
// instruction set. Use it for integers, and for floating-point operations that are each rounded
// separately: without contraction the bits are the same everywhere. Not with AddressSanitizer,
// because the loader selects the function before the sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define FP8LAB_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FP8LAB_FOR_EACH_PROCESSOR
#endif
