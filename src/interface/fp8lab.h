/* C interface of fp8lab, in the common subset of C11 and C++11. No header of an interpreter enters
 * it: Python's package loads the library by ctypes, and so can any language with a C calling
 * convention.
 *
 * Calls. Functions that can fail return a status; those that return something else cannot fail.
 * Results are written through the last arguments, and only if the status is FP8LAB_OK. No exception
 * leaves the library. Calls from several threads are safe as long as each handle is used by one
 * thread at a time. Text arguments are UTF-8 and end with a zero byte. A text that the library
 * returns stays valid until the calling thread's next call, if nothing else is said.
 *
 * Handles. A function that makes a handle has a counterpart that frees it, NAME_free, which accepts
 * NULL.
 *
 * Arrays belong to the caller. The library keeps no pointer to one after the call. Results are
 * written to arrays that the caller has allocated, in row-major order without gaps. */
#ifndef FP8LAB_H
#define FP8LAB_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FP8LAB_EXPORT __attribute__((visibility("default")))
#else
#define FP8LAB_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- versions and failures -------------------------------------------------------------------- */

/* Of this header. It grows by one when a declaration changes. */
#define FP8LAB_INTERFACE_VERSION 2

/* Returns the version of the header that the library was compiled with. A caller that was compiled
 * with, or written for, another one must not call anything else. */
FP8LAB_EXPORT uint32_t fp8lab_interface_version(void);

/* Returns the version of fp8lab, "MAJOR.MINOR.PATCH", valid as long as the library is loaded. */
FP8LAB_EXPORT const char* fp8lab_version(void);

/* How a call ended. The first three are also exit statuses of the program. */
typedef int32_t fp8lab_status;
enum {
  FP8LAB_OK = 0,
  FP8LAB_RUNTIME_FAILURE = 1, /* the machine failed: a file could not be read, a device was lost */
  FP8LAB_ERROR = 2,           /* bad input */
  FP8LAB_OUT_OF_MEMORY = 3,
  FP8LAB_FAULT = 4 /* a fault of fp8lab itself */
};

/* Returns one line about the last call of this thread that failed: for FP8LAB_ERROR what was wrong,
 * where, and what is accepted. Valid until the next call of this thread that fails. */
FP8LAB_EXPORT const char* fp8lab_last_error(void);

/* --- arrays ----------------------------------------------------------------------------------- */

/* Where the memory of an array is; the numbers are those of DLPack. */
enum { FP8LAB_CPU = 1, FP8LAB_CUDA = 2 };

/* An array of the caller. `dtype` is the name of the element type in NumPy, ml_dtypes and PyTorch,
 * in the machine's byte order: float32, float16, bfloat16, uint8, float8_e4m3fn, ... Where values
 * are read, uint16 holds the bits of bfloat16. Where codes are read, uint8 holds one code in each
 * byte. Elements need not be aligned. */
typedef struct fp8lab_array {
  void* data;
  const char* dtype;
  const int64_t* shape;   /* `rank` extents */
  const int64_t* strides; /* in bytes, of each dimension; NULL: row-major without gaps */
  int32_t rank;
  int32_t device;       /* FP8LAB_CPU or FP8LAB_CUDA */
  int32_t device_index; /* of several devices of that kind */
} fp8lab_array;

/* --- codes of a format ------------------------------------------------------------------------ */

/* Writes the number of bits of a code of `format`: e4m3fn, e5m2, e2m1, e8m0, bf16, fp32, ... or
 * eXmY[fn|f][bN] such as e4m3b7. */
FP8LAB_EXPORT fp8lab_status fp8lab_format_bits(const char* format, int32_t* bits);

/* Writes the codes of `x`, of any shape, to `codes`, of the same shape: uint8, uint16 or uint32,
 * the narrowest that holds the format. `rounding` is nearest (ties to even), toward_zero or
 * stochastic (Philox bits of `seed` and the element's index). `overflow` is saturate (largest
 * finite magnitude, also for infinity) or special (infinity if the format has one, else NaN). NaN
 * becomes the positive canonical NaN, or the maximum if the format has no NaN. */
