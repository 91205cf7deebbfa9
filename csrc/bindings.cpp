// The only file that knows Python. One m.def per kernel; Python owns every array and has checked its shape.
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
#include "memory.hpp"
#include "pairs.hpp"
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
int64_t stride_of(const A& rows) {
    return rows.stride(rows.ndim() - 2);
}

using Span = std::pair<int64_t, int64_t>;  // the rows that a kernel works on: where they begin and end

Csr csr_of(const Array<const int64_t, 1>& indptr, const Array<const int32_t, 1>& indices, Span span) {
    return {indptr.data(), indices.data(), span.second, span.first};
}

template <typename T, typename X>
Spmm<T, X> spmm_of(Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const X, 2> x,
                   Optional<const T, 1> weight, Optional<const T, 1> pre, Optional<const T, 1> post,
                   Optional<const T, 1> loop, Array<T, 2> out, Optional<const int64_t, 1> ends, int64_t first_src, bool add, Span span) {
    const Csr csr = csr_of(indptr, indices, span);
    return {csr, x.data(), int64_t(x.shape(1)), pointer(weight), pointer(pre), pointer(post), pointer(loop),
            loop ? int64_t(loop->shape(0)) : 0, out.data(), pointer(ends), first_src, add};
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

template <typename T>
Attention<T> attention_of(const AttentionArgs& args, const Optional<const int64_t, 1>& node_id) {
    const auto& [heads, width, slope, key, threshold, scale] = args;
    return {{heads, width}, T(slope), {pointer(node_id), key, threshold, T(scale)}};
}

constexpr auto released = nb::call_guard<nb::gil_scoped_release>();

template <typename T>
void bind_rows(nb::module_& m) {
    m.def("spmm",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const T, 2> x, Optional<const T, 1> weight,
             Optional<const T, 1> pre, Optional<const T, 1> post, Optional<const T, 1> loop, Array<T, 2> out,
             Optional<const int64_t, 1> ends, int64_t first_src, bool add, Span span) {
              rows<T>().spmm(spmm_of<T, T>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_a, "indices"_a, "x"_a.noconvert(), "weight"_a.none(), "pre"_a.none(), "post"_a.none(), "loop"_a.none(),
          "out"_a.noconvert(), "ends"_a.none(), "first_src"_a, "add"_a, "span"_a, released);
    m.def("segment_max",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const T, 2> x, Array<T, 2> out,
             Array<int32_t, 2> from, Optional<const int64_t, 1> id, Span span) {
              rows<T>().segment_max(
                  {csr_of(indptr, indices, span), x.data(), int64_t(x.shape(1)), out.data(), from.data(), pointer(id)});
          },
          "indptr"_a, "indices"_a, "x"_a.noconvert(), "out"_a.noconvert(), "from_"_a.noconvert(), "id"_a.none(), "span"_a, released);
    m.def("segment_max_backward",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const T, 2> grad,
             Array<const int32_t, 2> from, Array<T, 2> out, Span span) {
              rows<T>().segment_max_backward(
                  {csr_of(indptr, indices, span), grad.data(), from.data(), int64_t(grad.shape(1)), out.data()});
          },
          "indptr"_a, "indices"_a, "grad"_a.noconvert(), "from_"_a, "out"_a.noconvert(), "span"_a, released);
    m.def("epilogue",
          [](Array<const T, 2> x, Optional<const T, 1> bias, Optional<const int64_t, 1> row_id, int activation, uint64_t key,
             uint32_t threshold, double scale, Array<T, 2> out) {
              rows<T>().epilogue({x.data(), pointer(bias), pointer(row_id), int64_t(x.shape(0)), int64_t(x.shape(1)),
                                  Activation(activation), key, threshold, T(scale), out.data()});
          },
          "x"_a.noconvert(), "bias"_a.none(), "row_id"_a.none(), "activation"_a, "key"_a, "threshold"_a, "scale"_a,
          "out"_a.noconvert(), released);
    m.def("epilogue_backward",
          [](Array<const T, 2> grad, Array<const T, 2> output, Optional<const int64_t, 1> row_id, int activation, uint64_t key,
             uint32_t threshold, double scale, Array<T, 2> out, Optional<T, 2> bias_parts) {
              rows<T>().epilogue_backward({grad.data(), int64_t(grad.shape(1)), output.data(), pointer(row_id),
                                           int64_t(grad.shape(0)), int64_t(grad.shape(1)), Activation(activation), key, threshold,
                                           T(scale), out.data(), pointer(bias_parts)});
          },
          "grad"_a.noconvert(), "output"_a.noconvert(), "row_id"_a.none(), "activation"_a, "key"_a, "threshold"_a, "scale"_a,
          "out"_a.noconvert(), "bias_parts"_a.none(), released);
}

