// The only file that knows Python. One m.def per kernel; Python owns every array.
//
// An array is taken as it is, or refused: by its type, number of dimensions and strides, and by sizes that do not fit the others'.
// Numbers that name rows and come with a call are looked at, one by one. The offsets and columns of a CSR, which row kernels read
// again and again, are not: whoever hands in a graph has looked at them once (see siafu/array_checks.py), and a layer that its rows are
// as many as the columns.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "ascending.hpp"
#include "check.hpp"
#include "count_above.hpp"
#include "distinct.hpp"
#include "expect.hpp"
#include "memory.hpp"
#include "partition.hpp"
#include "rows.hpp"
#include "sample.hpp"
#include "structure.hpp"

namespace nb = nanobind;
using namespace nb::literals;

template <typename T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <typename T, int Dims>
using Optional = std::optional<Array<T, Dims>>;
template <typename T>
using Columns = nb::ndarray<T, nb::device::cpu>;  // of rows that lie apart: (…, rows, width), whose last axis alone is contiguous

namespace {

struct Choice {
    const char* name;
    const RowKernels* kernels;
};

Choice choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return {"avx512", &avx512::kernels};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {"avx2", &avx2::kernels};
#endif
    return {"baseline", &baseline::kernels};
}

Choice chosen = choose();
Pool& pool = *new Pool;  // never destroyed: tensors may outlive the module

template <typename T>
const RowKernelsOf<T>& rows() {
    if constexpr (std::is_same_v<T, float>) return chosen.kernels->f32;
    else return chosen.kernels->f64;
}

template <typename A>
auto pointer(const std::optional<A>& array) -> decltype(array->data()) {
    return array ? array->data() : nullptr;
}

template <typename A>
int64_t length(const A& array) {
    return int64_t(array.shape(0));
}

template <typename A>
int64_t columns(const A& array) {
    return int64_t(array.shape(1));
}

// An array is never converted: a kernel would write to a copy.
auto operator""_array(const char* name, size_t) { return nb::arg(name).noconvert(); }
auto operator""_maybe(const char* name, size_t) { return nb::arg(name).none().noconvert(); }

using Ids = Array<const int64_t, 1>;
using Nodes = Array<const int32_t, 1>;
using Span = std::pair<int64_t, int64_t>;  // the rows that a kernel works on: where they begin and end

// What is beside sizes expected of arrays.
struct Fits : Expect {
    // None stands for an array within a pair that may itself be None.
    template <typename A>
    void there(const char* what, const A& array) const {
        if (!array.is_valid()) refuse(what, 0, "an array, not None");
    }

    template <typename A, typename... Sizes>
    void size(const char* what, const A& array, Sizes... sizes) const {
        there(what, array);
        size_t axis = 0;
        (same(what, int64_t(array.shape(axis++)), int64_t(sizes)), ...);
    }

    template <typename A, typename... Sizes>
    void size(const char* what, const std::optional<A>& array, Sizes... sizes) const {
        if (array) size(what, *array, sizes...);
    }

    // Rows that may lie apart, of numbers that lie side by side.
    template <typename A>
    void strides(const char* what, const A& rows) const {
        const size_t last = rows.ndim() - 1;
        if (rows.shape(last) > 1 && rows.size()) same(what, rows.stride(last), 1);
    }

    // A CSR; returns its number of rows.
    int64_t csr(const Ids& indptr, const Nodes& indices) const { return rows_of(indptr.data(), length(indptr), length(indices)); }

    // The same, each offset and column looked at.
    int64_t csr(const Ids& indptr, const Nodes& indices, int64_t num_cols) const {
        ascending("an offset", indptr.data(), length(indptr), length(indices));
        within("indices", indices.data(), length(indices), num_cols);
        return length(indptr) - 1;
    }

    // A CSR of which some rows are worked on, whose first offset need not be 0.
    Csr some(const Ids& indptr, const Nodes& indices, Span rows) const {
        span(rows.first, rows.second, length(indptr) - 1);
        offsets(indptr.data()[rows.first], indptr.data()[rows.second], length(indices));
        return {indptr.data(), indices.data(), rows.second, rows.first};
    }
};

template <typename T, typename X>
Spmm<T, X> spmm_of(Ids indptr, Nodes indices, Array<const X, 2> x, Optional<const T, 1> weight, Optional<const T, 1> pre,
                   Optional<const T, 1> post, Optional<const T, 1> loop, Array<T, 2> out, Optional<const int64_t, 1> ends,
                   int64_t first_src, bool add, Span span) {
    const Fits fits{"spmm"};
    const int64_t num_dst = length(out), num_src = length(x);
    fits.between("the length of indptr", length(indptr), num_dst + (ends ? 0 : 1), num_dst + 1);
    fits.size("ends", ends, num_dst);
    fits.span(span.first, span.second, num_dst);
    if (span.first < span.second)
        fits.offsets(indptr.data()[span.first], ends ? ends->data()[span.second - 1] : indptr.data()[span.second], length(indices));
    fits.same("the width of out", columns(out), columns(x));
    fits.size("weight", weight, length(indices));
    fits.size("pre", pre, num_src);
    fits.size("post", post, num_dst);
    if (loop) fits.between("the length of loop", length(*loop), 0, std::min(num_src, num_dst));
    fits.between("first_src", first_src, 0, Expect::kMost);
    return {{indptr.data(), indices.data(), span.second, span.first}, x.data(), columns(x), pointer(weight), pointer(pre), pointer(post),
            pointer(loop), loop ? length(*loop) : 0, out.data(), pointer(ends), first_src, add};
}

// Rows that lie within wider ones.
template <typename T>
using Within = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;

template <typename T>
Rows<T> rows_of(const Within<T>& array) {
    return {array.data(), array.stride(0)};
}

// What every attention kernel is told besides arrays: heads, width of a head, slope, and the dropout of edges.
template <typename T>
struct Attention {
    Heads heads;
    T slope;
    EdgeDropout<T> drop;
};

using AttentionArgs = std::tuple<int64_t, int64_t, double, uint64_t, uint32_t, double>;

struct AttentionFits : Fits {
    int64_t heads, width, num_src, num_dst;

    template <typename A>
    void head_rows(const char* what, const A& rows, int64_t least) const {
        between(what, length(rows), least, num_src), same(what, columns(rows), heads * width), strides(what, rows);
    }

    template <typename A>
    void score_rows(const char* what, const A& rows, int64_t least) const {
        between(what, length(rows), least, num_src), same(what, columns(rows), heads), strides(what, rows);
    }
};

AttentionFits attention_fits(const char* kernel, const AttentionArgs& args, int64_t num_src, int64_t num_dst,
                             const std::optional<Ids>& node_id) {
    const AttentionFits fits{{{kernel}}, std::get<0>(args), std::get<1>(args), num_src, num_dst};
    fits.between("heads", fits.heads, 1, kMaxHeads);
    fits.between("the width of a head", fits.width, 1, 1 << 20);
    fits.between("the number of sources", num_src, num_dst, Expect::kMost);
    fits.size("node_id", node_id, num_src);
    return fits;
}

template <typename T>
Attention<T> attention_of(const AttentionArgs& args, const std::optional<Ids>& node_id) {
    const auto& [heads, width, slope, key, threshold, scale] = args;
    return {{heads, width}, T(slope), {pointer(node_id), key, threshold, T(scale)}};
}

// Both directions of a CSR; the one that a step goes by is looked at.
struct BothWays {
    Csr csr, transposed;

    BothWays(const Fits& fits, const Ids& indptr, const Nodes& indices, const Ids& t_indptr, const Nodes& t_indices, const Ids& origin,
             bool by_source, Span span)
        : csr{indptr.data(), indices.data(), span.second, span.first}, transposed{t_indptr.data(), t_indices.data(), span.second, span.first} {
        fits.csr(indptr, indices), fits.csr(t_indptr, t_indices);
        fits.size("t_indices", t_indices, length(indices)), fits.size("origin", origin, length(indices));
        fits.span(span.first, span.second, length(by_source ? t_indptr : indptr) - 1);
    }
};

constexpr auto released = nb::call_guard<nb::gil_scoped_release>();

void check_after(const Fits& fits, int activation, int64_t width) {
    fits.between("activation", activation, 0, 2);
    fits.between("the width", width, 0, 1 << 30);
}