FP8LAB_EXPORT fp8lab_status fp8lab_encode(const fp8lab_array* x, const char* format,
                                          const char* rounding, const char* overflow, uint64_t seed,
                                          const fp8lab_array* codes);

/* Writes the exact values of `codes` to `values`: float32, of the same shape. `codes` are uint8,
 * uint16 or uint32 by the width of the format, or of the format's own type. NaN becomes 0x7FFFFFFF.
 * Refuses codes of another format's type, and codes with more bits than the format. */
FP8LAB_EXPORT fp8lab_status fp8lab_decode(const fp8lab_array* codes, const char* format,
                                          const fp8lab_array* values);

/* --- backends --------------------------------------------------------------------------------- */

/* What computes, with memory and threads of its own. */
typedef struct fp8lab_backend fp8lab_backend;

/* `name` is cpu (the bit-exact emulator), truth (double precision) or, if built in, cuda. `threads`
 * 0 means all processors; their number changes no bit. */
FP8LAB_EXPORT fp8lab_status fp8lab_backend_new(const char* name, int32_t threads,
                                               fp8lab_backend** backend);
FP8LAB_EXPORT void fp8lab_backend_free(fp8lab_backend* backend);

/* --- quantizers ------------------------------------------------------------------------------- */

/* How one matrix is quantized. A handle never changes; several threads may use it at once. */
typedef struct fp8lab_quantizer fp8lab_quantizer;

enum { FP8LAB_TEXT = 1, FP8LAB_INTEGER = 2, FP8LAB_REAL = 3 };

/* The value of a key: the member that `kind` names. */
typedef struct fp8lab_value {
  const char* text;
  int64_t integer;
  double real;
  int32_t kind;
} fp8lab_value;

/* A key of a recipe's slot table, of the [optimizer] table or of a table of samples, and its value.
 * `fp8lab help recipe` and `fp8lab help config` list them. */
typedef struct fp8lab_key {
  const char* name;
  fp8lab_value value;
} fp8lab_key;

/* Makes a quantizer from its words, FORMAT[/WORD...] such as e4m3fn/1x128/pow2, or from RECIPE:SLOT
 * such as infir2:fprop.x. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantizer_new(const char* words, fp8lab_quantizer** quantizer);
/* Makes a quantizer from keys of a slot table. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantizer_from_keys(const fp8lab_key* keys, size_t count,
                                                       fp8lab_quantizer** quantizer);
FP8LAB_EXPORT void fp8lab_quantizer_free(fp8lab_quantizer* quantizer);

/* Writes the quantizer in words. fp8lab_quantizer_new makes an equal quantizer from them. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantizer_label(const fp8lab_quantizer* quantizer,
                                                   const char** label);
/* Returns 1 for equal quantizers, else 0. */
FP8LAB_EXPORT int32_t fp8lab_quantizer_equal(const fp8lab_quantizer* left,
                                             const fp8lab_quantizer* right);
/* Writes name and meaning of key number `index` of a quantizer, in the order of a recipe's slot
 * table; NULL behind the last one. Both stay valid as long as the library is loaded. */
FP8LAB_EXPORT void fp8lab_quantizer_key(size_t index, const char** name, const char** meaning);
/* Writes the value of a key. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantizer_value(const fp8lab_quantizer* quantizer,
                                                   const char* name, fp8lab_value* value);

/* Shapes of a quantized matrix. Codes are uint8, or float32 values if the format has more than 8
 * bits; scales are float32 decode factors, one for each tile: x ~ scale * decode(code). */
typedef struct fp8lab_quantized {
  int64_t rows, k;                /* of the codes */
  int64_t scale_rows, scale_cols; /* 0: a quantizer without scales */
  int32_t is_codes;               /* 0: values */
} fp8lab_quantized;

/* Writes the shapes for the matrix `x` (rows, k), or with `transpose` other than 0 for its
 * transpose. Reads no element of it. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantized_shape(const fp8lab_quantizer* quantizer,
                                                   const fp8lab_array* x, int32_t transpose,
                                                   fp8lab_quantized* shape);

/* Quantizes `x`. `codes` and `scales` have the shapes of fp8lab_quantized_shape; `scales` is NULL
 * for a quantizer without scales. `seed` is for stochastic rounding. `statistics` is NULL, or
 * float64 of as many elements as fp8lab_statistics says. Refuses delayed scaling, which needs the
 * amax history of a run. */