template <typename T>
void bind_attention(nb::module_& m) {
    m.def("attend",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Within<const T> z, Within<const T> score_src,
             Within<const T> score_dst, AttentionArgs args, Optional<const int64_t, 1> node_id, Array<T, 2> out,
             Array<T, 3> softmax, Span span) {
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend({csr_of(indptr, indices, span), rows_of(z), rows_of(score_src), rows_of(score_dst), heads, slope, drop,
                                out.data(), softmax.data()});
          },
          "indptr"_a, "indices"_a, "z"_a.noconvert(), "score_src"_a.noconvert(), "score_dst"_a.noconvert(), "args"_a,
          "node_id"_a.none(), "out"_a.noconvert(), "softmax"_a.noconvert(), "span"_a, released);
    m.def("attend_backward",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int64_t, 1> t_indptr,
             Array<const int32_t, 1> t_indices, Array<const int64_t, 1> origin, Within<const T> z, Within<const T> score_src,
             Within<const T> score_dst, AttentionArgs args, Optional<const int64_t, 1> node_id, Array<const T, 2> out,
             Array<const T, 3> softmax, Array<const T, 2> grad, Array<T, 3> at_dst, Array<T, 2> grad_edge, Within<T> grad_z,
             Within<T> grad_score_src, Within<T> grad_score_dst, int step, Span span) {
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_backward({csr_of(indptr, indices, span), csr_of(t_indptr, t_indices, span), origin.data(), rows_of(z),
                                         rows_of(score_src), rows_of(score_dst), heads, slope, drop, out.data(), softmax.data(),
                                         grad.data(), at_dst.data(), grad_edge.data(), rows_of(grad_z), rows_of(grad_score_src),
                                         rows_of(grad_score_dst), int64_t(grad.shape(0))}, step);
          },
          "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a, "origin"_a, "z"_a.noconvert(), "score_src"_a.noconvert(),
          "score_dst"_a.noconvert(), "args"_a, "node_id"_a.none(), "out"_a, "softmax"_a, "grad"_a, "at_dst"_a.noconvert(),
          "grad_edge"_a.noconvert(), "grad_z"_a.noconvert(), "grad_score_src"_a.noconvert(), "grad_score_dst"_a.noconvert(),
          "step"_a, "span"_a, released);
    m.def("attend_v2",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Within<const T> z_src, Within<const T> z_dst,
             Array<const T, 1> vector, AttentionArgs args, Optional<const int64_t, 1> node_id, Array<T, 2> out,
             Array<T, 3> softmax, Span span) {
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_v2({csr_of(indptr, indices, span), rows_of(z_src), rows_of(z_dst), vector.data(), heads, slope, drop,
                                   out.data(), softmax.data()});
          },
          "indptr"_a, "indices"_a, "z_src"_a.noconvert(), "z_dst"_a.noconvert(), "vector"_a.noconvert(), "args"_a,
          "node_id"_a.none(), "out"_a.noconvert(), "softmax"_a.noconvert(), "span"_a, released);
    m.def("attend_v2_backward",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int64_t, 1> t_indptr,
             Array<const int32_t, 1> t_indices, Array<const int64_t, 1> origin, Within<const T> z_src, Within<const T> z_dst,
             Array<const T, 1> vector, AttentionArgs args, Optional<const int64_t, 1> node_id, Array<const T, 2> out,
             Array<const T, 3> softmax, Array<const T, 2> grad, Array<T, 3> at_edge, Array<T, 3> at_loop, Within<T> grad_src,
             Within<T> grad_dst, Array<T, 2> vector_parts, int step, Span span) {
              const auto [heads, slope, drop] = attention_of<T>(args, node_id);
              rows<T>().attend_v2_backward({csr_of(indptr, indices, span), csr_of(t_indptr, t_indices, span), origin.data(), rows_of(z_src),
                                            rows_of(z_dst), vector.data(), heads, slope, drop, out.data(), softmax.data(),
                                            grad.data(), at_edge.data(), at_loop.data(), rows_of(grad_src), rows_of(grad_dst),
                                            vector_parts.data(), int64_t(grad.shape(0))}, step);
          },
          "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a, "origin"_a, "z_src"_a.noconvert(), "z_dst"_a.noconvert(),
          "vector"_a.noconvert(), "args"_a, "node_id"_a.none(), "out"_a, "softmax"_a, "grad"_a, "at_edge"_a.noconvert(),
          "at_loop"_a.noconvert(), "grad_src"_a.noconvert(), "grad_dst"_a.noconvert(), "vector_parts"_a.noconvert(), "step"_a, "span"_a, released);
}