template <typename T>
void bind_rows(nb::module_& m) {
    m.def("spmm",
          [](Ids indptr, Nodes indices, Array<const T, 2> x, Optional<const T, 1> weight, Optional<const T, 1> pre,
             Optional<const T, 1> post, Optional<const T, 1> loop, Array<T, 2> out, Optional<const int64_t, 1> ends, int64_t first_src,
             bool add, Span span) {
              rows<T>().spmm(spmm_of<T, T>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_array, "indices"_array, "x"_array, "weight"_maybe, "pre"_maybe, "post"_maybe, "loop"_maybe, "out"_array, "ends"_maybe,
          "first_src"_a, "add"_a, "span"_a, released);
    m.def("segment_max",
          [](Ids indptr, Nodes indices, Array<const T, 2> x, Array<T, 2> out, Array<int32_t, 2> from, std::optional<Ids> id, Span span) {
              const Fits fits{"segment_max"};
              const Csr csr = fits.some(indptr, indices, span);
              fits.size("out", out, length(indptr) - 1, columns(x)), fits.size("from", from, length(out), columns(x));
              fits.size("id", id, length(x));
              rows<T>().segment_max({csr, x.data(), columns(x), out.data(), from.data(), pointer(id)});
          },
          "indptr"_array, "indices"_array, "x"_array, "out"_array, "from_"_array, "id"_maybe, "span"_a, released);
    m.def("segment_max_backward",
          [](Ids indptr, Nodes indices, Array<const T, 2> grad, Array<const int32_t, 2> from, Array<T, 2> out, Span span) {
              const Fits fits{"segment_max_backward"};
              const Csr csr = fits.some(indptr, indices, span);
              fits.size("from", from, length(grad), columns(grad)), fits.size("out", out, length(indptr) - 1, columns(grad));
              rows<T>().segment_max_backward({csr, grad.data(), from.data(), columns(grad), out.data()});
          },
          "indptr"_array, "indices"_array, "grad"_array, "from_"_array, "out"_array, "span"_a, released);
    m.def("epilogue",
          [](Array<const T, 2> x, Optional<const T, 1> bias, std::optional<Ids> row_id, int activation, uint64_t key, uint32_t threshold,
             double scale, Array<T, 2> out) {
              const Fits fits{"epilogue"};
              check_after(fits, activation, columns(x));
              fits.size("bias", bias, columns(x)), fits.size("row_id", row_id, length(x)), fits.size("out", out, length(x), columns(x));
              rows<T>().epilogue({x.data(), pointer(bias), pointer(row_id), length(x), columns(x), Activation(activation), key, threshold,
                                  T(scale), out.data()});
          },
          "x"_array, "bias"_maybe, "row_id"_maybe, "activation"_a, "key"_a, "threshold"_a, "scale"_a, "out"_array, released);
    m.def("epilogue_backward",
          [](Array<const T, 2> grad, Array<const T, 2> output, std::optional<Ids> row_id, int activation, uint64_t key, uint32_t threshold,
             double scale, Array<T, 2> out, Optional<T, 2> bias_parts) {
              const Fits fits{"epilogue_backward"};
              const int64_t rows_ = length(grad), width = columns(grad);
              check_after(fits, activation, width);
              fits.size("output", output, rows_, width), fits.size("row_id", row_id, rows_), fits.size("out", out, rows_, width);
              fits.size("bias_parts", bias_parts, kBiasParts, width);
              rows<T>().epilogue_backward({grad.data(), width, output.data(), pointer(row_id), rows_, width, Activation(activation), key,
                                           threshold, T(scale), out.data(), pointer(bias_parts)});
          },
          "grad"_array, "output"_array, "row_id"_maybe, "activation"_a, "key"_a, "threshold"_a, "scale"_a, "out"_array, "bias_parts"_maybe,
          released);
}

template <typename T>
void bind_adam(nb::module_& m) {
    m.def("adam_moments",
          [](Array<const T, 1> grad, Optional<const T, 1> parameter, Array<T, 1> mean, Array<T, 1> square, double decay, double mean_rate,
             double square_keep, double square_rate) {
              const Fits fits{"adam_moments"};
              const int64_t size = length(grad);
              fits.size("parameter", parameter, size), fits.size("mean", mean, size), fits.size("square", square, size);
              rows<T>().adam_moments({grad.data(), pointer(parameter), mean.data(), square.data(), size, T(decay), T(mean_rate),
                                      T(square_keep), T(square_rate)});
          },
          "grad"_array, "parameter"_maybe, "mean"_array, "square"_array, "decay"_a, "mean_rate"_a, "square_keep"_a, "square_rate"_a,
          released);
    m.def("adam_move",
          [](Array<const T, 1> mean, Array<const T, 1> root, Array<T, 1> parameter, double divisor, double eps, double rate) {
              const Fits fits{"adam_move"};
              const int64_t size = length(parameter);
              fits.size("mean", mean, size), fits.size("root", root, size);
              rows<T>().adam_move({mean.data(), root.data(), parameter.data(), size, T(divisor), T(eps), T(rate)});
          },
          "mean"_array, "root"_array, "parameter"_array, "divisor"_a, "eps"_a, "rate"_a, released);
}

template <typename T>
void bind_attention(nb::module_& m) {
    m.def("attend",
          [](Ids indptr, Nodes indices, Within<const T> z, Within<const T> score_src, Within<const T> score_dst, AttentionArgs args,
             std::optional<Ids> node_id, Array<T, 2> out, Array<T, 3> softmax, Span span) {
              const auto fits = attention_fits("attend", args, length(z), length(out), node_id);
              const Csr csr = fits.some(indptr, indices, span);
              fits.size("indptr", indptr, fits.num_dst + 1);
              fits.head_rows("z", z, fits.num_src), fits.head_rows("out", out, fits.num_dst);
              fits.score_rows("score_src", score_src, fits.num_src), fits.score_rows("score_dst", score_dst, fits.num_dst);
              fits.size("softmax", softmax, fits.num_dst, 2, fits.heads);
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend({csr, rows_of(z), rows_of(score_src), rows_of(score_dst), heads, slope, drop, out.data(), softmax.data()});
          },
          "indptr"_array, "indices"_array, "z"_array, "score_src"_array, "score_dst"_array, "args"_a, "node_id"_maybe, "out"_array,
          "softmax"_array, "span"_a, released);
    m.def("attend_backward",
          [](Ids indptr, Nodes indices, Ids t_indptr, Nodes t_indices, Ids origin, Within<const T> z, Within<const T> score_src,
             Within<const T> score_dst, AttentionArgs args, std::optional<Ids> node_id, Array<const T, 2> out, Array<const T, 3> softmax,
             Array<const T, 2> grad, Array<T, 3> at_dst, Array<T, 2> grad_edge, Within<T> grad_z, Within<T> grad_score_src,
             Within<T> grad_score_dst, int step, Span span) {
              const auto fits = attention_fits("attend_backward", args, length(z), length(grad), node_id);
              fits.between("step", step, 0, 2);
              const BothWays edges(fits, indptr, indices, t_indptr, t_indices, origin, step == 1, span);
              fits.size("indptr", indptr, fits.num_dst + 1), fits.size("t_indptr", t_indptr, fits.num_src + 1);
              fits.head_rows("z", z, fits.num_src), fits.head_rows("grad_z", grad_z, fits.num_src);
              fits.score_rows("score_src", score_src, fits.num_src), fits.score_rows("score_dst", score_dst, fits.num_dst);
              fits.score_rows("grad_score_src", grad_score_src, fits.num_src);
              fits.score_rows("grad_score_dst", grad_score_dst, fits.num_dst);
              fits.size("out", out, fits.num_dst, columns(z)), fits.size("grad", grad, fits.num_dst, columns(z));
              fits.size("softmax", softmax, fits.num_dst, 2, fits.heads), fits.size("at_dst", at_dst, fits.num_dst, 4, fits.heads);
              fits.size("grad_edge", grad_edge, length(indices), fits.heads);
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_backward({edges.csr, edges.transposed, origin.data(), rows_of(z), rows_of(score_src), rows_of(score_dst),
                                         heads, slope, drop, out.data(), softmax.data(), grad.data(), at_dst.data(), grad_edge.data(),
                                         rows_of(grad_z), rows_of(grad_score_src), rows_of(grad_score_dst), length(grad)}, step);
          },
          "indptr"_array, "indices"_array, "t_indptr"_array, "t_indices"_array, "origin"_array, "z"_array, "score_src"_array,
          "score_dst"_array, "args"_a, "node_id"_maybe, "out"_array, "softmax"_array, "grad"_array, "at_dst"_array, "grad_edge"_array,
          "grad_z"_array, "grad_score_src"_array, "grad_score_dst"_array, "step"_a, "span"_a, released);
    m.def("attend_v2",
          [](Ids indptr, Nodes indices, Within<const T> z_src, Within<const T> z_dst, Array<const T, 1> vector, AttentionArgs args,
             std::optional<Ids> node_id, Array<T, 2> out, Array<T, 3> softmax, Span span) {
              const auto fits = attention_fits("attend_v2", args, length(z_src), length(out), node_id);
              const Csr csr = fits.some(indptr, indices, span);
              fits.size("indptr", indptr, fits.num_dst + 1);
              fits.head_rows("z_src", z_src, fits.num_src), fits.head_rows("z_dst", z_dst, fits.num_dst);
              fits.head_rows("out", out, fits.num_dst), fits.size("vector", vector, columns(z_src));
              fits.size("softmax", softmax, fits.num_dst, 2, fits.heads);
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_v2({csr, rows_of(z_src), rows_of(z_dst), vector.data(), heads, slope, drop, out.data(), softmax.data()});
          },
          "indptr"_array, "indices"_array, "z_src"_array, "z_dst"_array, "vector"_array, "args"_a, "node_id"_maybe, "out"_array,
          "softmax"_array, "span"_a, released);
    m.def("attend_v2_backward",
          [](Ids indptr, Nodes indices, Ids t_indptr, Nodes t_indices, Ids origin, Within<const T> z_src, Within<const T> z_dst,
             Array<const T, 1> vector, AttentionArgs args, std::optional<Ids> node_id, Array<const T, 2> out, Array<const T, 3> softmax,
             Array<const T, 2> grad, Array<T, 3> at_edge, Array<T, 3> at_loop, Within<T> grad_src, Within<T> grad_dst,
             Array<T, 2> vector_parts, int step, Span span) {
              const auto fits = attention_fits("attend_v2_backward", args, length(z_src), length(grad), node_id);
              fits.between("step", step, 0, 1);
              const BothWays edges(fits, indptr, indices, t_indptr, t_indices, origin, step == 1, span);
              fits.size("indptr", indptr, fits.num_dst + 1), fits.size("t_indptr", t_indptr, fits.num_src + 1);
              fits.head_rows("z_src", z_src, fits.num_src), fits.head_rows("z_dst", z_dst, fits.num_dst);
              fits.head_rows("grad_src", grad_src, fits.num_src), fits.head_rows("grad_dst", grad_dst, fits.num_dst);
              fits.size("vector", vector, columns(z_src)), fits.size("vector_parts", vector_parts, kVectorParts, columns(z_src));
              fits.size("out", out, fits.num_dst, columns(z_src)), fits.size("grad", grad, fits.num_dst, columns(z_src));
              fits.size("softmax", softmax, fits.num_dst, 2, fits.heads), fits.size("at_loop", at_loop, fits.num_dst, 2, fits.heads);
              fits.size("at_edge", at_edge, length(indices), 2, fits.heads);
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_v2_backward({edges.csr, edges.transposed, origin.data(), rows_of(z_src), rows_of(z_dst), vector.data(), heads,
                                            slope, drop, out.data(), softmax.data(), grad.data(), at_edge.data(), at_loop.data(),
                                            rows_of(grad_src), rows_of(grad_dst), vector_parts.data(), length(grad)}, step);
          },
          "indptr"_array, "indices"_array, "t_indptr"_array, "t_indices"_array, "origin"_array, "z_src"_array, "z_dst"_array,
          "vector"_array, "args"_a, "node_id"_maybe, "out"_array, "softmax"_array, "grad"_array, "at_edge"_array, "at_loop"_array,
          "grad_src"_array, "grad_dst"_array, "vector_parts"_array, "step"_a, "span"_a, released);
}

void bind_structure(nb::module_& m) {
    m.def("first_fall", [](Ids values) { return first_fall(values.data(), length(values)); }, "values"_array, released);
    m.def("first_outside", [](Nodes values, int64_t limit) { return first_outside(values.data(), length(values), limit); },
          "values"_array, "limit"_a, released);
    m.def("first_outside", [](Ids values, int64_t limit) { return first_outside(values.data(), length(values), limit); },
          "values"_array, "limit"_a, released);
    m.def("first_unsorted",
          [](Ids indptr, Nodes indices) {
              Fits{"first_unsorted"}.ascending("an offset", indptr.data(), length(indptr), length(indices));
              return first_unsorted(indptr.data(), indices.data(), length(indptr) - 1);
          },
          "indptr"_array, "indices"_array, released);
    m.def("build_csr",
          [](Nodes row, Nodes col, Array<int64_t, 1> indptr, Array<int32_t, 1> cols, Optional<int64_t, 1> from) {
              const Fits fits{"build_csr"};
              fits.between("the length of indptr", length(indptr), 1, Expect::kMost);
              fits.size("col", col, length(row)), fits.size("cols", cols, length(row)), fits.size("from", from, length(row));
              fits.within("row", row.data(), length(row), length(indptr) - 1);
              build_csr(row.data(), col.data(), length(row), length(indptr) - 1, indptr.data(), cols.data(), pointer(from));
          },
          "row"_array, "col"_array, "indptr"_array, "cols"_array, "from_"_maybe, released);
    m.def("transpose_csr",
          [](Ids indptr, Nodes indices, Array<int64_t, 1> t_indptr, Array<int32_t, 1> t_indices, Optional<int64_t, 1> from) {
              const Fits fits{"transpose_csr"};
              fits.between("the length of t_indptr", length(t_indptr), 1, Expect::kMost);
              const int64_t num_rows = fits.csr(indptr, indices, length(t_indptr) - 1);
              fits.size("t_indices", t_indices, length(indices)), fits.size("from", from, length(indices));
              transpose_csr(indptr.data(), indices.data(), num_rows, length(t_indptr) - 1, t_indptr.data(), t_indices.data(), pointer(from));
          },
          "indptr"_array, "indices"_array, "t_indptr"_array, "t_indices"_array, "from_"_maybe, released);
    m.def("sort_rows",
          [](Ids indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from) {
              const Fits fits{"sort_rows"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices)), fits.size("from", from, length(indices));
              sort_rows(indptr.data(), indices.data(), pointer(from), length(indptr) - 1);
          },
          "indptr"_array, "indices"_array, "from_"_maybe, released);
    m.def("deduplicate_rows",
          [](Array<int64_t, 1> indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from) {
              const Fits fits{"deduplicate_rows"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices)), fits.size("from", from, length(indices));
              return deduplicate_rows(indptr.data(), indices.data(), pointer(from), length(indptr) - 1);
          },
          "indptr"_array, "indices"_array, "from_"_maybe, released);
    m.def("count_distinct",
          [](Ids indptr, Nodes indices, Array<int64_t, 1> out) {
              const Fits fits{"count_distinct"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices)), fits.size("out", out, length(indptr) - 1);
              count_distinct(indptr.data(), indices.data(), length(out), out.data());
          },
          "indptr"_array, "indices"_array, "out"_array, released);
    m.def("apply_delta",
          [](Ids indptr, Nodes indices, std::optional<Ids> from, Ids add_indptr, Nodes add_indices, std::optional<Ids> add_from,
             Ids drop_indptr, Nodes drop_indices, Array<int64_t, 1> out_indptr, Array<int32_t, 1> out_indices, Optional<int64_t, 1> out_from) {
              const Fits fits{"apply_delta"};
              const int64_t num_rows = fits.csr(indptr, indices), edges = length(indices) + length(add_indices) - length(drop_indices);
              fits.same("the rows of add", fits.csr(add_indptr, add_indices), num_rows);
              fits.same("the rows of drop", fits.csr(drop_indptr, drop_indices), num_rows);
              fits.size("from", from, length(indices)), fits.size("add_from", add_from, length(add_indices));
              fits.size("out_indptr", out_indptr, num_rows + 1), fits.size("out_indices", out_indices, std::max<int64_t>(0, edges));
              fits.size("out_from", out_from, length(out_indices));
              fits.same("the number of arrays that tell where edges come from", out_from ? from.has_value() + add_from.has_value() : 2, 2);
              return apply_delta({indptr.data(), indices.data(), pointer(from)}, {add_indptr.data(), add_indices.data(), pointer(add_from)},
                                 {drop_indptr.data(), drop_indices.data(), nullptr}, num_rows, out_indptr.data(), out_indices.data(),
                                 pointer(out_from));
          },
          "indptr"_array, "indices"_array, "from_"_maybe, "add_indptr"_array, "add_indices"_array, "add_from"_maybe, "drop_indptr"_array,
          "drop_indices"_array, "out_indptr"_array, "out_indices"_array, "out_from"_maybe, released);
    m.def("places_lacking",
          [](Ids indptr, Nodes indices, Ids other_indptr, Nodes other_indices, Array<int64_t, 1> places) {
              const Fits fits{"places_lacking"};
              const int64_t num_rows = fits.csr(indptr, indices);
              fits.same("the rows of the other", fits.csr(other_indptr, other_indices), num_rows);
              fits.size("places", places, length(indices));
              return places_lacking({indptr.data(), indices.data(), nullptr}, {other_indptr.data(), other_indices.data(), nullptr}, num_rows,
                                    places.data());
          },
          "indptr"_array, "indices"_array, "other_indptr"_array, "other_indices"_array, "places"_array, released);
    m.def("take_rows",
          [](Ids indptr, Nodes indices, Ids rows, Nodes name, Array<int64_t, 1> out_indptr, Array<int32_t, 1> out_indices,
             Optional<int64_t, 1> from) {
              const Fits fits{"take_rows"};
              fits.within("rows", rows.data(), length(rows), fits.csr(indptr, indices));
              int64_t edges = 0;
              for (int64_t i = 0; i < length(rows); ++i) {
                  const int64_t *row = indptr.data() + rows.data()[i], count = row[1] - row[0];
                  fits.offsets(row[0], row[1], length(indices));
                  fits.within("indices", indices.data() + row[0], count, length(name));
                  edges += count;
              }
              fits.size("out_indptr", out_indptr, length(rows) + 1), fits.size("out_indices", out_indices, edges);
              fits.size("from", from, edges);
              take_rows(indptr.data(), indices.data(), rows.data(), length(rows), name.data(), out_indptr.data(), out_indices.data(),
                        pointer(from));
          },
          "indptr"_array, "indices"_array, "rows"_array, "name"_array, "out_indptr"_array, "out_indices"_array, "from_"_maybe, released);
    m.def("mark_columns",
          [](Ids indptr, Nodes indices, Ids rows, Array<uint8_t, 1> mark) {
              const Fits fits{"mark_columns"};
              fits.within("rows", rows.data(), length(rows), fits.csr(indptr, indices));
              for (int64_t i = 0; i < length(rows); ++i) {
                  const int64_t* row = indptr.data() + rows.data()[i];
                  fits.offsets(row[0], row[1], length(indices));
                  fits.within("indices", indices.data() + row[0], row[1] - row[0], length(mark));
              }
              mark_columns(indptr.data(), indices.data(), rows.data(), length(rows), mark.data());
          },
          "indptr"_array, "indices"_array, "rows"_array, "mark"_array, released);
    m.def("missing_loops",
          [](Ids indptr, Nodes indices, Optional<const float, 1> weight, Array<double, 1> out) {
              const Fits fits{"missing_loops"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices));
              fits.size("out", out, length(indptr) - 1), fits.size("weight", weight, length(indices));
              missing_loops(indptr.data(), indices.data(), pointer(weight), length(out), out.data());
          },
          "indptr"_array, "indices"_array, "weight"_maybe, "out"_array, released);
    m.def("split_rows",
          [](Ids indptr, Nodes indices, int32_t column, Array<int64_t, 1> ends) {
              const Fits fits{"split_rows"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices)), fits.size("ends", ends, length(indptr) - 1);
              split_rows(indptr.data(), indices.data(), column, length(ends), ends.data());
          },
          "indptr"_array, "indices"_array, "column"_a, "ends"_array, released);
    m.def("locality_order",
          [](Ids indptr, Nodes indices, int64_t max_community, int rounds, Array<int64_t, 1> order) {
              const Fits fits{"locality_order"};
              fits.size("order", order, fits.csr(indptr, indices, length(indptr) - 1));
              locality_order(indptr.data(), indices.data(), length(order), max_community, rounds, order.data());
          },
          "indptr"_array, "indices"_array, "max_community"_a, "rounds"_a, "order"_array, released);
}

