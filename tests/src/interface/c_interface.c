/* The C interface from C: that its header is C11, what its calls return, and with --layout how its
 * structures lie in memory, which tests/python/test_interface.py compares with those of ctypes. */
#include "src/interface/fp8lab.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                                         \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      printf("%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, fp8lab_last_error()); \
      ++failures;                                                                                 \
    }                                                                                             \
  } while (0)

static fp8lab_array matrix(void* data, const char* dtype, const int64_t* shape) {
  fp8lab_array array = {data, dtype, shape, NULL, 2, FP8LAB_CPU, 0};
  return array;
}

static int says(fp8lab_status status, const char* words) {
  return status == FP8LAB_ERROR && strstr(fp8lab_last_error(), words) != NULL;
}

static void test_codec(void) {
  const int64_t shape[] = {2, 2};
  float values[] = {1.0f, -0.3f, 1000.0f, 0.0f}, decoded[4];
  uint8_t codes[4];
  const fp8lab_array x = matrix(values, "float32", shape), y = matrix(codes, "uint8", shape);
  const fp8lab_array z = matrix(decoded, "float32", shape);
  int32_t bits = 0;
  EXPECT(fp8lab_format_bits("e4m3fn", &bits) == FP8LAB_OK && bits == 8);
  EXPECT(fp8lab_encode(&x, "e4m3fn", "nearest", "saturate", 0, &y) == FP8LAB_OK);
  EXPECT(codes[0] == 0x38 && codes[1] == 0xAA && codes[2] == 0x7E && codes[3] == 0);
  EXPECT(fp8lab_decode(&y, "e4m3fn", &z) == FP8LAB_OK);
  EXPECT(decoded[0] == 1.0f && decoded[1] == -0.3125f && decoded[2] == 448.0f);

  /* A transposed source, and one at an odd address. */
  const int64_t strides[] = {4, 8};
  fp8lab_array transposed = x;
  transposed.strides = strides;
  EXPECT(fp8lab_encode(&transposed, "e4m3fn", "nearest", "saturate", 0, &y) == FP8LAB_OK);
  EXPECT(codes[0] == 0x38 && codes[1] == 0x7E && codes[2] == 0xAA && codes[3] == 0);
  char bytes[sizeof values + 1];
  memcpy(bytes + 1, values, sizeof values);
  const fp8lab_array odd = matrix(bytes + 1, "float32", shape);
  EXPECT(fp8lab_encode(&odd, "e4m3fn", "nearest", "saturate", 0, &y) == FP8LAB_OK);
  EXPECT(codes[1] == 0xAA);

  fp8lab_array elsewhere = x, none = x, wide = z;
  elsewhere.device = FP8LAB_CUDA;
  none.data = NULL;
  wide.dtype = "float64";
  EXPECT(says(fp8lab_encode(&x, "e4m3", "nearest", "saturate", 0, &y), "unknown format 'e4m3'"));
  EXPECT(says(fp8lab_encode(NULL, "e5m2", "nearest", "saturate", 0, &y), "x: no array is given"));
  EXPECT(says(fp8lab_encode(&x, NULL, "nearest", "saturate", 0, &y), "format: is NULL"));
  EXPECT(says(fp8lab_encode(&elsewhere, "e5m2", "nearest", "saturate", 0, &y), "cuda:0"));
  EXPECT(says(fp8lab_encode(&none, "e5m2", "nearest", "saturate", 0, &y), "x: has no memory"));
  EXPECT(says(fp8lab_decode(&y, "e4m3fn", &wide), "values: is float64"));
  EXPECT(says(fp8lab_encode(&x, "e5m2", "nearest", "saturate", 0, &z), "codes: is float32"));
}