void bind_structure(nb::module_& m) {
    m.def("build_csr",
          [](Array<const int32_t, 1> row, Array<const int32_t, 1> col, Array<int64_t, 1> indptr, Array<int32_t, 1> cols,
             Optional<int64_t, 1> from) {
              build_csr(row.data(), col.data(), int64_t(row.shape(0)), int64_t(indptr.shape(0)) - 1, indptr.data(), cols.data(),
                        pointer(from));
          },
          "row"_a, "col"_a, "indptr"_a, "cols"_a, "from_"_a.none(), released);
    m.def("transpose_csr",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<int64_t, 1> t_indptr,
             Array<int32_t, 1> t_indices, Optional<int64_t, 1> from) {
              transpose_csr(indptr.data(), indices.data(), int64_t(indptr.shape(0)) - 1, int64_t(t_indptr.shape(0)) - 1,
                            t_indptr.data(), t_indices.data(), pointer(from));
          },
          "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a, "from_"_a.none(), released);
    m.def("sort_rows",
          [](Array<const int64_t, 1> indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from) {
              sort_rows(indptr.data(), indices.data(), pointer(from), int64_t(indptr.shape(0)) - 1);
          },
          "indptr"_a, "indices"_a, "from_"_a.none(), released);
    m.def("deduplicate_rows",
          [](Array<int64_t, 1> indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from) {
              return deduplicate_rows(indptr.data(), indices.data(), pointer(from), int64_t(indptr.shape(0)) - 1);
          },
          "indptr"_a, "indices"_a, "from_"_a.none(), released);
    m.def("count_distinct",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<int64_t, 1> out) {
              count_distinct(indptr.data(), indices.data(), int64_t(indptr.shape(0)) - 1, out.data());
          },
          "indptr"_a, "indices"_a, "out"_a.noconvert(), released);
    m.def("apply_delta",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Optional<const int64_t, 1> from,
             Array<const int64_t, 1> add_indptr, Array<const int32_t, 1> add_indices, Optional<const int64_t, 1> add_from,
             Array<const int64_t, 1> drop_indptr, Array<const int32_t, 1> drop_indices, Array<int64_t, 1> out_indptr,
             Array<int32_t, 1> out_indices, Optional<int64_t, 1> out_from) {
              return apply_delta({indptr.data(), indices.data(), pointer(from)},
                                 {add_indptr.data(), add_indices.data(), pointer(add_from)},
                                 {drop_indptr.data(), drop_indices.data(), nullptr}, int64_t(indptr.shape(0)) - 1,
                                 out_indptr.data(), out_indices.data(), pointer(out_from));
          },
          "indptr"_a, "indices"_a, "from_"_a.none(), "add_indptr"_a, "add_indices"_a, "add_from"_a.none(), "drop_indptr"_a,
          "drop_indices"_a, "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "out_from"_a.none(), released);
    m.def("places_lacking",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int64_t, 1> other_indptr,
             Array<const int32_t, 1> other_indices, Array<int64_t, 1> places) {
              return places_lacking({indptr.data(), indices.data(), nullptr}, {other_indptr.data(), other_indices.data(), nullptr},
                                    int64_t(indptr.shape(0)) - 1, places.data());
          },
          "indptr"_a, "indices"_a, "other_indptr"_a, "other_indices"_a, "places"_a.noconvert(), released);
    m.def("take_rows",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int64_t, 1> rows,
             Array<const int32_t, 1> name, Array<int64_t, 1> out_indptr, Array<int32_t, 1> out_indices, Optional<int64_t, 1> from) {
              take_rows(indptr.data(), indices.data(), rows.data(), int64_t(rows.shape(0)), name.data(), out_indptr.data(),
                        out_indices.data(), pointer(from));
          },
          "indptr"_a, "indices"_a, "rows"_a, "name"_a, "out_indptr"_a, "out_indices"_a, "from_"_a.none(), released);
    m.def("mark_columns",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int64_t, 1> rows,
             Array<uint8_t, 1> mark) { mark_columns(indptr.data(), indices.data(), rows.data(), int64_t(rows.shape(0)), mark.data()); },
          "indptr"_a, "indices"_a, "rows"_a, "mark"_a.noconvert(), released);
    m.def("missing_loops",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Optional<const float, 1> weight,
             Array<double, 1> out) { missing_loops(indptr.data(), indices.data(), pointer(weight), int64_t(out.shape(0)), out.data()); },
          "indptr"_a, "indices"_a, "weight"_a.none(), "out"_a.noconvert(), released);
    m.def("split_rows",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, int32_t column, Array<int64_t, 1> ends) {
              split_rows(indptr.data(), indices.data(), column, int64_t(ends.shape(0)), ends.data());
          },
          "indptr"_a, "indices"_a, "column"_a, "ends"_a.noconvert(), released);
    m.def("locality_order",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, int64_t max_community, int rounds,
             Array<int64_t, 1> order) {
              locality_order(indptr.data(), indices.data(), int64_t(order.shape(0)), max_community, rounds, order.data());
          },
          "indptr"_a, "indices"_a, "max_community"_a, "rounds"_a, "order"_a, released);
}