FP8LAB_EXPORT fp8lab_status fp8lab_quantize(fp8lab_backend* backend,
                                            const fp8lab_quantizer* quantizer,
                                            const fp8lab_array* x, int32_t transpose, uint64_t seed,
                                            const fp8lab_array* codes, const fp8lab_array* scales,
                                            const fp8lab_array* statistics);

/* Writes scale * decode(code), rounded to float32, of `codes` (rows, k) to `values`, of the same
 * shape. Refuses scales that the quantizer cannot store, and codes with more bits than the format.
 */
FP8LAB_EXPORT fp8lab_status fp8lab_dequantize(fp8lab_backend* backend,
                                              const fp8lab_quantizer* quantizer,
                                              const fp8lab_array* codes, const fp8lab_array* scales,
                                              const fp8lab_array* values);

/* Returns the number of float64 elements of the statistics of fp8lab_quantize, which have the names
 * and meanings of run files (src/io/README.md). */
FP8LAB_EXPORT size_t fp8lab_statistics(void);
/* Writes where statistic number `index` stands: its name, and `width` elements from `first` on. The
 * name is NULL behind the last one, and stays valid as long as the library is loaded. */
FP8LAB_EXPORT void fp8lab_statistic(size_t index, const char** name, size_t* first, size_t* width);

/* --- GEMM ------------------------------------------------------------------------------------- */

/* A product and how its sums are formed. A handle never changes; several threads may use it at
 * once. */
typedef struct fp8lab_gemm fp8lab_gemm;

/* Makes a GEMM from ACCUMULATOR[/SCHEDULE][/OUTPUT]... such as sm90_wgmma_fp8/promote:128/fp32,
 * from RECIPE:ROLE such as infir2:fprop, or from cublaslt_h200:MODE[/fast][/OUTPUT][/split_k=N], a
 * call of cuBLASLt as measured on an H200. */
FP8LAB_EXPORT fp8lab_status fp8lab_gemm_new(const char* words, fp8lab_gemm** gemm);
FP8LAB_EXPORT void fp8lab_gemm_free(fp8lab_gemm* gemm);

/* Returns 1 for a call of a library, else 0. */
FP8LAB_EXPORT int32_t fp8lab_gemm_is_library_call(const fp8lab_gemm* gemm);
/* Returns the type of D: uint8 for FP8 outputs of library calls, else float32. */
FP8LAB_EXPORT const char* fp8lab_gemm_result_type(const fp8lab_gemm* gemm);

/* One operand: values, which are quantized, or codes, which are used unchanged. */
typedef struct fp8lab_operand {
  const fp8lab_array* values;        /* (rows, K) */
  const fp8lab_array* scales;        /* of codes, (tile rows, tile columns); NULL: none */
  const fp8lab_quantizer* quantizer; /* NULL: that of the GEMM, in the format of the array's type */
} fp8lab_operand;

/* `bias` is (N) and added to every row after scaling, rounded separately; of a library call (M),
 * since the library is column-major. `addend` (M, N) is what an fp32 output accumulates on,
 * fma(acc, scale, addend); of a library call C of alpha A B^T + beta C + bias. Only library calls
 * read alpha, beta and d_scale: FP8 outputs are codes of D * d_scale. */
typedef struct fp8lab_gemm_arguments {
  fp8lab_operand a; /* (M, K) */
  fp8lab_operand b; /* (N, K) */
  const fp8lab_array* bias;
  const fp8lab_array* addend;
  uint64_t seed; /* of stochastic rounding */
  float alpha, beta, d_scale;
} fp8lab_gemm_arguments;

/* Writes D (M, N) = A B^T with the bits of the hardware; bf16 and fp16 results as float32. */
FP8LAB_EXPORT fp8lab_status fp8lab_gemm_run(fp8lab_backend* backend, const fp8lab_gemm* gemm,
                                            const fp8lab_gemm_arguments* arguments,
                                            const fp8lab_array* d);