constexpr int64_t kMostNodes = int64_t(1) << 31;

void bind_ascending(nb::module_& m) {
    m.def("ascending_bytes", [](Ids values) { return ascending_bytes(values.data(), length(values)); }, "values"_array, released);
    m.def("pack_ascending",
          [](Ids values, Array<uint8_t, 1> out) {
              if (!pack_ascending(values.data(), length(values), out.data(), length(out)))
                  Fits{"pack_ascending"}.refuse("the length of out", length(out), "what ascending_bytes says");
          },
          "values"_array, "out"_array, released);
    m.def("unpack_ascending",
          [](Array<const uint8_t, 1> data, int64_t limit, Array<int64_t, 1> values) {
              Fits{"unpack_ascending"}.between("the limit", limit, 0, INT64_MAX);
              return unpack_ascending(data.data(), length(data), limit, values.data(), length(values));
          },
          "data"_array, "limit"_a, "values"_array, released);
    m.def("pairs_bytes",
          [](Nodes row, Nodes col, int64_t num_cols) {
              const Fits fits{"pairs_bytes"};
              fits.size("col", col, length(row)), fits.between("the number of columns", num_cols, 0, kMostNodes);
              return pairs_bytes(row.data(), col.data(), length(row), num_cols);
          },
          "row"_array, "col"_array, "num_cols"_a, released);
    m.def("pack_pairs",
          [](Nodes row, Nodes col, int64_t num_cols, Array<uint8_t, 1> out) {
              const Fits fits{"pack_pairs"};
              fits.size("col", col, length(row)), fits.between("the number of columns", num_cols, 0, kMostNodes);
              if (!pack_pairs(row.data(), col.data(), length(row), num_cols, out.data(), length(out)))
                  fits.refuse("the length of out", length(out), "what pairs_bytes says");
          },
          "row"_array, "col"_array, "num_cols"_a, "out"_array, released);
    m.def("unpack_pairs",
          [](Array<const uint8_t, 1> data, int64_t num_rows, int64_t num_cols, Array<int32_t, 1> row, Array<int32_t, 1> col) {
              const Fits fits{"unpack_pairs"};
              fits.size("col", col, length(row));
              fits.between("the number of rows", num_rows, 0, kMostNodes), fits.between("the number of columns", num_cols, 0, kMostNodes);
              return unpack_pairs(data.data(), length(data), num_rows, num_cols, row.data(), col.data(), length(row));
          },
          "data"_array, "num_rows"_a, "num_cols"_a, "row"_array, "col"_array, released);
}