void bind_ascending(nb::module_& m) {
    using Ids = Array<const int32_t, 1>;
    m.def("ascending_bytes", [](Array<const int64_t, 1> values) { return ascending_bytes(values.data(), int64_t(values.shape(0))); },
          "values"_a, released);
    m.def("pack_ascending",
          [](Array<const int64_t, 1> values, Array<uint8_t, 1> out) { pack_ascending(values.data(), int64_t(values.shape(0)), out.data()); },
          "values"_a, "out"_a.noconvert(), released);
    m.def("unpack_ascending",
          [](Array<const uint8_t, 1> data, int64_t limit, Array<int64_t, 1> values) {
              return unpack_ascending(data.data(), int64_t(data.shape(0)), limit, values.data(), int64_t(values.shape(0)));
          },
          "data"_a, "limit"_a, "values"_a.noconvert(), released);
    m.def("pairs_bytes",
          [](Ids row, Ids col, int64_t num_cols) { return pairs_bytes(row.data(), col.data(), int64_t(row.shape(0)), num_cols); },
          "row"_a, "col"_a, "num_cols"_a, released);
    m.def("pack_pairs",
          [](Ids row, Ids col, int64_t num_cols, Array<uint8_t, 1> out) {
              pack_pairs(row.data(), col.data(), int64_t(row.shape(0)), num_cols, out.data());
          },
          "row"_a, "col"_a, "num_cols"_a, "out"_a.noconvert(), released);
    m.def("unpack_pairs",
          [](Array<const uint8_t, 1> data, int64_t num_rows, int64_t num_cols, Array<int32_t, 1> row, Array<int32_t, 1> col) {
              return unpack_pairs(data.data(), int64_t(data.shape(0)), num_rows, num_cols, row.data(), col.data(),
                                  int64_t(row.shape(0)));
          },
          "data"_a, "num_rows"_a, "num_cols"_a, "row"_a.noconvert(), "col"_a.noconvert(), released);
}

void bind_partition(nb::module_& m) {
    using Parts = Array<int64_t, 1>;
    const auto job_of = [](const Array<const int64_t, 1>& indptr, const Array<const int32_t, 1>& indices,
                           const Optional<const uint8_t, 1>& train, int64_t parts, uint64_t seed) {
        return PartitionJob{indptr.data(), indices.data(), pointer(train), int64_t(indptr.shape(0)) - 1, parts, seed};
    };
    m.def("partition_bytes", &partition_bytes, "num_nodes"_a, "parts"_a);
    m.def("partition",
          [job_of](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Optional<const uint8_t, 1> train, int64_t parts,
                   uint64_t seed, Array<uint8_t, 1> work, Array<int32_t, 1> part) {
              partition(job_of(indptr, indices, train, parts, seed), reinterpret_cast<char*>(work.data()), part.data());
          },
          "indptr"_a, "indices"_a, "train"_a.none(), "parts"_a, "seed"_a, "work"_a.noconvert(), "part"_a.noconvert(), released);
    m.def("quality_bytes", &quality_bytes, "num_nodes"_a, "parts"_a);
    m.def("partition_quality",
          [job_of](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Optional<const uint8_t, 1> train,
                   Array<const int32_t, 1> part, Array<uint8_t, 1> work, Parts nodes, Parts edges, Parts trained, Parts inside,
                   Parts halo) {
              partition_quality(job_of(indptr, indices, train, int64_t(nodes.shape(0)), 0), part.data(),
                                reinterpret_cast<char*>(work.data()),
                                {nodes.data(), edges.data(), trained.data(), inside.data(), halo.data()});
          },
          "indptr"_a, "indices"_a, "train"_a.none(), "part"_a, "work"_a.noconvert(), "nodes"_a.noconvert(), "edges"_a.noconvert(),
          "trained"_a.noconvert(), "inside"_a.noconvert(), "halo"_a.noconvert(), released);
}

