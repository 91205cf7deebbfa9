// The row kernels of one instruction set, as a table of functions.
#pragma once

#include "epilogue.hpp"
#include "max.hpp"
#include "spmm.hpp"

template <typename T>
struct RowKernelsOf {
    void (*spmm)(const Spmm<T, T>&);
    void (*segment_max)(const SegmentMax<T>&);
    void (*segment_max_backward)(const SegmentMaxBackward<T>&);
    void (*epilogue)(const Epilogue<T>&);
    void (*epilogue_backward)(const EpilogueBackward<T>&);
};

struct RowKernels {
    RowKernelsOf<float> f32;
    RowKernelsOf<double> f64;
    void (*spmm_bf16)(const Spmm<float, bf16>&);
};

namespace baseline { extern const RowKernels kernels; }
namespace avx2 { extern const RowKernels kernels; }
namespace avx512 { extern const RowKernels kernels; }