void bind_partition(nb::module_& m) {
    using Parts = Array<int64_t, 1>;
    const auto bytes_of = [](const char* kernel, auto* bytes, int64_t num_nodes, int64_t parts) {
        const Fits fits{kernel};
        fits.between("the number of nodes", num_nodes, 0, kMostNodes), fits.between("the number of parts", parts, 0, kMostNodes);
        return bytes(num_nodes, parts);
    };
    const auto job_of = [](const Fits& fits, const Ids& indptr, const Nodes& indices, const Optional<const uint8_t, 1>& train, int64_t parts,
                           uint64_t seed, const Array<uint8_t, 1>& work, int64_t work_bytes) {
        fits.between("the bytes of work", length(work), work_bytes, Expect::kMost);
        fits.same("the address of work modulo 16", int64_t(reinterpret_cast<uintptr_t>(work.data()) % 16), 0);
        const int64_t num_nodes = fits.csr(indptr, indices, length(indptr) - 1);
        fits.size("train", train, num_nodes);
        return PartitionJob{indptr.data(), indices.data(), pointer(train), num_nodes, parts, seed};
    };
    m.def("partition_bytes", [bytes_of](int64_t nodes, int64_t parts) { return bytes_of("partition_bytes", &partition_bytes, nodes, parts); },
          "num_nodes"_a, "parts"_a);
    m.def("partition",
          [job_of](Ids indptr, Nodes indices, Optional<const uint8_t, 1> train, int64_t parts, uint64_t seed, Array<uint8_t, 1> work,
                   Array<int32_t, 1> part) {
              const Fits fits{"partition"};
              fits.between("the number of parts", parts, 2, length(indptr) - 1), fits.size("part", part, length(indptr) - 1);
              partition(job_of(fits, indptr, indices, train, parts, seed, work, partition_bytes(length(part), parts)),
                        reinterpret_cast<char*>(work.data()), part.data());
          },
          "indptr"_array, "indices"_array, "train"_maybe, "parts"_a, "seed"_a, "work"_array, "part"_array, released);
    m.def("quality_bytes", [bytes_of](int64_t nodes, int64_t parts) { return bytes_of("quality_bytes", &quality_bytes, nodes, parts); },
          "num_nodes"_a, "parts"_a);
    m.def("partition_quality",
          [job_of](Ids indptr, Nodes indices, Optional<const uint8_t, 1> train, Nodes part, Array<uint8_t, 1> work, Parts nodes, Parts edges,
                   Parts trained, Parts inside, Parts halo) {
              const Fits fits{"partition_quality"};
              const int64_t parts = length(nodes);
              for (const Parts& each : {edges, trained, inside, halo}) fits.size("a count of each part", each, parts);
              fits.size("part", part, length(indptr) - 1), fits.within("part", part.data(), length(part), parts);
              partition_quality(job_of(fits, indptr, indices, train, parts, 0, work, quality_bytes(length(part), parts)), part.data(),
                                reinterpret_cast<char*>(work.data()),
                                {nodes.data(), edges.data(), trained.data(), inside.data(), halo.data()});
          },
          "indptr"_array, "indices"_array, "train"_maybe, "part"_array, "work"_array, "nodes"_array, "edges"_array, "trained"_array,
          "inside"_array, "halo"_array, released);
}

// What every sampling kernel is told.
Draw draw_of(const Fits& fits, const Ids& indptr, const Nodes& indices, const std::optional<Nodes>& name, const std::optional<Ids>& id,
             const Nodes& rows, const Ids& group_ptr, const Ids& key, int64_t fanout, bool replace) {
    const int64_t num_rows = fits.csr(indptr, indices);
    fits.within("rows", rows.data(), length(rows), num_rows);
    fits.size("group_ptr", group_ptr, length(key) + 1);
    fits.ascending("group_ptr", group_ptr.data(), length(group_ptr), length(rows));
    if (name) fits.between("the length of name", length(*name), num_rows, kMostNodes);
    if (id) fits.between("the length of id", length(*id), num_rows, kMostNodes);
    fits.between("the fanout", fanout, INT32_MIN, INT32_MAX);
    return {indptr.data(), indices.data(), length(indices), pointer(name), pointer(id), rows.data(), length(rows), group_ptr.data(),
            key.data(), length(key), fanout, replace && fanout >= 0};
}

// Where what is drawn begins for each row, as count_draws says; offsets between the ends are trusted. Returns how many are drawn.
int64_t drawn_of(const Fits& fits, const Ids& out_indptr, const Nodes& rows, const Optional<int64_t, 1>& edge, int64_t room) {
    fits.size("out_indptr", out_indptr, length(rows) + 1);
    const int64_t num_drawn = out_indptr.data()[length(rows)];
    fits.same("the first of out_indptr", out_indptr.data()[0], 0), fits.same("the last of out_indptr", num_drawn, room);
    fits.size("edge", edge, num_drawn);
    return num_drawn;
}