/* --- models ----------------------------------------------------------------------------------- */

/* A decoder with weights, optimizer state and numerics, on a backend of its own. */
typedef struct fp8lab_model fp8lab_model;

/* `source` is a folder that transformers saved, or the name or TOML file of a model, with random
 * weights from `seed`. `recipe` is a recipe's name or file. The keys are those of the [optimizer]
 * table. `objective` is a kind of [stages.objective]. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_new(const char* source, const char* recipe,
                                             const char* backend, int32_t threads,
                                             const fp8lab_key* optimizer, size_t optimizer_keys,
                                             const char* objective, uint64_t seed,
                                             fp8lab_model** model);
FP8LAB_EXPORT void fp8lab_model_free(fp8lab_model* model);

/* Writes the shape of the model as a [model] table of TOML. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_config(const fp8lab_model* model, const char** toml);
/* Writes a line about the backend's device. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_device(const fp8lab_model* model, const char** device);
/* Returns the number of completed optimizer steps. */
FP8LAB_EXPORT int64_t fp8lab_model_steps(const fp8lab_model* model);
/* Returns the number of tokens of the vocabulary. */
FP8LAB_EXPORT int64_t fp8lab_model_vocabulary(const fp8lab_model* model);

/* Returns the number of tensors, which have the names and shapes of transformers. */
FP8LAB_EXPORT size_t fp8lab_model_tensors(const fp8lab_model* model);
/* Writes name and shape of tensor number `index`; both stay valid as long as the model. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_tensor(const fp8lab_model* model, size_t index,
                                                const char** name, int32_t* rank,
                                                const int64_t** shape);
/* Returns 1 if tensor number `index` is trained, else 0: it is frozen, or there is none. */
FP8LAB_EXPORT int32_t fp8lab_model_is_trained(const fp8lab_model* model, size_t index);
/* Writes the master weight, or the gradient, of tensor number `index` to a float32 array of its
 * shape. A frozen tensor has no gradient. Values are those of files: the weight of a zero-centered
 * norm (Gemma) less 1. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_weight(fp8lab_model* model, size_t index,
                                                const fp8lab_array* values);
FP8LAB_EXPORT fp8lab_status fp8lab_model_gradient(fp8lab_model* model, size_t index,
                                                  const fp8lab_array* values);
/* Sets all weights from `count` named arrays of float32, float16 or bfloat16; keeps the optimizer's
 * state. Nothing is set unless every tensor fits and is finite. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_set_weights(fp8lab_model* model, const char* const* names,
                                                     const fp8lab_array* arrays, size_t count);

/* Tokens and targets are int32 (sequences, length). A negative target is not trained on. Losses are
 * mean cross-entropies in nats over the other targets, but for those of the objective, which
 * fp8lab_model_backward and fp8lab_model_step compute. */

/* What an objective reads beside tokens and targets: `count` arrays, float32 (sequences, length),
 * by the keys of records ("advantage"). Elements at targets that are not trained on do not count.
 */
typedef struct fp8lab_columns {
  const char* const* names;
  const fp8lab_array* arrays;
  size_t count;
} fp8lab_columns;

/* Writes logits, float32 (sequences, length, vocabulary). */
FP8LAB_EXPORT fp8lab_status fp8lab_model_logits(fp8lab_model* model, const fp8lab_array* tokens,
                                                const fp8lab_array* logits);
/* Writes the loss of each token, float32 (sequences, length); 0 where nothing is trained on. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_token_losses(fp8lab_model* model,
                                                      const fp8lab_array* tokens,
                                                      const fp8lab_array* targets,
                                                      const fp8lab_array* losses);
FP8LAB_EXPORT fp8lab_status fp8lab_model_loss(fp8lab_model* model, const fp8lab_array* tokens,
                                              const fp8lab_array* targets, double* loss);
/* Computes the objective's loss and gradients. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_backward(fp8lab_model* model, const fp8lab_array* tokens,
                                                  const fp8lab_array* targets,
                                                  const fp8lab_columns* columns, double* loss);
/* Computes the objective's loss and gradients, clips them and updates the weights. The norm is that
 * before clipping. The learning rate is a number from 0 to 10. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_step(fp8lab_model* model, const fp8lab_array* tokens,
                                              const fp8lab_array* targets,
                                              const fp8lab_columns* columns, double learning_rate,
                                              double* loss, double* gradient_norm);

/* Completions of prompts. */
typedef struct fp8lab_completions fp8lab_completions;