void bind_sample(nb::module_& m) {
    using Ids = Array<const int64_t, 1>;
    using Nodes = Array<const int32_t, 1>;
    const auto draw_of = [](const Ids& indptr, const Nodes& indices, const std::optional<Nodes>& name, const std::optional<Ids>& id,
                            const Nodes& rows, const Ids& group_ptr, const Ids& key, int64_t fanout, bool replace) {
        return Draw{indptr.data(), indices.data(), int64_t(indices.shape(0)), pointer(name), pointer(id), rows.data(),
                    int64_t(rows.shape(0)), group_ptr.data(), key.data(), int64_t(key.shape(0)), fanout, replace && fanout >= 0};
    };
    m.def("count_draws",
          [draw_of](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key,
                    int64_t fanout, bool replace, Array<int64_t, 1> out_indptr) {
              count_draws(draw_of(indptr, indices, name, id, rows, group_ptr, key, fanout, replace), out_indptr.data());
          },
          "indptr"_a, "indices"_a, "name"_a.none(), "id"_a.none(), "rows"_a, "group_ptr"_a, "key"_a, "fanout"_a, "replace"_a,
          "out_indptr"_a.noconvert(), released);
    m.def("draw_edges",
          [draw_of](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key,
                    int64_t fanout, bool replace, Ids out_indptr, Array<int32_t, 1> source, Optional<int64_t, 1> edge) {
              draw_edges(draw_of(indptr, indices, name, id, rows, group_ptr, key, fanout, replace), chosen.kernels->draw_rows,
                         out_indptr.data(), source.data(), pointer(edge));
          },
          "indptr"_a, "indices"_a, "name"_a.none(), "id"_a.none(), "rows"_a, "group_ptr"_a, "key"_a, "fanout"_a, "replace"_a,
          "out_indptr"_a, "source"_a.noconvert(), "edge"_a.none(), released);
    m.def("draw_met",
          [draw_of](Ids indptr, Nodes indices, std::optional<Nodes> name, std::optional<Ids> id, Nodes rows, Ids group_ptr, Ids key,
                    int64_t fanout, bool replace, Ids out_indptr, Array<int32_t, 1> place, Optional<int64_t, 1> edge,
                    Array<int32_t, 1> fresh, Array<int64_t, 1> num_fresh) {
              draw_met(draw_of(indptr, indices, name, id, rows, group_ptr, key, fanout, replace), chosen.kernels->draw_rows,
                       out_indptr.data(), int64_t(indptr.shape(0)) - 1, place.data(), pointer(edge), fresh.data(), num_fresh.data());
          },
          "indptr"_a, "indices"_a, "name"_a.none(), "id"_a.none(), "rows"_a, "group_ptr"_a, "key"_a, "fanout"_a, "replace"_a,
          "out_indptr"_a, "place"_a.noconvert(), "edge"_a.none(), "fresh"_a.noconvert(), "num_fresh"_a.noconvert(), released);
    m.def("first_met",
          [](Nodes known, Ids known_ptr, Nodes met, Ids met_ptr, Array<int32_t, 1> place, Array<int32_t, 1> fresh,
             Array<int64_t, 1> num_fresh) {
              first_met(known.data(), known_ptr.data(), met.data(), met_ptr.data(), int64_t(num_fresh.shape(0)), place.data(),
                        fresh.data(), num_fresh.data());
          },
          "known"_a, "known_ptr"_a, "met"_a, "met_ptr"_a, "place"_a.noconvert(), "fresh"_a.noconvert(), "num_fresh"_a.noconvert(),
          released);
    m.def("spread_rows",
          [](Ids from, Nodes values, Ids rows, Ids to, Array<int32_t, 1> out) {
              spread_rows(from.data(), values.data(), rows.data(), int64_t(rows.shape(0)), to.data(), out.data());
          },
          "from_"_a, "values"_a, "rows"_a, "to"_a, "out"_a.noconvert(), released);
    m.def("sort_rows_by_id",
          [](Array<const int64_t, 1> indptr, Array<int32_t, 1> indices, Optional<int64_t, 1> from, Array<const int64_t, 1> id) {
              sort_rows_by_id(indptr.data(), indices.data(), pointer(from), id.data(), int64_t(indptr.shape(0)) - 1);
          },
          "indptr"_a, "indices"_a.noconvert(), "from_"_a.none(), "id"_a, released);
}