void bind_sample(nb::module_& m) {
    m.def("count_draws",
          [](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key, int64_t fanout,
             bool replace, Array<int64_t, 1> out_indptr) {
              const Fits fits{"count_draws"};
              fits.size("out_indptr", out_indptr, length(rows) + 1);
              count_draws(draw_of(fits, indptr, indices, name, id, rows, group_ptr, key, fanout, replace), out_indptr.data());
          },
          "indptr"_array, "indices"_array, "name"_maybe, "id"_maybe, "rows"_array, "group_ptr"_array, "key"_array, "fanout"_a, "replace"_a,
          "out_indptr"_array, released);
    m.def("draw_edges",
          [](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key, int64_t fanout,
             bool replace, Ids out_indptr, Array<int32_t, 1> source, Optional<int64_t, 1> edge) {
              const Fits fits{"draw_edges"};
              drawn_of(fits, out_indptr, rows, edge, length(source));
              draw_edges(draw_of(fits, indptr, indices, name, id, rows, group_ptr, key, fanout, replace), chosen.kernels->draw_rows,
                         out_indptr.data(), source.data(), pointer(edge));
          },
          "indptr"_array, "indices"_array, "name"_maybe, "id"_maybe, "rows"_array, "group_ptr"_array, "key"_array, "fanout"_a, "replace"_a,
          "out_indptr"_array, "source"_array, "edge"_maybe, released);
    m.def("draw_met",
          [](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key, int64_t fanout,
             bool replace, Ids out_indptr, Array<int32_t, 1> place, Optional<int64_t, 1> edge, Array<int32_t, 1> fresh,
             Array<int64_t, 1> num_fresh) {
              const Fits fits{"draw_met"};
              fits.size("fresh", fresh, drawn_of(fits, out_indptr, rows, edge, length(place))), fits.size("num_fresh", num_fresh, length(key));
              draw_met(draw_of(fits, indptr, indices, name, id, rows, group_ptr, key, fanout, replace), chosen.kernels->draw_rows,
                       out_indptr.data(), length(indptr) - 1, place.data(), pointer(edge), fresh.data(), num_fresh.data());
          },
          "indptr"_array, "indices"_array, "name"_maybe, "id"_maybe, "rows"_array, "group_ptr"_array, "key"_array, "fanout"_a, "replace"_a,
          "out_indptr"_array, "place"_array, "edge"_maybe, "fresh"_array, "num_fresh"_array, released);
    m.def("first_met",
          [](Nodes known, Ids known_ptr, Nodes met, Ids met_ptr, Array<int32_t, 1> place, Array<int32_t, 1> fresh,
             Array<int64_t, 1> num_fresh) {
              const Fits fits{"first_met"};
              const int64_t groups = length(num_fresh);
              fits.size("known_ptr", known_ptr, groups + 1), fits.size("met_ptr", met_ptr, groups + 1);
              fits.ascending("known_ptr", known_ptr.data(), groups + 1, length(known));
              fits.ascending("met_ptr", met_ptr.data(), groups + 1, length(met));
              fits.size("place", place, length(met)), fits.size("fresh", fresh, length(met));
              fits.within("known", known.data(), length(known), kMostNodes), fits.within("met", met.data(), length(met), kMostNodes);
              first_met(known.data(), known_ptr.data(), met.data(), met_ptr.data(), groups, place.data(), fresh.data(), num_fresh.data());
          },
          "known"_array, "known_ptr"_array, "met"_array, "met_ptr"_array, "place"_array, "fresh"_array, "num_fresh"_array, released);
    m.def("spread_rows",
          [](Ids from, Nodes values, Ids rows, Ids to, Array<int32_t, 1> out) {
              const Fits fits{"spread_rows"};
              fits.size("from", from, length(rows) + 1);
              fits.ascending("from", from.data(), length(from), length(values));
              fits.within("rows", rows.data(), length(rows), length(to));
              for (int64_t i = 0; i < length(rows); ++i)
                  fits.between("where a row begins", to.data()[rows.data()[i]], 0, length(out) - (from.data()[i + 1] - from.data()[i]));
              spread_rows(from.data(), values.data(), rows.data(), length(rows), to.data(), out.data());
          },
          "from_"_array, "values"_array, "rows"_array, "to"_array, "out"_array, released);
    m.def("sort_rows_by_id",
          [](Ids indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from, Ids id) {
              const Fits fits{"sort_rows_by_id"};
              fits.ascending("an offset", indptr.data(), length(indptr), length(indices)), fits.size("from", from, length(indices));
              fits.within("indices", indices.data(), length(indices), length(id));
              sort_rows_by_id(indptr.data(), indices.data(), pointer(from), id.data(), length(indptr) - 1);
          },
          "indptr"_array, "indices"_array, "from_"_maybe, "id"_array, released);
}

void bind_pairs(nb::module_& m) {
    using Table = Array<const float, 2>;
    using Values = Array<const float, 1>;
    using Counts = Array<int64_t, 1>;
    using Places = Array<int32_t, 1>;
    m.attr("PAIR_COLUMNS") = kPairColumns;
    m.attr("PAIR_CHUNK") = kChunkRows;
    m.attr("PAIR_WIDTH") = kPairWidth;
    m.attr("PAIR_PARTS") = kPairParts;
    m.def("pair_scores",
          [](Table a, Table b, std::optional<Values> w, Nodes src, Nodes dst, Array<float, 1> out) {
              const Fits fits{"pair_scores"};
              fits.same("the width of b", columns(b), columns(a)), fits.size("w", w, columns(a));
              fits.size("dst", dst, length(src)), fits.size("out", out, length(src));
              fits.within("src", src.data(), length(src), length(a)), fits.within("dst", dst.data(), length(dst), length(b));
              chosen.kernels->pair_scores({a.data(), b.data(), pointer(w), columns(a), src.data(), dst.data(), length(src), out.data()});
          },
          "a"_array, "b"_array, "w"_maybe, "src"_array, "dst"_array, "out"_array, released);
    const auto pair_rows_fit = [](const Fits& fits, const Ids& indptr, const Nodes& indices, const Table& a, const Table& b,
                                  const std::optional<Values>& w) {
        fits.same("the rows of a", length(a), fits.csr(indptr, indices, length(b)));
        fits.same("the width of b", columns(b), columns(a)), fits.size("w", w, columns(a));
        fits.same("the width modulo PAIR_WIDTH", columns(a) % kPairWidth, 0);
    };
    m.def("pair_rows",
          [pair_rows_fit](Ids indptr, Nodes indices, Table a, Table b, std::optional<Values> w, Array<float, 1> score) {
              const Fits fits{"pair_rows"};
              pair_rows_fit(fits, indptr, indices, a, b, w), fits.size("score", score, length(indices));
              chosen.kernels->pair_rows({indptr.data(), indices.data(), length(a), columns(a), a.data(), b.data(), pointer(w), score.data(),
                                         nullptr, nullptr, nullptr});
          },
          "indptr"_array, "indices"_array, "a"_array, "b"_array, "w"_maybe, "score"_array, released);
    m.def("pair_rows_backward",
          [pair_rows_fit](Ids indptr, Nodes indices, Table a, Table b, std::optional<Values> w, Values grad, Array<float, 2> grad_a,
                          Optional<float, 2> weight_parts) {
              const Fits fits{"pair_rows_backward"};
              pair_rows_fit(fits, indptr, indices, a, b, w);
              fits.size("grad", grad, length(indices)), fits.size("grad_a", grad_a, length(a), columns(a));
              fits.size("weight_parts", weight_parts, kPairParts, columns(a));
              chosen.kernels->pair_rows_backward({indptr.data(), indices.data(), length(a), columns(a), a.data(), b.data(), pointer(w), nullptr,
                                                  grad.data(), grad_a.data(), pointer(weight_parts)});
          },
          "indptr"_array, "indices"_array, "a"_array, "b"_array, "w"_maybe, "grad"_array, "grad_a"_array, "weight_parts"_maybe, released);
    m.def("distinct_rows",
          [](Table x, Array<uint64_t, 1> hash, Array<int32_t, 1> slot, Array<int32_t, 1> group, Array<int32_t, 1> first) {
              const Fits fits{"distinct_rows"};
              const int64_t rows = length(x), slots = length(slot);
              fits.between("the number of rows", rows, 0, INT32_MAX), fits.between("the number of slots", slots, rows + 1, INT64_MAX);
              fits.same("the number of slots modulo a power of two", slots & (slots - 1), 0);
              fits.size("hash", hash, rows), fits.size("group", group, rows), fits.size("first", first, rows);
              return distinct_rows(x.data(), rows, columns(x), hash.data(), slot.data(), slots, group.data(), first.data());
          },
          "x"_array, "hash"_array, "slot"_array, "group"_array, "first"_array, released);
    const auto tallies_fit = [](const Fits& fits, int64_t levels, const Places& first, const Array<uint8_t, 1>& marked,
                                const Array<int64_t, 2>& between, const Array<int64_t, 2>& same) {
        fits.between("the number of levels", levels, 0, INT32_MAX);
        fits.between("the length of marked", length(marked), 3, 1 << 20), fits.size("first", first, length(marked) + 1);
        fits.between("the number of threads", length(between), 1, 1 << 12);
        fits.size("between", between, length(between), levels + 1), fits.size("same", same, length(between), levels);
    };
    const auto times_fit = [](const Fits& fits, const char* what, const Nodes& times) {
        int64_t total = 0;
        for (int64_t i = 0; i < length(times); ++i) fits.between(what, times.data()[i], 0, INT32_MAX), total += times.data()[i];
        fits.between("the sum of times", total, 0, INT32_MAX);
    };
    m.def("count_above",
          [tallies_fit, times_fit](Table a, Table b, std::optional<Values> w, Nodes row, Nodes row_times, Nodes col, Nodes col_times, Ids pos_ptr,
                        Values pos, Values level, Places first, Array<uint8_t, 1> marked, Array<float, 3> panels, Array<float, 3> tiles,
                        Array<uint32_t, 2> by_cell, Array<int64_t, 2> between, Array<int64_t, 2> same, Counts row_above, Counts row_same) {
              const Fits fits{"count_above"};
              const int64_t padded = length(col_times), threads = length(between);
              fits.same("the width of b", columns(b), columns(a)), fits.size("w", w, columns(a));
              fits.within("row", row.data(), length(row), length(a)), fits.size("row_times", row_times, length(row));
              fits.within("col", col.data(), length(col), length(b)), fits.between("the length of col", length(col), 0, padded);
              fits.same("the length of col_times modulo PAIR_COLUMNS", padded % kPairColumns, 0);
              times_fit(fits, "row_times", row_times), times_fit(fits, "col_times", col_times);
              fits.size("pos_ptr", pos_ptr, length(row) + 1), fits.ascending("pos_ptr", pos_ptr.data(), length(pos_ptr), length(pos));
              tallies_fit(fits, length(level), first, marked, between, same);
              fits.size("panels", panels, padded / kPairColumns, columns(a), kPairColumns);
              fits.size("tiles", tiles, threads, kChunkRows, columns(a)), fits.size("by_cell", by_cell, threads, length(marked));
              fits.size("row_above", row_above, length(pos)), fits.size("row_same", row_same, length(pos));
              chosen.kernels->count_above({a.data(), b.data(), pointer(w), columns(a), row.data(), row_times.data(), length(row), col.data(),
                                           col_times.data(), length(col), padded, pos_ptr.data(), pos.data(), level.data(), length(level),
                                           int(threads), first.data(), marked.data(), length(marked), panels.data(), tiles.data(), by_cell.data(),
                                           between.data(), same.data(), row_above.data(), row_same.data()});
          },
          "a"_array, "b"_array, "w"_maybe, "row"_array, "row_times"_array, "col"_array, "col_times"_array, "pos_ptr"_array, "pos"_array,
          "level"_array, "first"_array, "marked"_array, "panels"_array, "tiles"_array, "by_cell"_array, "between"_array, "same"_array,
          "row_above"_array, "row_same"_array, released);
    m.def("replace_scores",
          [tallies_fit](Ids indptr, Values given, Values computed, Ids pos_ptr, Values pos, Values level, Places first,
                        Array<uint8_t, 1> marked, Array<int64_t, 2> between, Array<int64_t, 2> same, Counts row_above, Counts row_same,
                        Span span) {
              const Fits fits{"replace_scores"};
              fits.ascending("indptr", indptr.data(), length(indptr), length(given)), fits.size("computed", computed, length(given));
              fits.size("pos_ptr", pos_ptr, length(indptr)), fits.ascending("pos_ptr", pos_ptr.data(), length(pos_ptr), length(pos));
              tallies_fit(fits, length(level), first, marked, between, same);
              fits.size("row_above", row_above, length(pos)), fits.size("row_same", row_same, length(pos));
              fits.span(span.first, span.second, length(indptr) - 1);
              chosen.kernels->replace_scores({indptr.data(), given.data(), computed.data(), span.first, span.second, pos_ptr.data(),
                                              pos.data(), level.data(), length(level), int(length(between)), first.data(), marked.data(), length(marked),
                                              between.data(), same.data(), row_above.data(), row_same.data()});
          },
          "indptr"_array, "given"_array, "computed"_array, "pos_ptr"_array, "pos"_array, "level"_array, "first"_array, "marked"_array,
          "between"_array, "same"_array, "row_above"_array, "row_same"_array, "span"_a, released);
}

