// The row kernels of one instruction set, as a table of functions.
#pragma once

#include "adam.hpp"
#include "argmax.hpp"
#include "attention.hpp"
#include "attention_v2.hpp"
#include "count_above.hpp"
#include "draw.hpp"
#include "epilogue.hpp"
#include "gather.hpp"
#include "lstm.hpp"
#include "max.hpp"
#include "pair_rows.hpp"
#include "product.hpp"
#include "sparse_rows.hpp"
#include "spmm.hpp"

template <typename T>
struct RowKernelsOf {
    void (*spmm)(const Spmm<T, T>&);
    void (*segment_max)(const SegmentMax<T>&);
    void (*segment_max_backward)(const SegmentMaxBackward<T>&);
    void (*epilogue)(const Epilogue<T>&);
    void (*epilogue_backward)(const EpilogueBackward<T>&);
    void (*attend)(const Attend<T>&);
    void (*attend_backward)(const AttendBackward<T>&, int step);
    void (*attend_v2)(const AttendV2<T>&);
    void (*attend_v2_backward)(const AttendV2Backward<T>&, int step);
    void (*adam_moments)(const AdamMoments<T>&);
    void (*adam_move)(const AdamMove<T>&);
};

struct RowKernels {
    RowKernelsOf<float> f32;
    RowKernelsOf<double> f64;
    void (*spmm_bf16)(const Spmm<float, bf16>&);
    void (*spmm_int8)(const Spmm<float, int8_t>&);
    void (*gather)(const Gather&);
    void (*gather_bf16)(const GatherWiden<bf16>&);
    void (*gather_int8)(const GatherWiden<int8_t>&);
    void (*product)(const Product&);
    void (*product_backward)(const ProductBackward&);
    void (*pair_scores)(const PairScores&);
    void (*count_above)(const CountAbove&);
    void (*replace_scores)(const ReplaceScores&);
    void (*lstm)(const Lstm&);
    void (*lstm_backward)(const LstmBackward&);
    void (*pair_rows)(const PairRows&);
    void (*pair_rows_backward)(const PairRows&);
    void (*sparse_product)(const SparseProduct&);
    void (*sparse_product_backward)(const SparseProductBackward&);
    void (*sparse_sum)(const SparseSum&);
    void (*sparse_take)(const SparseTake&);
    void (*sparse_dense)(const SparseDense&);
    void (*argmax_rows)(const ArgmaxRows&);
    DrawRows draw_rows;
};

namespace baseline { extern const RowKernels kernels; }
namespace avx2 { extern const RowKernels kernels; }
namespace avx512 { extern const RowKernels kernels; }