static void test_gemm(void) {
  enum { M = 2, N = 3, K = 32 };
  float a[M * K], b[N * K], d[M * N];
  for (int i = 0; i < M * K; ++i) a[i] = (float)(i % 5) - 2.0f;
  for (int i = 0; i < N * K; ++i) b[i] = (float)(i % 7) - 3.0f;
  const int64_t shape_a[] = {M, K}, shape_b[] = {N, K}, shape_d[] = {M, N}, shape_s[] = {M, 1};
  fp8lab_array array_a = matrix(a, "float32", shape_a), array_b = matrix(b, "float32", shape_b);
  fp8lab_array array_d = matrix(d, "float32", shape_d);
  fp8lab_backend* backend = NULL;
  fp8lab_gemm* gemm = NULL;
  fp8lab_quantizer *row = NULL, *same = NULL;
  EXPECT(says(fp8lab_backend_new("gpu", 0, &backend), "unknown backend 'gpu'"));
  EXPECT(fp8lab_backend_new("cpu", 1, &backend) == FP8LAB_OK);
  EXPECT(fp8lab_gemm_new("sm90_wgmma_fp8/promote:32/fp32", &gemm) == FP8LAB_OK);
  EXPECT(!fp8lab_gemm_is_library_call(gemm));
  EXPECT(strcmp(fp8lab_gemm_result_type(gemm), "float32") == 0);
  fp8lab_gemm_arguments arguments = {0};
  arguments.a.values = &array_a;
  arguments.b.values = &array_b;
  arguments.alpha = arguments.d_scale = 1.0f;
  EXPECT(fp8lab_gemm_run(backend, gemm, &arguments, &array_d) == FP8LAB_OK);
  for (int i = 0; i < M * N; ++i) { /* small integers: exact */
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += a[i / N * K + k] * b[i % N * K + k];
    EXPECT(d[i] == sum);
  }

  EXPECT(fp8lab_quantizer_new("e4m3fn/row/pow2", &row) == FP8LAB_OK);
  const char* label = NULL;
  EXPECT(fp8lab_quantizer_label(row, &label) == FP8LAB_OK);
  char words[64];
  snprintf(words, sizeof words, "%s", label);
  EXPECT(fp8lab_quantizer_new(words, &same) == FP8LAB_OK && fp8lab_quantizer_equal(row, same));
  uint8_t codes[M * K];
  float scales[M], values[M * K];
  fp8lab_quantized shape;
  EXPECT(fp8lab_quantized_shape(row, &array_a, 0, &shape) == FP8LAB_OK);
  EXPECT(shape.rows == M && shape.k == K && shape.scale_rows == M && shape.scale_cols == 1);
  const fp8lab_array array_c = matrix(codes, "uint8", shape_a);
  const fp8lab_array array_s = matrix(scales, "float32", shape_s);
  const fp8lab_array array_v = matrix(values, "float32", shape_a);
  EXPECT(fp8lab_quantize(backend, row, &array_a, 0, 0, &array_c, &array_s, NULL) == FP8LAB_OK);
  EXPECT(fp8lab_dequantize(backend, row, &array_c, &array_s, &array_v) == FP8LAB_OK);
  EXPECT(memcmp(values, a, sizeof a) == 0);
  float copy[M * N];
  memcpy(copy, d, sizeof d);
  arguments.a.values = &array_c;
  arguments.a.scales = &array_s;
  arguments.a.quantizer = row;
  EXPECT(fp8lab_gemm_run(backend, gemm, &arguments, &array_d) == FP8LAB_OK);
  EXPECT(memcmp(copy, d, sizeof d) == 0);
  arguments.b.values = NULL;
  EXPECT(says(fp8lab_gemm_run(backend, gemm, &arguments, &array_d), "b: no array is given"));
  EXPECT(says(fp8lab_gemm_run(NULL, gemm, &arguments, &array_d), "backend: is NULL"));
  fp8lab_quantizer_free(row);
  fp8lab_quantizer_free(same);
  fp8lab_gemm_free(gemm);
  fp8lab_backend_free(backend);
  fp8lab_backend_free(NULL);
}

#define STRUCTURE(type) printf("\n%s %zu", #type, sizeof(type))
#define MEMBER(type, member) printf(" %s:%zu", #member, offsetof(type, member))