using Terms = nb::list;  // of (x, weight)

// What an element of a list is; it is not converted.
template <typename A>
A taken(const Fits& fits, const char* what, nb::handle each) {
    A value;
    if (!nb::try_cast<A>(each, value, false)) fits.refuse(what, 0, "contiguous float32 arrays of the right number of dimensions");
    return value;
}

// Fills in the terms; returns how many there are.
int read_terms(const Fits& fits, const Terms& given, int64_t rows, int64_t width, Term* terms) {
    fits.between("the number of terms", int64_t(given.size()), 1, kMostTerms);
    int count = 0;
    for (nb::handle each : given) {
        const auto [x, weight] = taken<std::tuple<Array<const float, 2>, Array<const float, 2>>>(fits, "a term", each);
        fits.there("a term", x), fits.there("the weight of a term", weight);
        fits.same("the rows of a term", length(x), rows), fits.size("the weight of a term", weight, columns(x), width);
        terms[count++] = {x.data(), columns(x), weight.data()};
    }
    return count;
}

using After = std::tuple<Optional<const float, 1>, std::optional<Ids>, int, uint64_t, uint32_t, double>;

void check_after(const Fits& fits, const std::optional<After>& after, int64_t rows, int64_t width) {
    if (!after) return;
    check_after(fits, std::get<2>(*after), width);
    fits.size("bias", std::get<0>(*after), width), fits.size("row_id", std::get<1>(*after), rows);
}

void bind_products(nb::module_& m) {
    m.def("product",
          [](Terms terms, std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>> add, Array<float, 2> out,
             std::optional<After> after) {
              const Fits fits{"product"};
              Product a{};
              a.rows = length(out), a.width = columns(out), a.out = out.data();
              a.num_terms = read_terms(fits, terms, a.rows, a.width, a.terms);
              if (add) {
                  fits.between("the dimensions of add", int64_t(add->ndim()), 1, 2), a.add_rows = add->ndim() == 2;
                  a.add_rows ? fits.size("add", *add, a.rows, a.width) : fits.size("add", *add, a.width);
                  a.add = add->data();
              }
              check_after(fits, after, a.rows, a.width);
              Epilogue<float> epilogue{};
              if (after) {
                  const auto& [bias, row_id, activation, key, threshold, scale] = *after;
                  epilogue = {a.out, pointer(bias), pointer(row_id), a.rows, a.width, Activation(activation), key, threshold,
                              float(scale), a.out};
                  a.after = &epilogue;
              }
              const nb::gil_scoped_release release;
              chosen.kernels->product(a);
          },
          "terms"_a, "add"_maybe, "out"_array, "after"_maybe);
    m.def("product_backward",
          [](Terms terms, Columns<const float> grad, Optional<const float, 2> output, std::optional<After> after, Array<float, 2> sums,
             Array<float, 1> out, nb::list grad_x) {
              const Fits fits{"product_backward"};
              ProductBackward a{};
              fits.same("the dimensions of grad", int64_t(grad.ndim()), 2), fits.strides("the last stride of grad", grad);
              a.rows = length(grad), a.width = columns(grad), a.grad = grad.data(), a.stride = grad.stride(0);
              a.num_terms = read_terms(fits, terms, a.rows, a.width, a.terms);
              a.parts = length(sums), a.sums = sums.data(), a.out = out.data();
              fits.between("the number of parts", a.parts, 1, 1 << 20), fits.size("sums", sums, a.parts, a.size());
              fits.size("out", out, a.size()), fits.same("the length of grad_x", int64_t(grad_x.size()), a.num_terms);
              for (int t = 0; t < a.num_terms; ++t) {
                  const auto each = taken<Optional<float, 2>>(fits, "grad_x", grad_x[size_t(t)]);
                  fits.size("grad_x", each, a.rows, a.terms[t].in), a.grad_x[t] = pointer(each);
              }
              check_after(fits, after, a.rows, a.width), fits.size("output", output, a.rows, a.width);
              EpilogueBackward<float> epilogue{};
              if (after) {
                  fits.same("the number of outputs", output.has_value(), 1);
                  const auto& [bias, row_id, activation, key, threshold, scale] = *after;
                  epilogue = {a.grad, a.stride, pointer(output), pointer(row_id), a.rows, a.width, Activation(activation), key, threshold,
                              float(scale), nullptr, nullptr};
                  a.after = &epilogue;
              }
              const nb::gil_scoped_release release;
              chosen.kernels->product_backward(a);
          },
          "terms"_a, "grad"_array, "output"_maybe, "after"_maybe, "sums"_array, "out"_array, "grad_x"_a);
}

// Rows most of whose numbers are zero: offsets, columns, numbers, how many columns there are, and the dropout of their elements.
using SparseArgs = std::tuple<Ids, Nodes, Array<const float, 1>, int64_t, std::optional<Ids>, uint64_t, uint32_t, double>;

SparseRows sparse_of(const Fits& fits, const SparseArgs& args) {
    const auto& [indptr, indices, values, width, row_id, key, threshold, scale] = args;
    fits.there("the offsets of x", indptr), fits.there("the columns of x", indices), fits.there("the numbers of x", values);
    const int64_t rows = fits.csr(indptr, indices);
    fits.size("the numbers of x", values, length(indices)), fits.between("the width of x", width, 0, INT32_MAX);
    fits.size("row_id", row_id, rows);
    return {indptr.data(), indices.data(), values.data(), rows, width, pointer(row_id), key, threshold, float(scale)};
}

