// Compiled once per instruction set (SIAFU_ISA). Everything but the table has internal linkage, so that no function
// compiled for one instruction set is ever linked into another.
#include <cmath>

#include "rows.hpp"

namespace {

template <typename T>
constexpr RowKernelsOf<T> kernels_of{spmm<T, T>,   segment_max<T>,     segment_max_backward<T>, epilogue<T>,  epilogue_backward<T>,
                                     attend<T>, attend_backward<T>, attend_v2<T>,            attend_v2_backward<T>,
                                     adam_moments<T>, adam_move<T>};

}  // namespace

namespace SIAFU_ISA {
extern const RowKernels kernels;
const RowKernels kernels{kernels_of<float>, kernels_of<double>, spmm<float, bf16>,   spmm<float, int8_t>,
                         gather,            gather_widen<bf16>, gather_widen<int8_t>, product,
                         product_backward,  pair_scores,        count_above,        replace_scores,
                         lstm,              lstm_backward,     pair_rows,          pair_rows_backward,
                         sparse_product,    sparse_product_backward, sparse_sum,     sparse_take,
                         sparse_dense,      argmax_rows,        draw_rows};
}  // namespace SIAFU_ISA