void bind_pairs(nb::module_& m) {
    using Rows = Array<const float, 2>;
    using Values = Array<const float, 1>;
    using Nodes = Array<const int32_t, 1>;
    using Ids = Array<const int64_t, 1>;
    using Counts = Array<int64_t, 1>;
    m.attr("PAIR_COLUMNS") = kPairColumns;
    m.attr("PAIR_ROWS") = kPairRows;
    m.attr("PAIR_CELLS") = kCells;
    m.def("pair_scores",
          [](Rows a, Rows b, std::optional<Values> w, Nodes src, Nodes dst, Array<float, 1> out) {
              chosen.kernels->pair_scores({a.data(), b.data(), pointer(w), int64_t(a.shape(1)), src.data(), dst.data(),
                                           int64_t(src.shape(0)), out.data()});
          },
          "a"_a, "b"_a, "w"_a.none(), "src"_a, "dst"_a, "out"_a.noconvert(), released);
    m.attr("PAIR_WIDTH") = kPairWidth;
    m.attr("PAIR_PARTS") = kPairParts;
    m.def("pair_rows",
          [](Ids indptr, Nodes indices, Rows a, Rows b, std::optional<Values> w, Array<float, 1> score) {
              chosen.kernels->pair_rows({indptr.data(), indices.data(), int64_t(a.shape(0)), int64_t(a.shape(1)), a.data(), b.data(),
                                         pointer(w), score.data(), nullptr, nullptr, nullptr});
          },
          "indptr"_a, "indices"_a, "a"_a, "b"_a, "w"_a.none(), "score"_a.noconvert(), released);
    m.def("pair_rows_backward",
          [](Ids indptr, Nodes indices, Rows a, Rows b, std::optional<Values> w, Values grad, Array<float, 2> grad_a,
             Optional<float, 2> weight_parts) {
              chosen.kernels->pair_rows_backward({indptr.data(), indices.data(), int64_t(a.shape(0)), int64_t(a.shape(1)), a.data(),
                                                  b.data(), pointer(w), nullptr, grad.data(), grad_a.data(), pointer(weight_parts)});
          },
          "indptr"_a, "indices"_a, "a"_a, "b"_a, "w"_a.none(), "grad"_a, "grad_a"_a.noconvert(), "weight_parts"_a.none(), released);
    m.def("count_above",
          [](Rows a, Rows b_t, std::optional<Values> w, int64_t num_cols, std::optional<Ids> given_ptr, std::optional<Nodes> given_col,
             std::optional<Values> given, Ids pos_ptr, Values pos, Values level, Array<int32_t, 1> first, Array<float, 3> room,
             Array<int64_t, 2> between, Array<int64_t, 2> same, Counts row_above, Counts row_same, Span span) {
              chosen.kernels->count_above({a.data(), b_t.data(), pointer(w), span.first, span.second, num_cols, int64_t(b_t.shape(1)),
                                           int64_t(a.shape(1)), pointer(given_ptr), pointer(given_col), pointer(given), pos_ptr.data(),
                                           pos.data(), level.data(), int64_t(level.shape(0)), first.data(), int(room.shape(0)),
                                           room.data(), between.data(), same.data(), row_above.data(), row_same.data()});
          },
          "a"_a, "b_t"_a, "w"_a.none(), "num_cols"_a, "given_ptr"_a.none(), "given_col"_a.none(), "given"_a.none(), "pos_ptr"_a,
          "pos"_a, "level"_a, "first"_a.noconvert(), "room"_a.noconvert(), "between"_a.noconvert(), "same"_a.noconvert(),
          "row_above"_a.noconvert(), "row_same"_a.noconvert(), "span"_a, released);
}

using Terms = nb::list;  // of (x, weight)

// Fills in the terms; returns how many there are.
int read_terms(const Terms& given, Term* terms) {
    int count = 0;
    for (nb::handle each : given) {
        const auto [x, weight] = nb::cast<std::tuple<Array<const float, 2>, Array<const float, 2>>>(each);
        terms[count++] = {x.data(), int64_t(x.shape(1)), weight.data()};
    }
    return count;
}

using After = std::tuple<Optional<const float, 1>, Optional<const int64_t, 1>, int, uint64_t, uint32_t, double>;