void bind_sparse_rows(nb::module_& m) {
    m.def("sparse_product",
          [](SparseArgs x, Array<const float, 2> weight, std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>> add,
             Array<float, 2> out, std::optional<After> after) {
              const Fits fits{"sparse_product"};
              SparseProduct a{sparse_of(fits, x), columns(weight), weight.data(), nullptr, false, out.data(), nullptr};
              fits.size("weight", weight, a.x.width, a.width), fits.size("out", out, a.x.rows, a.width);
              if (add) {
                  fits.between("the dimensions of add", int64_t(add->ndim()), 1, 2), a.add_rows = add->ndim() == 2;
                  a.add_rows ? fits.size("add", *add, a.x.rows, a.width) : fits.size("add", *add, a.width);
                  a.add = add->data();
              }
              check_after(fits, after, a.x.rows, a.width);
              Epilogue<float> epilogue{};
              if (after) {
                  const auto& [bias, row_id, activation, key, threshold, scale] = *after;
                  epilogue = {a.out, pointer(bias), pointer(row_id), a.x.rows, a.width, Activation(activation), key, threshold,
                              float(scale), a.out};
                  a.after = &epilogue;
              }
              const nb::gil_scoped_release release;
              chosen.kernels->sparse_product(a);
          },
          "x"_a, "weight"_array, "add"_maybe, "out"_array, "after"_maybe);
    m.def("sparse_product_backward",
          [](SparseArgs x, Columns<const float> grad, Optional<const float, 2> output, std::optional<After> after, Array<float, 3> sums,
             Array<float, 2> out) {
              const Fits fits{"sparse_product_backward"};
              fits.same("the dimensions of grad", int64_t(grad.ndim()), 2), fits.strides("the last stride of grad", grad);
              SparseProductBackward a{sparse_of(fits, x), columns(grad), grad.data(), grad.stride(0), nullptr, length(sums), sums.data(), out.data()};
              fits.same("the rows of grad", length(grad), a.x.rows), fits.size("out", out, a.x.width + 1, a.width);
              fits.between("the number of parts", a.parts, 1, 1 << 20), fits.size("sums", sums, a.parts, a.x.width + 1, padded_width(a.width));
              check_after(fits, after, a.x.rows, a.width), fits.size("output", output, a.x.rows, a.width);
              EpilogueBackward<float> epilogue{};
              if (after) {
                  fits.same("the number of outputs", output.has_value(), 1);
                  const auto& [bias, row_id, activation, key, threshold, scale] = *after;
                  epilogue = {a.grad, a.stride, pointer(output), pointer(row_id), a.x.rows, a.width, Activation(activation), key, threshold,
                              float(scale), nullptr, nullptr};
                  a.after = &epilogue;
              }
              const nb::gil_scoped_release release;
              chosen.kernels->sparse_product_backward(a);
          },
          "x"_a, "grad"_array, "output"_maybe, "after"_maybe, "sums"_array, "out"_array);
    m.def("sparse_sum",
          [](Ids indptr, Nodes indices, SparseArgs x, Optional<const float, 1> weight, Optional<const float, 1> pre,
             Optional<const float, 1> post, Optional<const float, 1> loop, Array<int64_t, 1> out_indptr, Optional<int32_t, 1> out_indices,
             Optional<float, 1> out_values) {
              const Fits fits{"sparse_sum"};
              const int64_t num_dst = fits.csr(indptr, indices);
              SparseSum a{{indptr.data(), indices.data(), num_dst}, sparse_of(fits, x), pointer(weight), pointer(pre), pointer(post),
                          pointer(loop), loop ? length(*loop) : 0, out_indptr.data(), pointer(out_indices), pointer(out_values)};
              fits.within("indices", indices.data(), length(indices), a.x.rows);
              fits.size("weight", weight, length(indices)), fits.size("pre", pre, a.x.rows), fits.size("post", post, num_dst);
              fits.between("the length of loop", a.num_loop, 0, std::min(a.x.rows, num_dst));
              fits.size("out_indptr", out_indptr, num_dst + 1);
              fits.same("the number of arrays of sums", out_indices.has_value() + out_values.has_value(), out_values ? 2 : 0);
              if (out_values) {
                  fits.ascending("out_indptr", out_indptr.data(), num_dst + 1, length(*out_values));
                  fits.size("out_indices", out_indices, length(*out_values));
              }
              chosen.kernels->sparse_sum(a);
          },
          "indptr"_array, "indices"_array, "x"_a, "weight"_maybe, "pre"_maybe, "post"_maybe, "loop"_maybe, "out_indptr"_array, "out_indices"_maybe,
          "out_values"_maybe, released);
    m.def("sparse_take",
          [](SparseArgs x, Ids index, Ids out_indptr, Array<int32_t, 1> out_indices, Array<float, 1> out_values) {
              const Fits fits{"sparse_take"};
              SparseTake a{sparse_of(fits, x), index.data(), length(index), out_indptr.data(), out_indices.data(), out_values.data()};
              fits.within("index", a.index, a.num_out, a.x.rows), fits.size("out_indptr", out_indptr, a.num_out + 1);
              fits.size("out_values", out_values, length(out_indices));
              fits.ascending("out_indptr", a.indptr, a.num_out + 1, length(out_indices));
              for (int64_t i = 0; i < a.num_out; ++i) {
                  const int64_t* row = a.x.indptr + a.index[i];
                  fits.offsets(row[0], row[1], length(std::get<1>(x)));
                  fits.same("the length of a row", a.indptr[i + 1] - a.indptr[i], row[1] - row[0]);
              }
              chosen.kernels->sparse_take(a);
          },
          "x"_a, "index"_array, "out_indptr"_array, "out_indices"_array, "out_values"_array, released);
    m.def("sparse_dense",
          [](SparseArgs x, std::optional<Ids> index, Array<float, 2> out) {
              const Fits fits{"sparse_dense"};
              SparseDense a{sparse_of(fits, x), pointer(index), length(out), out.data()};
              if (index) fits.within("index", a.index, length(*index), a.x.rows);
              fits.size("index", index, length(out)), fits.size("out", out, index ? length(*index) : a.x.rows, a.x.width);
              chosen.kernels->sparse_dense(a);
          },
          "x"_a, "index"_maybe, "out"_array, released);
}

using State = std::pair<Array<float, 2>, Array<float, 2>>;

struct LstmFits : Fits {
    int64_t steps, rows, hidden;

    void state(const char* what, const State& of) const {
        size(what, of.first, rows, hidden), size(what, of.second, rows, hidden);
    }

    // (x, weight) of each input; x is (rows, in) where every step has the same.
    int inputs(const nb::list& given, LstmInput* to) const {
        between("the number of inputs", int64_t(given.size()), 1, kMostInputs);
        int count = 0;
        for (nb::handle each : given) {
            using Input = std::pair<nb::ndarray<const float, nb::c_contig, nb::device::cpu>, Array<const float, 2>>;
            const auto [x, weight] = taken<Input>(*this, "an input", each);
            there("an input", x), there("the weight of an input", weight);
            const int64_t in = length(weight);
            size("the weight of an input", weight, in, 4 * hidden), between("the dimensions of an input", int64_t(x.ndim()), 2, 3);
            x.ndim() == 2 ? size("an input", x, rows, in) : size("an input", x, steps, rows, in);
            to[count++] = {x.data(), in, x.ndim() == 2, weight.data()};
        }
        return count;
    }
};

Lstm lstm_of(const LstmFits& fits, const nb::list& inputs, const Array<const float, 2>& weight_h, const Array<const float, 1>& bias,
             const Optional<const uint8_t, 2>& present, const State& before, const Optional<float, 3>& gates) {
    fits.size("weight_h", weight_h, fits.hidden, 4 * fits.hidden), fits.size("bias", bias, 4 * fits.hidden);
    fits.size("present", present, fits.steps, fits.rows), fits.state("before", before);
    fits.size("gates", gates, fits.steps, fits.rows, 4 * fits.hidden);
    Lstm a{};
    a.steps = fits.steps, a.rows = fits.rows, a.hidden = fits.hidden;
    a.num_inputs = fits.inputs(inputs, a.inputs);
    a.weight_h = weight_h.data(), a.bias = bias.data(), a.present = pointer(present);
    a.h = before.first.data(), a.c = before.second.data(), a.gates = pointer(gates);
    return a;
}