/* How prompts are completed. */
typedef struct fp8lab_generation {
  const fp8lab_key* sampling; /* keys of a table of samples: temperature, top_k, top_p, seed, ... */
  size_t sampling_keys;
  int64_t max_new_tokens;
  int64_t together; /* prompts decoded at a time */
  uint32_t sample;  /* draws depend on seed, prompt, sample and position only */
  int32_t end;      /* token that ends a completion; -1: none */
} fp8lab_generation;

/* Completes `count` prompts, of lengths[i] tokens each, with a key-value cache. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_generate(fp8lab_model* model,
                                                  const int32_t* const* prompts,
                                                  const size_t* lengths, size_t count,
                                                  const fp8lab_generation* generation,
                                                  fp8lab_completions** completions);
FP8LAB_EXPORT void fp8lab_completions_free(fp8lab_completions* completions);
/* Writes the completion of prompt number `index`: its tokens, their log-probabilities in nats
 * without temperature and filters, and whether the end token ended it. Valid as long as the handle.
 */
FP8LAB_EXPORT fp8lab_status fp8lab_completion(const fp8lab_completions* completions, size_t index,
                                              const int32_t** tokens,
                                              const double** log_probabilities, size_t* length,
                                              int32_t* ended);

/* Writes a folder that transformers loads; an existing folder must be empty. `dtype` is BF16, F16
 * or F32. With a recipe other than NULL the weights of linear layers are FP8 codes with scales, as
 * that recipe quantizes them for the forward pass. Weights that are not finite are refused. */
FP8LAB_EXPORT fp8lab_status fp8lab_model_save(fp8lab_model* model, const char* folder,
                                              const char* dtype, const char* recipe);

/* --- linear layers on tensors of another framework -------------------------------------------- */

/* A device and what computes on it. Its layers may be used by several threads, one at a time. */
typedef struct fp8lab_device fp8lab_device;

/* `kind` is FP8LAB_CPU or FP8LAB_CUDA, `index` counts the devices of a kind. `threads` are those of
 * the CPU, 0 means all processors; their number changes no bit. */
FP8LAB_EXPORT fp8lab_status fp8lab_device_new(int32_t kind, int32_t index, int32_t threads,
                                              fp8lab_device** device);
/* Free its layers first. */
FP8LAB_EXPORT void fp8lab_device_free(fp8lab_device* device);

/* A recipe. A handle never changes; several threads may use it at once. */
typedef struct fp8lab_recipe fp8lab_recipe;

/* `source` is the name of a recipe, the path of a file, or TOML, which contains a newline. */
FP8LAB_EXPORT fp8lab_status fp8lab_recipe_new(const char* source, fp8lab_recipe** recipe);
FP8LAB_EXPORT void fp8lab_recipe_free(fp8lab_recipe* recipe);
/* Return the name, and the TOML, which needs no other files. Valid as long as the recipe is. */
FP8LAB_EXPORT const char* fp8lab_recipe_name(const fp8lab_recipe* recipe);
FP8LAB_EXPORT const char* fp8lab_recipe_text(const fp8lab_recipe* recipe);
/* Writes 1, else 0, if a linear layer of the recipe, other than those kept in high precision,
 * carries amax histories or smoothing factors from step to step; if it draws random numbers. */
FP8LAB_EXPORT void fp8lab_recipe_traits(const fp8lab_recipe* recipe, int32_t* has_state,
                                        int32_t* is_random);

/* A linear layer by its full name in a model, such as model.layers.3.mlp.down_proj. */
typedef struct fp8lab_module {
  const char* name;
  int32_t is_head; /* 1: its outputs are the logits of a language model */
} fp8lab_module;

/* Writes for each module the index of the first pattern that matches it, or -1. Patterns are those
 * of a recipe's [[override]]: a pattern also matches every name below it, * spans characters
 * between dots, {a,b} lists choices. They match a module's own name, and its name in recipes, such
 * as layers.last.mlp.down; the stack of layers is that of the first index in the name. A head is
 * lm_head. */
