#!/usr/bin/env python3
"""Breaks device kernels on purpose and shows that the validation notices.

    break_kernels.py list                           # each breakage still finds its place
    break_kernels.py build BUILD FOLDER [--jobs N]  # where nvcc is: FOLDER/NAME, a program each
    break_kernels.py check PROGRAM FOLDER STEPS...  # on a Hopper GPU; PROGRAM is the unbroken one

BUILD is a CMake build folder of this tree (Ninja, FP8LAB_CUDA=ON) with a built program. A breakage
replaces one piece of text of one source, compiles the translation units that it names from a copy
of `kernels/` and links them in the place of their objects; the tree itself stays as it is. The
programs look for libraries and data where those of a bundle lie, so FOLDER may be the `bin` of one.
`check` runs `validate kernels` and replays STEPS, files of tests/golden/steps, with every program.
Exit status 3 when the unbroken one fails or a broken one passes both. --only NAME, repeated,
chooses some.

With --simulated, `build` makes programs that run on this processor (tests/simulator), from a BUILD
with a built fp8lab_simulated; --rounds 1 then keeps a check to half a minute.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Every operation in three sizes of shapes: about 10^7 outputs, seconds on 16 processors.
KERNELS = ("kernels", "--rounds", "3", "--outputs", "1")
# GEMMs in four, of which the last has tiles that blocks share: about 10^8 outputs.
SHARED = ("kernels", "--rounds", "4", "--outputs", "1", "--only", "gemm")
PROGRAM, SIMULATED = "src/fp8lab", "tests/simulator/fp8lab_simulated"  # below BUILD
TIMEOUT = 120  # seconds for one validation; a kernel that hangs is a noticed one


@dataclass(frozen=True)
class Breakage:
    name: str
    what: str
    file: str  # below kernels/
    old: str
    new: str
    units: tuple[str, ...]  # translation units that are compiled with it
    kernels: tuple[str, ...] = KERNELS  # what `validate` runs


BREAKAGES = (
    Breakage(
        "k_tail",
        "BF16 GEMM drops the elements of K after the last whole stage",
        "gemm/gemm_wgmma.cuh",
        "operand_map(gemm.a, P::kBytes, gemm.m, gemm.k,",
        "operand_map(gemm.a, P::kBytes, gemm.m, gemm.k > 64 ? gemm.k / 64 * 64 : gemm.k,",
        ("gemm/gemm_wgmma_bf16.cu",),
    ),
    Breakage(
        "promotion",
        "FP8 GEMM keeps the last chunk only where it has to add up chunks",
        "gemm/gemm_wgmma.cuh",
        "return __fadd_rn(sum, partial);",
        "return partial;",
        ("gemm/gemm_wgmma_e4m3_e4m3.cu",),
    ),
    Breakage(
        "stage_wait",
        "promoted FP8 GEMM multiplies a stage without waiting for its copies",
        "gemm/gemm_wgmma.cuh",
        "if (!filled) await_stage();",
        "(void)filled;",
        ("gemm/gemm_wgmma_e4m3_e4m3.cu",),
    ),
    Breakage(
        "scale_slice",
        "FP8 GEMM multiplies a chunk with the scales of the chunk before it",
        "gemm/gemm_stages.cuh",
        "copy_chunk(k / P::kTileK, scales[0]);",
        "copy_chunk(max(k / P::kTileK - 1, 0), scales[0]);",
        ("gemm/gemm_wgmma_e4m3_e4m3.cu",),
    ),
    Breakage(
        "handover",
        "GEMM drops a quarter of the sums that one block hands to another",
        "gemm/gemm_handover.cuh",
        "      sum[i + 2] = four.w;",
        "      sum[i + 2] = 0.0f;",
        ("gemm/gemm_wgmma_e4m3_e4m3.cu",),
        SHARED,
    ),
    Breakage(
        "toward_zero",
        "E4M3 quantizer cuts mantissas where it has to round to nearest even",
        "quantize/quantize_group.cuh",
        "__nv_cvt_float2_to_fp8x2({low, high},",
        "__nv_cvt_float2_to_fp8x2({__uint_as_float(__float_as_uint(low) & 0xFFF00000u),"
        " __uint_as_float(__float_as_uint(high) & 0xFFF00000u)},",
        ("quantize/quantize_blocks.cu", "quantize/quantize_rows.cu"),
    ),
    Breakage(
        "nan",
        "RMSNorm rounds NaN to bf16 like any other number",
        "pointwise/rows.cuh",
        "const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);",
        "std::uint16_t pair[2];\n"
        "      for (int j = 0; j < 2; ++j) {\n"
        "        const std::uint32_t x = numerics::float_bits(values[i + j]);\n"
        "        pair[j] = static_cast<std::uint16_t>((x + 0x7FFFu + (x >> 16 & 1u)) >> 16);\n"
        "      }",
        ("pointwise/rmsnorm.cu",),
    ),
    Breakage(
        "barrier",
        "cross-entropy reads the maxima of other warps without waiting for them",
        "pointwise/cross_entropy.cu",
        "    if (lane_id() == 0) memory_.of_warp[warp_id()] = own;\n    __syncthreads();\n",
        "    if (lane_id() == 0) memory_.of_warp[warp_id()] = own;\n",
        ("pointwise/cross_entropy.cu",),
    ),
    Breakage(
        "cluster_sums",
        "cross-entropy adds the sums of a row's chunks before all blocks have theirs",
        "pointwise/cross_entropy.cu",
        "    cluster_sync();\n    // The chunk sums",
        "    __syncthreads();\n    // The chunk sums",
        ("pointwise/cross_entropy.cu",),
    ),
    Breakage(
        "next_tensor",
        "the norm of gradients takes the chunks of a tensor for those of the one before",
        "optimizer/optimizer.cu",
        "tensors[middle].first_chunk <= chunk",
        "tensors[middle].first_chunk < chunk",
        ("optimizer/optimizer.cu",),
    ),
    Breakage(
        "contraction",
        "AdamW fuses the multiplication and addition of its first moment",
        "optimizer/optimizer.cu",
        "m[i] = (spec.beta1 * m[i]) + (f.one_minus_beta1 * clipped);",
        "m[i] = __fmaf_rn(spec.beta1, m[i], f.one_minus_beta1 * clipped);",
        ("optimizer/optimizer.cu",),
    ),
    Breakage(
        "cached_position",
        "attention against a cache takes new tokens for the first ones of their sequence",
        "attention/attention_forward.cu",
        "task.query += sequence.held;",
        "",
        ("attention/attention_forward.cu",),
    ),
    Breakage(
        "causal_mask",
        "attention lets a query see keys of the tile's end that lie after it",
        "attention/attention_forward.cu",
        "return rows_.sees(i / 2, j) && j < last;",
        "return (rows_.sees(i / 2, j) || rows_.sees(i / 2, j - 1)) && j < last;",
        ("attention/attention_forward.cu",),
    ),
    Breakage(
        "diagonal",
        "attention on wgmma lets a query see the key after it",
        "attention/attention_forward_wgmma.cu",
        "columns_below(position_[r] + 1 - first)",
        "columns_below(position_[r] + 2 - first)",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "rescaled_rows",
        "attention on wgmma rescales a thread's lower row by the alpha of the upper one",
        "attention/attention_forward_wgmma.cu",
        "alpha_[1] = lower ? own : other;",
        "alpha_[1] = alpha_[0];",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "weight_range",
        "attention on wgmma takes the short power of two for results that are not normal",
        "attention/attention_forward_wgmma.cu",
        "<= __float_as_int(numerics::kNormalWeight)",
        "<= __float_as_int(200.0f)",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "far_reference",
        "attention on wgmma takes it for scores above their reference as well",
        "attention/attention_forward_wgmma.cu",
        "near && farthest <=",
        "farthest <=",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "cached_diagonal",
        "attention on wgmma looks for keys behind a query in the last tile alone",
        "attention/attention_forward_wgmma.cu",
        "key + kTileRows > item_.query + 1 || key",
        "is_last || key",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "cached_values",
        "attention on wgmma multiplies V behind the last token of a cache",
        "attention/attention_forward_wgmma.cu",
        "if (Sequences::kIsCached && key + kTileRows > end_) clear_rows",
        "if (Sequences::kIsCached && key > end_) clear_rows",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "cached_rows",
        "attention on wgmma stores the last row of a cache's new tokens not at all",
        "attention/attention_forward_wgmma.cu",
        "if (item_.query + row >= end_) break;",
        "if (item_.query + row >= end_ - 1) break;",
        ("attention/attention_forward_wgmma.cu",),
    ),
    Breakage(
        "weight_above",
        "gradients of attention on wgmma take it for scores above lse as well",
        "attention/attention_backward_wgmma.cu",
        "below <= __float_as_uint(-0.5f)",
        "below <= __float_as_uint(-128.0f)",
        ("attention/attention_backward_wgmma.cu",),
    ),
    Breakage(
        "causal_gradients",
        "gradients of keys take in the query before a key",
        "attention/attention_backward_wgmma.cu",
        "key <= query_ + fragment_column() + query;",
        "key <= query_ + fragment_column() + query + 1;",
        ("attention/attention_backward_wgmma.cu",),
    ),
    Breakage(
        "second_half",
        "the gradient of SwiGLU with its codes takes the half of `up` one row too early",
        "quantize/quantize_fused_blocks.cu",
        "load_slots(kGroup, patch);",
        "load_slots(kGroup - 1, patch);",
        ("quantize/quantize_fused_blocks.cu",),
    ),
    Breakage(
        "slope_of_row",
        "RMSNorm's gradient takes the first row's slope for all that are made together",
        "pointwise/rmsnorm.cu",
        "k = memory.slopes[i];",
        "k = memory.slopes[0];",
        ("pointwise/rmsnorm.cu",),
    ),
    Breakage(
        "lanes_of_thread",
        "the norm of gradients adds the lanes that one thread has in another order",
        "pointwise/tree_sum.cuh",
        "lanes.of[l] += lanes.of[l + span];",
        "lanes.of[l] += lanes.of[2 * span - 1 - l];",
        ("optimizer/optimizer.cu",),
    ),
    Breakage(
        "row_end",
        "element-wise operations write whole groups of eight columns at the end of a row",
        "pointwise/rows.cuh",
        "        if (i < count) destination[i] = values[i];",
        "        destination[i] = values[i];",
        ("pointwise/pointwise.cu",),
    ),
    Breakage(
        "even_median",
        "statistics take the lower of the two middle channels for both",
        "quantize/channel_ranks.cuh",
        "upper = same ? key : memory.above;",
        "upper = key;",
        ("quantize/statistics_records.cu",),
    ),
    Breakage(
        "top_channels",
        "statistics find the largest channels of every second thread",
        "quantize/channel_ranks.cuh",
        "for (int span = 1; span < kWarpSize; span *= 2) {\n    const Channel other",
        "for (int span = 2; span < kWarpSize; span *= 2) {\n    const Channel other",
        ("quantize/statistics_records.cu",),
    ),
    Breakage(
        "last_band",
        "statistics leave out the last 128 rows",
        "quantize/statistics_records.cu",
        "i < bands; ++i) sum += memory",
        "i < max(bands - 1, 1); ++i) sum += memory",
        ("quantize/statistics_records.cu",),
    ),
    Breakage(
        "infinite_operand",
        "statistics take all codes as finite",
        "quantize/statistics_codes.cuh",
        "return fabs(sums_.e) < statistics_detail::kInfinity;",
        "return true;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "infinite_source",
        "statistics take an operand that is the source as finite",
        "quantize/statistics_panel.cuh",
        "return sums_.x < statistics_detail::kInfinity;",
        "return true;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "second_with_care",
        "statistics compare both orientations with care where the first alone is not finite",
        "quantize/statistics_panel.cuh",
        "if (!second_is_finite) compare_with_care",
        "if (!first_is_finite || !second_is_finite) compare_with_care",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "turned_codes",
        "statistics exchange the first two rows of codes that they turn",
        "quantize/statistics_codes.cuh",
        "taken[i] = CodeGroup::of(codes.of[i]);",
        "taken[i] = CodeGroup::of(codes.of[row % kGroup == 0 ? 1 - i : i]);",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "turned_with_care",
        "statistics exchange the first two rows of codes that they turn with care",
        "quantize/statistics_careful.cuh",
        "memory_.turned[row][i][threadIdx.x]",
        "memory_.turned[row < 2 ? 1 - row : row][i][threadIdx.x]",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "saturated_column",
        "statistics count saturated elements by the limit of the first column",
        "quantize/statistics_lanes.cuh",
        "return limits[kScales == 1 ? 0 : i];",
        "return limits[0];",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "saturated_row",
        "statistics count what is saturated in tiles of rows only beside zeros",
        "quantize/statistics_codes.cuh",
        "return Magnitudes<T>::larger(magnitudes.largest(), limit) == limit ? nonzero : 0u;",
        "return limit == 0 ? 0u : nonzero;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "small_scale",
        "statistics take codes that are not zero for values that are not",
        "quantize/statistics_lanes.cuh",
        "is_small = is_small || scale < kLeastOrdinaryScale;",
        "is_small = is_small || scale == 0.0f;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "zero_rows",
        "statistics mark tiles of rows that are all zeros",
        "quantize/statistics_codes.cuh",
        "if (magnitudes.largest() == 0) zero_rows_ |= 1u << number;",
        "",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "row_scales",
        "lanes of a tile do not wait for the scales that others read",
        "quantize/statistics_codes.cuh",
        "__device__ void enter(int) { __syncwarp(); }",
        "__device__ void enter(int) {}",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "fetched_rows",
        "statistics read rows before they have come",
        "quantize/statistics_panel.cuh",
        "wait();\n    ElementWords<T> x[kRowsAtOnce];",
        "ElementWords<T> x[kRowsAtOnce];",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "ring_rows",
        "statistics read the next eight rows into the place of those at work",
        "quantize/statistics_block.cuh",
        "kRingRows = 2 * kGroup;",
        "kRingRows = kGroup;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "word_pairs",
        "the hash of a tensor counts both words of a pair as the first",
        "pointwise/hash_tensors.cu",
        "numerics::hash_term(part, word + 1, pair.second)",
        "numerics::hash_term(part, word, pair.second)",
        ("pointwise/hash_tensors.cu",),
    ),
    Breakage(
        "counted_words",
        "the hash of a tensor counts its words from the first of the launch on",
        "pointwise/hash_tensors.cu",
        "own.first_word + 2 * static_cast<std::uint64_t>(i - own.first_pair)",
        "own.first_word + 2 * static_cast<std::uint64_t>(i)",
        ("pointwise/hash_tensors.cu",),
    ),
    Breakage(
        "second_launch",
        "the hash of many tensors takes the second launch to go on behind the first",
        "pointwise/hash_tensors.cu",
        "  tensors.pairs = 0;\n",
        "",
        ("pointwise/hash_tensors.cu",),
    ),
    Breakage(
        "tile_flags",
        "statistics look for zero tiles of the transpose in the order of its rows",
        "quantize/statistics_records.cu",
        "(job.transpose ? first * job.grid.wide + row : row * job.grid.wide + first)",
        "(row * job.grid.wide + first)",
        ("quantize/statistics_records.cu",),
    ),
    Breakage(
        "unfused_errors",
        "statistics round the squares of errors before they add them",
        "quantize/statistics_lanes.cuh",
        "ee = __fma_rn(error, error, ee);",
        "ee += error * error;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "missing_columns",
        "statistics count exponents for threads beyond the last column",
        "quantize/statistics_panel.cuh",
        "exponents_.clear();",
        "",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "source_errors",
        "statistics of an operand that is the source read its errors",
        "quantize/statistics_block.cuh",
        "if (which >= 3) return 0.0;",
        "if (which >= 5) return 0.0;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "zeroed_memory",
        "statistics leave what they have found to the next operands",
        "quantize/statistics_records.cu",
        "cudaMemsetAsync(memory_, 0, used_, context.stream())",
        "cudaMemsetAsync(memory_, 0, 1, context.stream())",
        ("quantize/statistics_records.cu",),
    ),
    Breakage(
        "scale_slot",
        "BF16 GEMM multiplies all chunks of a stage with the scales of the first",
        "gemm/gemm_stages.cuh",
        "copy_chunk(first + slot, scales[slot]);",
        "copy_chunk(first, scales[slot]);",
        ("gemm/gemm_wgmma_bf16_scaled.cu",),
    ),
    Breakage(
        "carried_tail",
        "codes that are carried to another format lose the last one of a line",
        "gemm/carry.cu",
        "if (i + j < shape.length) codes.of[j] = read[j];",
        "if (i + j + 1 < shape.length) codes.of[j] = read[j];",
        ("gemm/carry.cu",),
    ),
    Breakage(
        "integer_sum",
        "INT8 GEMM cuts integer sums where it has to round them to nearest even",
        "gemm/gemm_wgmma.cuh",
        "__int2float_rn(",
        "__int2float_rz(",
        ("gemm/gemm_wgmma_s8.cu",),
        SHARED,
    ),
    Breakage(
        "smallest_magnitude",
        "tiles with codebooks take zeros for their smallest magnitude",
        "quantize/quantize_values.cu",
        "if (size != 0) below = min(below, size);",
        "below = min(below, size);",
        ("quantize/quantize_values.cu",),
    ),
    Breakage(
        "expanded_center",
        "expanded tiles are contracted without their center",
        "quantize/operand_decoder.cuh",
        "numerics::ExpandedTile::read(scale, tiles_across)",
        "numerics::ExpandedTile{{scale[0], scale[tiles_across], 1.0f}}",
        ("quantize/quantize_values.cu", "quantize/operand_statistics.cu"),
    ),
    Breakage(
        "expanded_limit",
        "statistics take expanded tiles for saturated by their scale",
        "quantize/operand_statistics.cu",
        "return std::numeric_limits<double>::infinity();",
        "return 448.0;",
        ("quantize/operand_statistics.cu",),
    ),
    Breakage(
        "estimator_tile",
        "estimators take the scale of the tile before",
        "transform/estimator.cu",
        "of_row[at.tile]",
        "of_row[max(at.tile - 1, std::int64_t{0})]",
        ("transform/estimator.cu",),
    ),
    Breakage(
        "deviation_tail",
        "standard deviations leave out the last element of a row of a tile",
        "quantize/quantize_scales.cu",
        "c < min((j + 1) * grid.width, cols); ++c) {\n      deviation.add",
        "c + 1 < min((j + 1) * grid.width, cols); ++c) {\n      deviation.add",
        ("quantize/quantize_scales.cu",),
    ),
    Breakage(
        "random_block",
        "neighbours take the random words of the first one's block",
        "quantize/quantize_tiles.cuh",
        "if (!has_block_ || index_ % 4 == 0) {",
        "if (!has_block_) {",
        ("quantize/quantize.cu",),
    ),
    Breakage(
        "cosine_row",
        "cosines of rows take the other matrix's length twice",
        "pointwise/row_cosines.cu",
        "__fsqrt_rn(warp_dot(row, cols, b, b))",
        "__fsqrt_rn(warp_dot(row, cols, a, a))",
        ("pointwise/row_cosines.cu",),
    ),
    Breakage(
        "steps_of_two",
        "E2M1 counts the steps above 4 from one too few",
        "quantize/quantize_group.cuh",
        "(kInteger + 4.0f)",
        "(kInteger + 3.0f)",
        ("quantize/quantize_blocks.cu", "quantize/quantize_rows.cu"),
    ),
    Breakage(
        "integer_bound",
        "INT8 quantizer saturates at -128",
        "quantize/quantize_group.cuh",
        "fmaxf(x, -127.0f)",
        "fmaxf(x, -128.0f)",
        ("quantize/quantize_blocks.cu", "quantize/quantize_rows.cu"),
    ),
    Breakage(
        "drawn_rows",
        "codes of four rows take the random words of the four above",
        "quantize/quantize_blocks.cuh",
        "at.position(r, c)",
        "at.position(i, c)",
        ("quantize/quantize_blocks.cu",),
    ),
    Breakage(
        "early_rows",
        "whole blocks multiply rows by the amax of their tiles",
        "quantize/quantize_blocks.cuh",
        "if constexpr (kRowsEarly) early.find(row_map, row, at);",
        "",
        ("quantize/quantize_blocks.cu",),
    ),
    Breakage(
        "made_rows",
        "blocks that make their elements put every second row over the one before",
        "quantize/quantize_fused_blocks.cu",
        "second.make(r + 1);",
        "second.make(r);",
        ("quantize/quantize_fused_blocks.cu",),
    ),
    Breakage(
        "sum_cut",
        "the sum in front of RMSNorm is cut to bf16 where it has to be rounded",
        "pointwise/rmsnorm_rows.cuh",
        "    narrow(values, bits);\n    x.store_bits",
        "    for (int i = 0; i < kGroup; ++i) {\n"
        "      bits[i] = static_cast<T>(numerics::float_bits(values[i]) >> 16);\n"
        "    }\n"
        "    x.store_bits",
        ("pointwise/rmsnorm.cu",),
    ),
    Breakage(
        "norm_of_summand",
        "RMSNorm of a sum stores the sum and goes on with the first summand",
        "pointwise/rmsnorm_rows.cuh",
        "    loaded.x().set(bits);\n",
        "",
        ("pointwise/rmsnorm.cu", "quantize/quantize_fused.cu"),
    ),
    Breakage(
        "unrounded_dx",
        "RMSNorm's gradient is added before it has been rounded to bf16",
        "pointwise/rmsnorm.cu",
        "        result.round(d);\n",
        "        if constexpr (kAdds) {\n"
        "          float before[kQuad];\n"
        "          slot(row, i).widen_to(before);\n"
        "          for (int c = 0; c < kQuad; ++c) d[c] = d[c] + before[c];\n"
        "          slot(row, i).words = {};\n"
        "        }\n"
        "        result.round(d);\n",
        ("pointwise/rmsnorm.cu",),
    ),
    Breakage(
        "copied_rows",
        "the rows that RMSNorm's gradient is added to are read before they are there",
        "pointwise/rmsnorm.cu",
        "__pipeline_wait_prior(1)",
        "__pipeline_wait_prior(2)",
        ("pointwise/rmsnorm.cu",),
    ),
    Breakage(
        "rstd_of_row",
        "codes of RMSNorm in both orientations take the rstd of the row before",
        "quantize/quantize_fused_blocks.cu",
        "rstd[row + i]",
        "rstd[max(row + i - 1, std::int64_t{0})]",
        ("quantize/quantize_fused_blocks.cu",),
    ),
    Breakage(
        "weight_of_block",
        "codes of RMSNorm in both orientations take the weights of the first columns",
        "quantize/quantize_fused_blocks.cu",
        "w.load(weight.at(0, col));",
        "w.load(weight.at(0, at.col));",
        ("quantize/quantize_fused_blocks.cu",),
    ),
    Breakage(
        "rounded_norm",
        "codes of RMSNorm in both orientations round x * rstd to bf16 first",
        "quantize/quantize_fused_blocks.cu",
        "values[j] = (patch.row[i].value(j) * r[i]) * w.value(j);",
        "values[j] = widen(narrow<Bf16>(patch.row[i].value(j) * r[i])) * w.value(j);",
        ("quantize/quantize_fused_blocks.cu",),
    ),
    Breakage(
        "two_levels",
        "scales of two levels keep the tensor's factor",
        "quantize/quantize_group.cuh",
        "stored * operand.two_level->inverse",
        "stored * operand.two_level->ratio",
        ("quantize/quantize_blocks.cu",),
    ),
    Breakage(
        "last_span",
        "Hadamard blocks along rows leave out their last span",
        "transform/rotate.cu",
        "lanes * kGroup < rotation.block",
        "2 * lanes * kGroup < rotation.block",
        ("transform/rotate.cu",),
    ),
    Breakage(
        "signs_of_block",
        "all Hadamard blocks down the columns take the signs of the first",
        "transform/rotate.cu",
        "rotation.signs.at(row + threadIdx.x)",
        "rotation.signs.at(threadIdx.x)",
        ("transform/rotate.cu",),
    ),
)


def chosen(only: list[str]) -> list[Breakage]:
    """Those with the given names, or all."""
    return [breakage for breakage in BREAKAGES if not only or breakage.name in only]


def broken_text(breakage: Breakage) -> str:
    """The source with the breakage in it; ValueError unless its place is found once."""
    text = (ROOT / "kernels" / breakage.file).read_text()
    found = text.count(breakage.old)
    if found != 1:
        raise ValueError(
            f"{breakage.name}: kernels/{breakage.file} has its place {found} times, not once"
        )
    return text.replace(breakage.old, breakage.new)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def translate(build: Path, copy: Path) -> None:
    """The device code of copy/kernels for the simulator, in its place."""
    for path in [*copy.glob("kernels/*/*.cu"), *copy.glob("kernels/*/*.cuh")]:
        output = path.with_name(path.name + ".cpp") if path.suffix == ".cu" else path
        run([sys.executable, str(ROOT / "tests/simulator/translate.py"), path, output], build)
    # The simulator has its own.
    shutil.rmtree(copy / "kernels/ptx")


def compile_unit(build: Path, copy: Path, unit: str, output: Path, simulated: bool) -> None:
    """Compiles copy/kernels/UNIT as the build compiles kernels/UNIT, headers of the copy first."""
    source = ROOT / "kernels" / unit
    if simulated:
        unit += ".cpp"
        source = build / "tests/simulator/translated/kernels" / unit
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if Path(entry["file"]) == source:
            words = shlex.split(entry["command"])
            break
    else:
        raise ValueError(f"{build}/compile_commands.json does not compile {source}")
    words = [str(copy / "kernels" / unit) if word == str(source) else word for word in words]
    words[words.index("-o") + 1] = str(output)
    words.insert(next(i for i, word in enumerate(words) if word.startswith("-I")), f"-I{copy}")
    # What a breakage leaves unused is no error.
    run([*words, "-Wno-error"] if simulated else words, Path(entry["directory"]))


def link_command(build: Path, program: str) -> list[str]:
    """The last command that the build makes the program with, without what comes after it."""
    listed = subprocess.run(
        ["ninja", "-t", "commands", program],
        cwd=build,
        check=True,
        capture_output=True,
        text=True,
    )
    last = listed.stdout.splitlines()[-1]
    return shlex.split(next(part for part in last.split("&&") if f" -o {program} " in part))


def build_one(breakage: Breakage, build: Path, folder: Path, simulated: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copytree(ROOT / "kernels", copy / "kernels")
        (copy / "kernels" / breakage.file).write_text(broken_text(breakage))
        if simulated:
            translate(build, copy)
        objects = [copy / f"{Path(unit).stem}.o" for unit in breakage.units]
        for unit, output in zip(breakage.units, objects):
            compile_unit(build, copy, unit, output, simulated)
        words = link_command(build, SIMULATED if simulated else PROGRAM)
        at = words.index("-o")
        # Before the archives: the linker then never asks them for the units that were replaced.
        words[at + 1 : at + 2] = [str(folder / breakage.name), *map(str, objects)]
        run([*words, "-s", "-Wl,-rpath,$ORIGIN/../lib/fp8lab"], build)


def build_all(build: Path, folder: Path, jobs: int, only: list[str], simulated: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    broken = chosen(only)
    with ThreadPoolExecutor(jobs) as pool:
        pending = [
            pool.submit(build_one, breakage, build, folder, simulated) for breakage in broken
        ]
        for breakage, future in zip(broken, pending):
            future.result()
            print(folder / breakage.name, flush=True)


@dataclass
class Verdict:
    noticed: bool
    how: str


def validate(program: Path, arguments: tuple[str, ...], wanted: str) -> Verdict:
    """Runs a validation; `how` has the count of lines with `wanted` and the first of them."""
    command = [str(program), "validate", *arguments, "--backend", "cuda"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return Verdict(True, f"no end after {TIMEOUT} s")
    if done.returncode == 0:
        return Verdict(False, "passes")
    lines = [line for line in done.stdout.splitlines() if wanted in line]
    if not lines:
        return Verdict(True, f"exit status {done.returncode}: {done.stderr.strip()[-200:]}")
    return Verdict(True, f"{len(lines)}, first: {lines[0]}")


def check_kernels(program: Path, kernels: tuple[str, ...]) -> Verdict:
    return validate(program, kernels, "first mismatch of")


def check_step(program: Path, steps: list[str]) -> Verdict:
    return validate(program, ("step", *steps), "differs first at")


def check_all(
    program: Path, folder: Path, steps: list[str], only: list[str], rounds: int | None
) -> int:
    """One program after the other: two at a time share the device by turns and take far longer."""
    broken = chosen(only)
    if rounds is not None:
        kernels = ("kernels", "--rounds", str(rounds), "--outputs", "1")
        broken = [replace(breakage, kernels=kernels) for breakage in broken]
    runs = sorted({breakage.kernels for breakage in broken})
    passed = [
        not any(check_kernels(program, kernels).noticed for kernels in runs),
        not steps or not check_step(program, steps).noticed,
    ]
    print(f"unbroken: kernels {passed[0]}, step {passed[1]}", flush=True)
    survivors = []
    for breakage in broken:
        kernels = check_kernels(folder / breakage.name, breakage.kernels)
        step = check_step(folder / breakage.name, steps) if steps else Verdict(False, "no steps")
        print(f"{breakage.name}: {breakage.what}")
        print(f"  validate kernels: {kernels.how}")
        print(f"  validate step: {step.how}", flush=True)
        if not (kernels.noticed or step.noticed):
            survivors.append(breakage.name)
    print(f"{len(broken)} breakages, {len(survivors)} survived {' '.join(survivors)}")
    return 0 if all(passed) and not survivors else 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    build = commands.add_parser("build")
    build.add_argument("build", type=Path)
    build.add_argument("folder", type=Path)
    build.add_argument("--jobs", type=int, default=2)
    build.add_argument("--simulated", action="store_true")
    check = commands.add_parser("check")
    check.add_argument("program", type=Path)
    check.add_argument("folder", type=Path)
    check.add_argument("steps", nargs="*")
    check.add_argument("--rounds", type=int, help="of every validation, instead of its own")
    names = [breakage.name for breakage in BREAKAGES]
    for command in (build, check):
        command.add_argument("--only", action="append", default=[], choices=names)
    arguments = parser.parse_args()
    if arguments.command == "list":
        for breakage in BREAKAGES:
            broken_text(breakage)
            print(f"{breakage.name}: {breakage.what}")
        return 0
    if arguments.command == "build":
        folder = arguments.folder.resolve()
        build_all(
            arguments.build.resolve(), folder, arguments.jobs, arguments.only, arguments.simulated
        )
        return 0
    return check_all(
        arguments.program.resolve(),
        arguments.folder.resolve(),
        arguments.steps,
        arguments.only,
        arguments.rounds,
    )


if __name__ == "__main__":
    sys.exit(main())