static void print_layout(void) {
  STRUCTURE(fp8lab_array);
  MEMBER(fp8lab_array, data);
  MEMBER(fp8lab_array, dtype);
  MEMBER(fp8lab_array, shape);
  MEMBER(fp8lab_array, strides);
  MEMBER(fp8lab_array, rank);
  MEMBER(fp8lab_array, device);
  MEMBER(fp8lab_array, device_index);
  STRUCTURE(fp8lab_value);
  MEMBER(fp8lab_value, text);
  MEMBER(fp8lab_value, integer);
  MEMBER(fp8lab_value, real);
  MEMBER(fp8lab_value, kind);
  STRUCTURE(fp8lab_key);
  MEMBER(fp8lab_key, name);
  MEMBER(fp8lab_key, value);
  STRUCTURE(fp8lab_quantized);
  MEMBER(fp8lab_quantized, rows);
  MEMBER(fp8lab_quantized, k);
  MEMBER(fp8lab_quantized, scale_rows);
  MEMBER(fp8lab_quantized, scale_cols);
  MEMBER(fp8lab_quantized, is_codes);
  STRUCTURE(fp8lab_operand);
  MEMBER(fp8lab_operand, values);
  MEMBER(fp8lab_operand, scales);
  MEMBER(fp8lab_operand, quantizer);
  STRUCTURE(fp8lab_gemm_arguments);
  MEMBER(fp8lab_gemm_arguments, a);
  MEMBER(fp8lab_gemm_arguments, b);
  MEMBER(fp8lab_gemm_arguments, bias);
  MEMBER(fp8lab_gemm_arguments, addend);
  MEMBER(fp8lab_gemm_arguments, seed);
  MEMBER(fp8lab_gemm_arguments, alpha);
  MEMBER(fp8lab_gemm_arguments, beta);
  MEMBER(fp8lab_gemm_arguments, d_scale);
  STRUCTURE(fp8lab_generation);
  MEMBER(fp8lab_generation, sampling);
  MEMBER(fp8lab_generation, sampling_keys);
  MEMBER(fp8lab_generation, max_new_tokens);
  MEMBER(fp8lab_generation, together);
  MEMBER(fp8lab_generation, sample);
  MEMBER(fp8lab_generation, end);
  STRUCTURE(fp8lab_module);
  MEMBER(fp8lab_module, name);
  MEMBER(fp8lab_module, is_head);
  STRUCTURE(fp8lab_linear_description);
  MEMBER(fp8lab_linear_description, name);
  MEMBER(fp8lab_linear_description, activation);
  MEMBER(fp8lab_linear_description, weight);
  MEMBER(fp8lab_linear_description, in);
  MEMBER(fp8lab_linear_description, out);
  MEMBER(fp8lab_linear_description, rows);
  MEMBER(fp8lab_linear_description, index);
  MEMBER(fp8lab_linear_description, numerics);
  MEMBER(fp8lab_linear_description, has_backward);
  STRUCTURE(fp8lab_moment);
  MEMBER(fp8lab_moment, seed);
  MEMBER(fp8lab_moment, step);
  MEMBER(fp8lab_moment, micro_batch);
  MEMBER(fp8lab_moment, is_measured);
  MEMBER(fp8lab_moment, is_training);
  STRUCTURE(fp8lab_linear_pass);
  MEMBER(fp8lab_linear_pass, moment);
  MEMBER(fp8lab_linear_pass, rows);
  MEMBER(fp8lab_linear_pass, workspace);
  MEMBER(fp8lab_linear_pass, stream);
  MEMBER(fp8lab_linear_pass, x);
  MEMBER(fp8lab_linear_pass, w);
  STRUCTURE(fp8lab_columns);
  MEMBER(fp8lab_columns, names);
  MEMBER(fp8lab_columns, arrays);
  MEMBER(fp8lab_columns, count);
  STRUCTURE(fp8lab_run_description);
  MEMBER(fp8lab_run_description, path);
  MEMBER(fp8lab_run_description, name);
  MEMBER(fp8lab_run_description, stage);
  MEMBER(fp8lab_run_description, config);
  MEMBER(fp8lab_run_description, device);
  MEMBER(fp8lab_run_description, seed);
  MEMBER(fp8lab_run_description, steps);
  MEMBER(fp8lab_run_description, parameters);
  STRUCTURE(fp8lab_run_step);
  MEMBER(fp8lab_run_step, step);
  MEMBER(fp8lab_run_step, tokens);
  MEMBER(fp8lab_run_step, loss);
  MEMBER(fp8lab_run_step, gradient_norm);
  MEMBER(fp8lab_run_step, learning_rate);
  MEMBER(fp8lab_run_step, seconds);
  STRUCTURE(fp8lab_run_document);
  MEMBER(fp8lab_run_document, tokens);
  MEMBER(fp8lab_run_document, nats);
  printf("\n");
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--layout") == 0) {
    print_layout();
    return 0;
  }
  EXPECT(fp8lab_interface_version() == FP8LAB_INTERFACE_VERSION);
  EXPECT(strchr(fp8lab_version(), '.') != NULL);
  test_codec();
  test_gemm();
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