FP8LAB_EXPORT fp8lab_status fp8lab_match_modules(const char* const* patterns, size_t pattern_count,
                                                 const fp8lab_module* modules, size_t count,
                                                 int32_t* found);

enum { FP8LAB_HIGH_PRECISION = -1, FP8LAB_DEFAULT_NUMERICS = 0 };

/* Writes for each module the numerics that the recipe has for it: FP8LAB_HIGH_PRECISION for what
 * keep_high_precision names, FP8LAB_DEFAULT_NUMERICS, or N for the recipe's [[override]] number N,
 * from 1. */
FP8LAB_EXPORT fp8lab_status fp8lab_recipe_choose(const fp8lab_recipe* recipe,
                                                 const fp8lab_module* modules, size_t count,
                                                 int32_t* numerics);

/* y (rows, out) = x (rows, in) w (out, in)^T + bias (out), and its gradients: the three GEMMs of a
 * recipe. It holds no tensor: a backward pass depends on its arguments and on the state of the step
 * alone, so that other passes may run before it, and forward passes may be run again. */
typedef struct fp8lab_linear fp8lab_linear;

typedef struct fp8lab_linear_description {
  const char* name;       /* in errors */
  const char* activation; /* type of x, y, dy and dx: float32 or bfloat16 */
  const char* weight;     /* type of w, bias, dw and dbias: float32, or that of activations */
  int64_t in, out;
  int64_t rows;         /* the largest number of rows of a pass */
  uint32_t index;       /* of the layer in random keys, less than 349 525 */
  int32_t numerics;     /* of fp8lab_recipe_choose */
  int32_t has_backward; /* 0: forward passes only */
} fp8lab_linear_description;

/* Refuses, with the layer's name, a recipe or a shape that is impossible, and what the device
 * cannot compute. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_new(fp8lab_device* device, const fp8lab_recipe* recipe,
                                              const fp8lab_linear_description* description,
                                              void* stream, fp8lab_linear** linear);
FP8LAB_EXPORT void fp8lab_linear_free(fp8lab_linear* linear);

/* Returns the bytes of memory that a pass needs. */
FP8LAB_EXPORT int64_t fp8lab_linear_workspace_bytes(const fp8lab_linear* linear);

/* When a pass runs. Random words depend on seed, step and micro_batch, those of weights on seed and
 * step. */
typedef struct fp8lab_moment {
  uint64_t seed;
  uint32_t step, micro_batch;
  int32_t is_measured; /* 1: the statistics of the operands are computed */
  int32_t is_training; /* 0: the pass leaves amax histories and statistics as they are */
} fp8lab_moment;

/* A pass: tensors in memory of the layer's device, in row-major order without gaps, each aligned to
 * 16 bytes, and memory of workspace_bytes, aligned to 256, that nothing else uses. On FP8LAB_CUDA
 * all work is enqueued on `stream`, a cudaStream_t, and a call does not wait for it. The stream
 * must exist until the next call on the device has returned, which waits for it in its own stream.
 */
typedef struct fp8lab_linear_pass {
  fp8lab_moment moment;
  int64_t rows;
  void* workspace;
  void* stream;
  const void* x; /* (rows, in) */
  const void* w; /* (out, in) */
} fp8lab_linear_pass;

/* Writes y. `bias` may be NULL. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_forward(fp8lab_linear* linear,
                                                  const fp8lab_linear_pass* pass, const void* bias,
                                                  void* y);
/* Writes dx (rows, in), dw (out, in) and dbias (out) from dy (rows, out). What is NULL is not
 * computed. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_backward(fp8lab_linear* linear,
                                                   const fp8lab_linear_pass* pass, const void* dy,
                                                   void* dx, void* dw, void* dbias);

/* Ends a step: the amaxes of its passes enter the histories. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_end_step(fp8lab_linear* linear, void* stream);

/* What a layer carries from step to step: arrays of float32, amax histories first. Writes the name
 * and the length of array number `index`; a name of NULL behind the last one. Names: x, w, dy,
 * wgrad.x, ... (histories), fprop.factors, ... (smoothing). Valid as long as the layer is. */