void bind_products(nb::module_& m) {
    m.def("product",
          [](Terms terms, std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>> add, Array<float, 2> out,
             std::optional<After> after) {
              Product a{};
              a.num_terms = read_terms(terms, a.terms);
              a.rows = int64_t(out.shape(0)), a.width = int64_t(out.shape(1)), a.out = out.data();
              a.add = pointer(add), a.add_rows = add && add->ndim() == 2;
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
          "terms"_a, "add"_a.none(), "out"_a.noconvert(), "after"_a.none());
    m.def("product_backward",
          [](Terms terms, Columns<const float> grad, Optional<const float, 2> output, std::optional<After> after, Array<float, 2> sums,
             Array<float, 1> out, nb::list grad_x) {
              ProductBackward a{};
              a.num_terms = read_terms(terms, a.terms);
              a.rows = int64_t(grad.shape(0)), a.width = int64_t(grad.shape(1)), a.grad = grad.data(), a.stride = stride_of(grad);
              a.parts = int64_t(sums.shape(0)), a.sums = sums.data(), a.out = out.data();
              for (int t = 0; t < a.num_terms; ++t) a.grad_x[t] = pointer(nb::cast<Optional<float, 2>>(grad_x[size_t(t)]));
              EpilogueBackward<float> epilogue{};
              if (after) {
                  const auto& [bias, row_id, activation, key, threshold, scale] = *after;
                  epilogue = {a.grad, a.stride, pointer(output), pointer(row_id), a.rows, a.width, Activation(activation), key, threshold,
                              float(scale), nullptr, nullptr};
                  a.after = &epilogue;
              }
              const nb::gil_scoped_release release;
              chosen.kernels->product_backward(a);
          },
          "terms"_a, "grad"_a.noconvert(), "output"_a.none(), "after"_a.none(), "sums"_a.noconvert(), "out"_a.noconvert(), "grad_x"_a);
}

// (x, weight) of each input of an LSTM; x is (rows, in) where every step has the same.
int read_inputs(const nb::list& given, LstmInput* inputs) {
    int count = 0;
    for (nb::handle each : given) {
        const auto [x, weight] =
            nb::cast<std::pair<nb::ndarray<const float, nb::c_contig, nb::device::cpu>, Array<const float, 2>>>(each);
        inputs[count++] = {x.data(), int64_t(weight.shape(0)), x.ndim() == 2, weight.data()};
    }
    return count;
}

using State = std::pair<Array<float, 2>, Array<float, 2>>;

Lstm lstm_of(const nb::list& inputs, const Array<const float, 2>& weight_h, const Array<const float, 1>& bias,
             const Optional<const uint8_t, 2>& present, const State& before, int64_t steps, const Optional<float, 3>& gates) {
    Lstm a{};
    a.steps = steps, a.rows = int64_t(before.first.shape(0)), a.hidden = int64_t(weight_h.shape(0));
    a.num_inputs = read_inputs(inputs, a.inputs);
    a.weight_h = weight_h.data(), a.bias = bias.data(), a.present = pointer(present);
    a.h = before.first.data(), a.c = before.second.data(), a.gates = pointer(gates);
    return a;
}

void bind_lstm(nb::module_& m) {
    m.def("lstm",
          [](nb::list inputs, Array<const float, 2> weight_h, Array<const float, 1> bias, Optional<const uint8_t, 2> present, State before,
             Array<float, 3> out, std::optional<State> after, Optional<float, 3> gates) {
              Lstm a = lstm_of(inputs, weight_h, bias, present, before, int64_t(out.shape(0)), gates);
              a.out = out.data();
              if (after) a.h_end = after->first.data(), a.c_end = after->second.data();
              const nb::gil_scoped_release release;
              chosen.kernels->lstm(a);
          },
          "inputs"_a, "weight_h"_a.noconvert(), "bias"_a.noconvert(), "present"_a.none(), "before"_a, "out"_a.noconvert(),
          "after"_a.none(), "gates"_a.none());
    m.def("lstm_backward",
          [](nb::list inputs, Array<const float, 2> weight_h, Array<const float, 1> bias, Optional<const uint8_t, 2> present, State before,
             Optional<float, 3> gates, Array<const float, 3> grad, Optional<const float, 2> grad_h, Optional<const float, 2> grad_c,
             nb::list grad_x, State grad_before, Array<float, 2> sums, Array<float, 1> sum) {
              LstmBackward b{};
              b.was = lstm_of(inputs, weight_h, bias, present, before, int64_t(grad.shape(0)), gates);
              b.grad = grad.data(), b.grad_h = pointer(grad_h), b.grad_c = pointer(grad_c);
              for (int k = 0; k < b.was.num_inputs; ++k)
                  if (const auto each = nb::cast<std::optional<Columns<float>>>(grad_x[size_t(k)]))
                      b.grad_x[k] = each->data(), b.stride_x[k] = stride_of(*each);
              b.grad_h_begin = grad_before.first.data(), b.grad_c_begin = grad_before.second.data();
              b.parts = int64_t(sums.shape(0)), b.sums = sums.data(), b.sum = sum.data();
              const nb::gil_scoped_release release;
              chosen.kernels->lstm_backward(b);
          },
          "inputs"_a, "weight_h"_a.noconvert(), "bias"_a.noconvert(), "present"_a.none(), "before"_a, "gates"_a.none(), "grad"_a.noconvert(),
          "grad_h"_a.none(), "grad_c"_a.none(), "grad_x"_a, "grad_before"_a, "sums"_a.noconvert(), "sum"_a.noconvert());
}

}  // namespace