void bind_lstm(nb::module_& m) {
    m.def("lstm",
          [](nb::list inputs, Array<const float, 2> weight_h, Array<const float, 1> bias, Optional<const uint8_t, 2> present, State before,
             Array<float, 3> out, std::optional<State> after, Optional<float, 3> gates) {
              Fits{"lstm"}.there("before", before.first);
              const LstmFits fits{{{"lstm"}}, length(out), length(before.first), length(weight_h)};
              Lstm a = lstm_of(fits, inputs, weight_h, bias, present, before, gates);
              fits.size("out", out, a.steps, a.rows, a.hidden), a.out = out.data();
              if (after) fits.state("after", *after), a.h_end = after->first.data(), a.c_end = after->second.data();
              const nb::gil_scoped_release release;
              chosen.kernels->lstm(a);
          },
          "inputs"_a, "weight_h"_array, "bias"_array, "present"_maybe, "before"_array, "out"_array, "after"_maybe, "gates"_maybe);
    m.def("lstm_backward",
          [](nb::list inputs, Array<const float, 2> weight_h, Array<const float, 1> bias, Optional<const uint8_t, 2> present, State before,
             Optional<float, 3> gates, Array<const float, 3> grad, Optional<const float, 2> grad_h, Optional<const float, 2> grad_c,
             nb::list grad_x, State grad_before, Array<float, 2> sums, Array<float, 1> sum) {
              Fits{"lstm_backward"}.there("before", before.first);
              const LstmFits fits{{{"lstm_backward"}}, length(grad), length(before.first), length(weight_h)};
              LstmBackward b{};
              b.was = lstm_of(fits, inputs, weight_h, bias, present, before, gates);
              const int64_t steps = b.was.steps, rows = b.was.rows, hidden = b.was.hidden;
              fits.size("grad", grad, steps, rows, hidden), fits.size("grad_h", grad_h, rows, hidden), fits.size("grad_c", grad_c, rows, hidden);
              fits.state("grad_before", grad_before), fits.same("the length of grad_x", int64_t(grad_x.size()), b.was.num_inputs);
              b.grad = grad.data(), b.grad_h = pointer(grad_h), b.grad_c = pointer(grad_c);
              for (int k = 0; k < b.was.num_inputs; ++k) {
                  const auto each = taken<std::optional<Columns<float>>>(fits, "grad_x", grad_x[size_t(k)]);
                  if (!each) continue;
                  const LstmInput& input = b.was.inputs[k];
                  fits.same("the dimensions of grad_x", int64_t(each->ndim()), input.same ? 2 : 3);
                  input.same ? fits.size("grad_x", *each, rows, input.in) : fits.size("grad_x", *each, steps, rows, input.in);
                  fits.strides("the last stride of grad_x", *each);
                  b.grad_x[k] = each->data(), b.stride_x[k] = each->stride(each->ndim() - 2);
                  if (!input.same && steps > 1 && each->size()) fits.same("the first stride of grad_x", each->stride(0), rows * b.stride_x[k]);
              }
              b.grad_h_begin = grad_before.first.data(), b.grad_c_begin = grad_before.second.data();
              b.parts = length(sums), b.sums = sums.data(), b.sum = sum.data();
              fits.between("the number of parts", b.parts, 1, 1 << 20), fits.size("sums", sums, b.parts, b.size()), fits.size("sum", sum, b.size());
              const nb::gil_scoped_release release;
              chosen.kernels->lstm_backward(b);
          },
          "inputs"_a, "weight_h"_array, "bias"_array, "present"_maybe, "before"_array, "gates"_maybe, "grad"_array, "grad_h"_maybe,
          "grad_c"_maybe, "grad_x"_a, "grad_before"_array, "sums"_array, "sum"_array);
}

using Bytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;  // rows of any type

int64_t row_bytes(const Fits& fits, const char* what, const auto& rows) {
    fits.between("the number of dimensions", int64_t(rows.ndim()), 1, 64);
    int64_t size = int64_t(rows.itemsize());
    for (size_t axis = 1; axis < rows.ndim(); ++axis) size *= int64_t(rows.shape(axis));
    fits.between(what, size, 0, Expect::kMost);
    return size;
}

template <typename X>
void check_widen(const Array<const X, 2>& rows, const Ids& index, const Array<float, 2>& out) {
    const Fits fits{"gather_widen"};
    fits.size("out", out, length(index), columns(rows)), fits.within("index", index.data(), length(index), length(rows));
}

void bind_gather(nb::module_& m) {
    m.def("gather",
          [](Bytes rows, std::optional<Bytes> more, Ids index, nb::ndarray<nb::c_contig, nb::device::cpu> out) {
              const Fits fits{"gather"};
              const int64_t bytes = row_bytes(fits, "the bytes of a row", rows);
              fits.same("the bytes of a row of out", row_bytes(fits, "the bytes of a row of out", out), bytes), fits.size("out", out, length(index));
              if (more) fits.same("the bytes of a row of more", row_bytes(fits, "the bytes of a row of more", *more), bytes);
              fits.within("index", index.data(), length(index), length(rows) + (more ? length(*more) : 0));
              chosen.kernels->gather({static_cast<const char*>(rows.data()), more ? static_cast<const char*>(more->data()) : nullptr,
                                      length(rows), bytes, index.data(), length(index), static_cast<char*>(out.data())});
          },
          "rows"_array, "more"_maybe, "index"_array, "out"_array, released);
    m.def("gather_widen",
          [](Array<const uint16_t, 2> rows, Ids index, Array<float, 2> out) {
              check_widen(rows, index, out);
              chosen.kernels->gather_bf16({rows.data(), columns(rows), index.data(), length(index), out.data()});
          },
          "rows"_array, "index"_array, "out"_array, released);
    m.def("gather_widen",
          [](Array<const int8_t, 2> rows, Ids index, Array<float, 2> out) {
              check_widen(rows, index, out);
              chosen.kernels->gather_int8({rows.data(), columns(rows), index.data(), length(index), out.data()});
          },
          "rows"_array, "index"_array, "out"_array, released);
}

void bind_argmax(nb::module_& m) {
    m.def("argmax_rows",
          [](Array<const float, 2> x, Ids index, Array<int64_t, 1> out) {
              const Fits fits{"argmax_rows"};
              fits.between("the width", columns(x), 1, Expect::kMost), fits.size("out", out, length(index));
              fits.within("index", index.data(), length(index), length(x));
              chosen.kernels->argmax_rows({x.data(), columns(x), index.data(), length(index), out.data()});
          },
          "x"_array, "index"_array, "out"_array, released);
}

void bind_memory(nb::module_& m) {
    m.def("expect_rows",
          [](Bytes rows, Ids index) {
              const Fits fits{"expect_rows"};
              const int64_t bytes = row_bytes(fits, "the bytes of a row", rows);
              fits.within("index", index.data(), length(index), length(rows));
              expect_rows(static_cast<const char*>(rows.data()), bytes, length(rows), index.data(), length(index));
          },
          "rows"_array, "index"_array, released);
    m.def("expect_all", [](Bytes rows) { expect_all(static_cast<const char*>(rows.data()), int64_t(rows.nbytes())); }, "rows"_array);
    m.def("take", [](int64_t num_bytes) {
        Fits{"take"}.between("the number of bytes", num_bytes, 1, Expect::kMost);
        void* data = pool.take(num_bytes);
        nb::capsule owner(data, [](void* p) noexcept { pool.give_back(p); });
        return nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>>(data, {size_t(num_bytes)}, owner);
    }, "A large array, one that was given back where there is one; it is given back when the tensor dies.");
    m.def("keep_given_back", [](bool on) {
        if (!pool.keep(on)) throw std::invalid_argument("keep_given_back: nobody asked for arrays to be kept");
    });
}

}  // namespace

NB_MODULE(_core, m) {
    m.attr("bias_parts") = kBiasParts;
    m.attr("vector_parts") = kVectorParts;
    m.attr("max_heads") = kMaxHeads;
    m.attr("sparse_pad") = kSparsePad;
    m.def("isa", [] { return std::string(chosen.name); }, "The instruction set in use: baseline, avx2 or avx512.");
    m.def("use_baseline", [](bool on) { chosen = on ? Choice{"baseline", &baseline::kernels} : choose(); },
          "For tests: run the kernels of the lowest instruction set.");
    bind_rows<float>(m);
    bind_rows<double>(m);
    bind_adam<float>(m);
    bind_attention<float>(m);
    bind_adam<double>(m);
    bind_attention<double>(m);
    m.def("spmm_bf16",
          [](Ids indptr, Nodes indices, Array<const uint16_t, 2> x, Optional<const float, 1> weight, Optional<const float, 1> pre,
             Optional<const float, 1> post, Optional<const float, 1> loop, Array<float, 2> out, Optional<const int64_t, 1> ends,
             int64_t first_src, bool add, Span span) {
              chosen.kernels->spmm_bf16(
                  spmm_of<float, bf16>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_array, "indices"_array, "x"_array, "weight"_maybe, "pre"_maybe, "post"_maybe, "loop"_maybe, "out"_array, "ends"_maybe,
          "first_src"_a, "add"_a, "span"_a, released);
    m.def("spmm_int8",
          [](Ids indptr, Nodes indices, Array<const int8_t, 2> x, Optional<const float, 1> weight, Optional<const float, 1> pre,
             Optional<const float, 1> post, Optional<const float, 1> loop, Array<float, 2> out, Optional<const int64_t, 1> ends,
             int64_t first_src, bool add, Span span) {
              chosen.kernels->spmm_int8(
                  spmm_of<float, int8_t>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_array, "indices"_array, "x"_array, "weight"_maybe, "pre"_maybe, "post"_maybe, "loop"_maybe, "out"_array, "ends"_maybe,
          "first_src"_a, "add"_a, "span"_a, released);
    bind_gather(m);
    bind_argmax(m);
    bind_products(m);
    bind_sparse_rows(m);
    bind_lstm(m);
    bind_structure(m);
    bind_ascending(m);
    bind_partition(m);
    bind_sample(m);
    bind_pairs(m);
    bind_memory(m);
}