FP8LAB_EXPORT void fp8lab_linear_state(const fp8lab_linear* linear, size_t index, const char** name,
                                       int64_t* length);
/* Copy such an array, in host memory, and the number of steps in a history, from and to a layer. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_read_state(fp8lab_linear* linear, size_t index,
                                                     void* stream, float* values, int64_t* steps);
FP8LAB_EXPORT fp8lab_status fp8lab_linear_write_state(fp8lab_linear* linear, size_t index,
                                                      void* stream, const float* values,
                                                      int64_t steps);
/* Returns the number of amax histories. */
FP8LAB_EXPORT size_t fp8lab_linear_histories(const fp8lab_linear* linear);
/* Copy the amax of the step so far of each history, in host memory, from and to a layer: for the
 * maximum over processes that train together. */
FP8LAB_EXPORT fp8lab_status fp8lab_linear_read_amaxes(fp8lab_linear* linear, void* stream,
                                                      float* amaxes);
FP8LAB_EXPORT fp8lab_status fp8lab_linear_write_amaxes(fp8lab_linear* linear, void* stream,
                                                       const float* amaxes);

/* --- run files -------------------------------------------------------------------------------- */

/* A run file (src/io/README.md) of a training that another framework runs: its steps, and the
 * statistics of the operands of its linear layers. One thread writes it. */
typedef struct fp8lab_run fp8lab_run;

typedef struct fp8lab_run_description {
  const char* path;   /* of a file that does not exist */
  const char* name;   /* of the run */
  const char* stage;  /* name of its only stage */
  const char* config; /* what the training was configured by: TOML */
  const char* device; /* one line */
  uint64_t seed;
  int64_t steps, parameters;
} fp8lab_run_description;

/* Layers of the run, in the order of the model. All have had a pass. */
FP8LAB_EXPORT fp8lab_status fp8lab_run_new(const fp8lab_run_description* description,
                                           const fp8lab_recipe* recipe,
                                           fp8lab_linear* const* layers, size_t count,
                                           fp8lab_run** run);
/* Closes the file. Without fp8lab_run_complete it is that of a run that was interrupted. */
FP8LAB_EXPORT void fp8lab_run_free(fp8lab_run* run);

typedef struct fp8lab_run_step {
  int64_t step;         /* from 1 */
  int64_t tokens;       /* trained so far */
  double loss;          /* nats per token */
  double gradient_norm; /* before clipping; NaN: not measured, infinity: not a number */
  double learning_rate;
  double seconds; /* since the start */
} fp8lab_run_step;

FP8LAB_EXPORT fp8lab_status fp8lab_run_add_step(fp8lab_run* run, const fp8lab_run_step* step);
/* Adds the statistics of the measured passes of a step, of the layers of fp8lab_run_new. Every
 * layer waits for its device. */
FP8LAB_EXPORT fp8lab_status fp8lab_run_add_statistics(fp8lab_run* run, int64_t step,
                                                      fp8lab_linear* const* layers, size_t count,
                                                      void* stream);

/* The losses of one document of a held-out text. */
typedef struct fp8lab_run_document {
  int64_t tokens; /* scored */
  double nats;    /* sum of their losses */
} fp8lab_run_document;

/* Adds an evaluation after a step: the held-out loss in nats per token, and `documents` (count), in
 * the order of the text, or NULL with count 0. `text` is a hash of the held-out text: reports pair
 * documents of runs that have the same. Evaluations of a step are added after the step and before
 * the next one, one for a step. Fails for a step that is not the last one added or has one, after
 * fp8lab_run_complete, for a loss or nats that are negative, a document without tokens, and
 * documents whose nats per token are not the loss (relative difference above 1e-3). */
FP8LAB_EXPORT fp8lab_status fp8lab_run_add_evaluation(fp8lab_run* run, int64_t step, double loss,
                                                      uint64_t text,
                                                      const fp8lab_run_document* documents,
                                                      size_t count);
FP8LAB_EXPORT fp8lab_status fp8lab_run_complete(fp8lab_run* run);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FP8LAB_H */