NB_MODULE(_core, m) {
    m.attr("bias_parts") = kBiasParts;
    m.attr("vector_parts") = kVectorParts;
    m.attr("max_heads") = kMaxHeads;
    m.def("isa", [] { return std::string(chosen.name); }, "The instruction set in use: baseline, avx2 or avx512.");
    m.def("use_baseline", [](bool on) { chosen = on ? Choice{"baseline", &baseline::kernels} : choose(); },
          "For tests: run the kernels of the lowest instruction set.");
    bind_rows<float>(m);
    bind_rows<double>(m);
    bind_attention<float>(m);
    bind_attention<double>(m);
    m.def("spmm_bf16",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const uint16_t, 2> x,
             Optional<const float, 1> weight, Optional<const float, 1> pre, Optional<const float, 1> post,
             Optional<const float, 1> loop, Array<float, 2> out, Optional<const int64_t, 1> ends, int64_t first_src, bool add, Span span) {
              chosen.kernels->spmm_bf16(
                  spmm_of<float, bf16>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_a, "indices"_a, "x"_a, "weight"_a.none(), "pre"_a.none(), "post"_a.none(), "loop"_a.none(),
          "out"_a.noconvert(), "ends"_a.none(), "first_src"_a, "add"_a, "span"_a, released);
    m.def("spmm_int8",
          [](Array<const int64_t, 1> indptr, Array<const int32_t, 1> indices, Array<const int8_t, 2> x,
             Optional<const float, 1> weight, Optional<const float, 1> pre, Optional<const float, 1> post,
             Optional<const float, 1> loop, Array<float, 2> out, Optional<const int64_t, 1> ends, int64_t first_src, bool add, Span span) {
              chosen.kernels->spmm_int8(
                  spmm_of<float, int8_t>(indptr, indices, x, weight, pre, post, loop, out, ends, first_src, add, span));
          },
          "indptr"_a, "indices"_a, "x"_a, "weight"_a.none(), "pre"_a.none(), "post"_a.none(), "loop"_a.none(),
          "out"_a.noconvert(), "ends"_a.none(), "first_src"_a, "add"_a, "span"_a, released);
    m.def("gather",
          [](nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> rows,
             std::optional<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>> more, Array<const int64_t, 1> index,
             nb::ndarray<nb::c_contig, nb::device::cpu> out) {
              const int64_t row_bytes = index.shape(0) ? int64_t(out.nbytes() / index.shape(0)) : 0;
              chosen.kernels->gather({static_cast<const char*>(rows.data()),
                                      more ? static_cast<const char*>(more->data()) : nullptr, int64_t(rows.shape(0)), row_bytes,
                                      index.data(), int64_t(index.shape(0)), static_cast<char*>(out.data())});
          },
          "rows"_a, "more"_a.none(), "index"_a, "out"_a.noconvert(), released);
    m.def("gather_widen",
          [](Array<const uint16_t, 2> rows, Array<const int64_t, 1> index, Array<float, 2> out) {
              chosen.kernels->gather_bf16({rows.data(), int64_t(rows.shape(1)), index.data(), int64_t(index.shape(0)), out.data()});
          },
          "rows"_a, "index"_a, "out"_a.noconvert(), released);
    m.def("gather_widen",
          [](Array<const int8_t, 2> rows, Array<const int64_t, 1> index, Array<float, 2> out) {
              chosen.kernels->gather_int8({rows.data(), int64_t(rows.shape(1)), index.data(), int64_t(index.shape(0)), out.data()});
          },
          "rows"_a, "index"_a, "out"_a.noconvert(), released);
    bind_products(m);
    bind_lstm(m);
    bind_structure(m);
    bind_ascending(m);
    bind_partition(m);
    bind_sample(m);
    bind_pairs(m);
    m.def("expect_rows",
          [](nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> rows, Array<const int64_t, 1> index) {
              const int64_t num_rows = int64_t(rows.shape(0)), row_bytes = num_rows ? int64_t(rows.nbytes()) / num_rows : 0;
              expect_rows(static_cast<const char*>(rows.data()), row_bytes, num_rows, index.data(), int64_t(index.shape(0)));
          },
          "rows"_a, "index"_a, released);
    m.def("expect_all", [](nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> rows) {
        expect_all(static_cast<const char*>(rows.data()), int64_t(rows.nbytes()));
    });
    m.def("take", [](int64_t num_bytes) {
        void* data = pool.take(num_bytes);
        nb::capsule owner(data, [](void* p) noexcept { pool.give_back(p); });
        return nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>>(data, {size_t(num_bytes)}, owner);
    }, "A large array, one that was given back where there is one; it is given back when the tensor dies.");
    m.def("keep_given_back", [](bool on) { pool.keep(on); });
}
