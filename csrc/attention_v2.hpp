// GATv2's aggregate: as GAT's, but the score looks at both rows through an edge vector.
//
//   score[e, h] = <vector[h], leaky(z_src[s, h] + z_dst[d, h])>
//
// Scores come from whole rows, so forward works on batches of edges whose rows are still in the cache when the softmax so
// far has been brought up to date.
#pragma once

#include "attention.hpp"

template <typename T>
struct AttendV2 {
    Csr csr;
    Rows<const T> z_src;  // (num_src, heads * width)
    Rows<const T> z_dst;  // (num_dst, heads * width)
    const T* vector;      // (heads * width)
    Heads heads;
    T slope;
    EdgeDropout<T> drop;
    T* out;               // (num_dst, heads * width)
    T* softmax;           // (num_dst, 2, heads): top, 1 / total
};

template <typename T>
struct AttendV2Backward {
    Csr csr;                // by destination
    Csr transposed;         // by source
    const int64_t* origin;  // (num_edges), the place in csr of each edge of transposed
    Rows<const T> z_src;
    Rows<const T> z_dst;
    const T* vector;
    Heads heads;
    T slope;
    EdgeDropout<T> drop;
    const T* out;
    const T* softmax;
    const T* grad;          // (num_dst, heads * width)
    T* at_edge;             // (num_edges, 2, heads), scratch: the weight of a row, the gradient of a score
    T* at_loop;             // (num_dst, 2, heads), scratch: the same of the loop
    Rows<T> grad_src;       // (num_src, heads * width)
    Rows<T> grad_dst;       // (num_dst, heads * width)
    T* vector_parts;        // (kVectorParts, heads * width): sums over fixed ranges of rows, to be added in order
    int64_t num_loop;       // sources that are destinations too
};

constexpr int64_t kVectorParts = 64;

namespace {

// score[i, h] = <vector[h], leaky(x[ids[i], h] + base[h])> and, if WithDot, dot[i, h] = <x[ids[i], h], with[h]>.
// All but x are packed; vector and with are without second copies.
template <bool WithDot, int N, int G, int M, typename T>
[[gnu::always_inline]] inline void score_rows(const HeadVectors<G, M, T>& at, Rows<const T> x, const int64_t* ids, const T* base,
                                              const T* vector, T slope, T* score, const T* with, T* dot) {
    const int64_t vectors = at.vectors(), groups = at.groups();
    const T *row[N], *next[N];
    for (int i = 0; i < N; ++i) row[i] = row_of(x, ids[i]), next[i] = row_of(x, ids[i + kEdgesAhead]);
    HeadSums<N, G, M, T> scores(at, score), products(at, dot);
    int64_t slot = 0;
    for (int64_t j = 0; j < groups; ++j) {
        Vec<T> sums[N] = {}, dots[N] = {};
        for (int i = 0; i < N; ++i) at.prefetch_group(next[i], j);
        for (int64_t v = 0; v < vectors; ++v, slot += lanes<T>) {
            const Vec<T> add = load(base + slot), times = load(vector + slot);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                const Vec<T> value = at.load_columns(row[i], j, v), u = value + add;
                sums[i] += times * (u > T(0) ? u : u * slope);
                if constexpr (WithDot) dots[i] += load(with + slot) * value;
            }
        }
        scores.add(j, sums);
        if constexpr (WithDot) products.add(j, dots);
    }
    scores.end();
    if constexpr (WithDot) products.end();
}

// Raises top to the batch's scores, scaling down what was summed before, and makes the scores weights.
template <int G, int M, typename T>
void update_softmax(const HeadVectors<G, M, T>& at, int64_t size, T* score, T* top, T* total, T* acc) {
    with_heads(at.heads(), [&](auto count) {
        T before[kMaxHeads];
#pragma omp simd
        for (int64_t h = 0; h < count; ++h) before[h] = top[h];
        for (int64_t k = 0; k < size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < count; ++h) top[h] = score[k * count + h] > top[h] ? score[k * count + h] : top[h];
#pragma omp simd
        for (int64_t h = 0; h < count; ++h) before[h] -= top[h];
        exp_all(before, count);
#pragma omp simd
        for (int64_t h = 0; h < count; ++h) total[h] *= before[h];
        scale_heads(at, before, acc);
        for (int64_t k = 0; k < size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < count; ++h) score[k * count + h] -= top[h];
        exp_all(score, fill_up(score, size * count));
        for (int64_t k = 0; k < size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < count; ++h) total[h] += score[k * count + h];
    });
}

template <int G, int M, typename T>
void attend_v2_row(const AttendV2<T>& a, const HeadVectors<G, M, T>& given, int64_t d, const T* vector, Batch& batch, T* base, T* acc) {
    const HeadVectors<G, M, T> at = given;
    const int64_t heads = at.heads();
    T* top = a.softmax + d * 2 * heads;
    T* total = top + heads;
    T score[kScores + lanes<T>];
    std::fill(top, top + heads, -__builtin_inff());
    std::fill(total, total + heads, T(0));
    std::fill(acc, acc + at.size(), T(0));
    pack(at, row_of(a.z_dst, d), base);
    each_batch(a.csr, d, true, batch_capacity(heads), batch, [&] {
        each_group(batch.size, [&](int64_t k, auto n) {
            score_rows<false, n.value, G, M, T>(at, a.z_src, batch.row + k, base, vector, a.slope, score + k * heads, nullptr, nullptr);
        });
        update_softmax(at, batch.size, score, top, total, acc);
        drop_edges<true>(a.drop, d, batch, heads, score);
        each_group(batch.size, [&](int64_t k, auto n) { add_rows<n.value>(at, a.z_src, batch.row + k, score + k * heads, acc); });
    });
    for (int64_t h = 0; h < heads; ++h) total[h] = T(1) / total[h];
    scale_heads(at, total, acc);
    unpack(at, acc, a.out + d * heads * a.heads.width);
}

template <int G, int M, typename T>
void attend_v2_rows(const AttendV2<T>& a, const HeadVectors<G, M, T>& at) {
    const int64_t edges = a.csr.indptr[a.csr.num_dst] - a.csr.indptr[a.csr.first_dst];
    Team team;
#pragma omp parallel if (edges * a.heads.count * a.heads.width > kThreadedNumbers)
    {
        Member member(team);
        Batch batch;
        const int64_t size = at.size();
        T* packed = new_packed(at, 3);
        pack(at, a.vector, packed);
        zero_copies(at, packed);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t d = a.csr.first_dst; d < a.csr.num_dst; ++d) attend_v2_row(a, at, d, packed, batch, packed + size, packed + 2 * size);
        std::free(packed);
    }
}

template <typename T>
void attend_v2(const AttendV2<T>& a) {
    with_vectors<T>(a.heads, [&](const auto& at) { attend_v2_rows(a, at); });
}

// Of N edges with score gradients ds: slopes[h] += ds * leaky'(u) and moments[h] += ds * leaky(u), u = x + base.
template <int N, int G, int M, typename T>
[[gnu::always_inline]] inline void add_slopes(const HeadVectors<G, M, T>& at, Rows<const T> x, const int64_t* ids, const T* ds, const T* base,
                                              T slope, T* slopes, T* moments) {
    const int64_t vectors = at.vectors();
    const T* row[N];
    for (int i = 0; i < N; ++i) row[i] = row_of(x, ids[i]);
    int64_t slot = 0;
    for (int64_t j = 0; j < at.groups(); ++j) {
        Vec<T> above[N], below[N];
        for (int i = 0; i < N; ++i) above[i] = at.spread(ds + i * at.heads(), j), below[i] = above[i] * slope;
        for (int64_t v = 0; v < vectors; ++v, slot += lanes<T>) {
            const Vec<T> add = load(base + slot);
            Vec<T> sum = load(slopes + slot), moment = load(moments + slot);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                const Vec<T> u = at.load_columns(row[i], j, v) + add;
                const Vec<T> local = u > T(0) ? above[i] : below[i];
                sum += local;
                moment += local * u;
            }
            store(slopes + slot, sum);
            store(moments + slot, moment);
        }
    }
}

// Packed rows that one thread of the pass by destination works with.
template <typename T>
struct DstRows {
    T *vector;  // without second copies
    T *whole_vector, *base, *grad, *slopes, *moments;
};

// Makes the batch's scores weights: alpha, and weight, which is still without dropout.
template <typename T>
void weigh_batch(const AttendV2Backward<T>& a, int64_t d, const Batch& batch, const T* top, const T* inverse, T* alpha, T* weight) {
    with_heads(a.heads.count, [&](auto heads) {
        for (int64_t k = 0; k < batch.size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) alpha[k * heads + h] -= top[h];
        exp_all(alpha, fill_up(alpha, batch.size * heads));
        for (int64_t k = 0; k < batch.size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) weight[k * heads + h] = alpha[k * heads + h] *= inverse[h];
    });
}

// Makes alpha the gradients of the batch's scores, and writes them and the weights at their edges.
template <typename T>
void grad_scores(const AttendV2Backward<T>& a, int64_t d, const Batch& batch, const T* weight, const T* dot, const T* product, T* alpha) {
    with_heads(a.heads.count, [&](auto heads) {
        for (int64_t k = 0; k < batch.size; ++k) {
            T* at = batch.edge[k] < 0 ? a.at_loop + d * 2 * heads : a.at_edge + batch.edge[k] * 2 * heads;
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t i = k * heads + h;
                at[h] = weight[i];
                at[heads + h] = alpha[i] = weight[i] * dot[i] - alpha[i] * product[h];
            }
        }
    });
}

template <int G, int M, typename T>
void attend_v2_backward_dst(const AttendV2Backward<T>& a, const HeadVectors<G, M, T>& given, int64_t d, Batch& batch, const DstRows<T>& own) {
    const HeadVectors<G, M, T> at = given;
    const int64_t heads = at.heads(), width = a.heads.width, size = at.size();
    const T *top = a.softmax + d * 2 * heads, *inverse = top + heads, *grad = a.grad + d * heads * width;
    T score[kScores + lanes<T>], weight[kScores], dot[kScores], product[kMaxHeads];
    for (int64_t h = 0; h < heads; ++h) product[h] = dot_head(grad + h * width, a.out + (d * heads + h) * width, width);
    pack(at, row_of(a.z_dst, d), own.base);
    pack(at, grad, own.grad);
    zero_copies(at, own.grad);
    std::fill(own.slopes, own.slopes + size, T(0));
    each_batch(a.csr, d, true, batch_capacity(heads), batch, [&] {
        each_group(batch.size, [&](int64_t k, auto n) {
            score_rows<true, n.value, G, M, T>(at, a.z_src, batch.row + k, own.base, own.vector, a.slope, score + k * heads, own.grad,
                                               dot + k * heads);
        });
        weigh_batch(a, d, batch, top, inverse, score, weight);
        drop_edges<true>(a.drop, d, batch, heads, weight);
        grad_scores(a, d, batch, weight, dot, product, score);
        each_group(batch.size, [&](int64_t k, auto n) {
            add_slopes<n.value>(at, a.z_src, batch.row + k, score + k * heads, own.base, a.slope, own.slopes, own.moments);
        });
    });
    for (int64_t i = 0; i < size; i += lanes<T>) store(own.slopes + i, load(own.slopes + i) * load(own.whole_vector + i));
    unpack(at, own.slopes, row_of(a.grad_dst, d));
}

// acc[h] += sum_i weight[i, h] * grad[ids[i], h] + ds[i, h] * vector[h] * leaky'(z[ids[i], h] + base[h]).
template <int N, int G, int M, typename T>
[[gnu::always_inline]] inline void add_both(const HeadVectors<G, M, T>& at, Rows<const T> grad, Rows<const T> z, const int64_t* ids,
                                            const T* const* of_edge, const T* base, const T* vector, T slope, T* acc) {
    const int64_t vectors = at.vectors();
    const T *grad_row[N], *z_row[N];
    for (int i = 0; i < N; ++i) grad_row[i] = row_of(grad, ids[i]), z_row[i] = row_of(z, ids[i]);
    int64_t slot = 0;
    for (int64_t j = 0; j < at.groups(); ++j) {
        Vec<T> w[N], above[N], below[N];
        for (int i = 0; i < N; ++i) {
            at.prefetch_group(row_of(grad, ids[i + kEdgesAhead]), j);
            at.prefetch_group(row_of(z, ids[i + kEdgesAhead]), j);
            w[i] = at.spread(of_edge[i], j);
            above[i] = at.spread(of_edge[i] + at.heads(), j);
            below[i] = above[i] * slope;
        }
        for (int64_t v = 0; v < vectors; ++v, slot += lanes<T>) {
            const Vec<T> add = load(base + slot);
            Vec<T> sum = load(acc + slot), slopes = {};
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                sum += w[i] * at.load_columns(grad_row[i], j, v);
                slopes += at.load_columns(z_row[i], j, v) + add > T(0) ? above[i] : below[i];
            }
            store(acc + slot, sum + slopes * load(vector + slot));
        }
    }
}

template <int G, int M, typename T>
void attend_v2_backward_src(const AttendV2Backward<T>& a, const HeadVectors<G, M, T>& given, int64_t s, const T* vector, Batch& batch, T* base,
                            T* acc) {
    const HeadVectors<G, M, T> at = given;
    const int64_t heads = at.heads();
    const Rows<const T> grad{a.grad, heads * a.heads.width};
    pack(at, row_of(a.z_src, s), base);
    std::fill(acc, acc + at.size(), T(0));
    each_batch(a.transposed, s, s < a.num_loop, kBatch, batch, [&] {
        const T* of_edge[kBatch];
        for (int64_t k = 0; k < batch.size; ++k) {
            of_edge[k] = batch.edge[k] < 0 ? a.at_loop + s * 2 * heads : a.at_edge + a.origin[batch.edge[k]] * 2 * heads;
            __builtin_prefetch(of_edge[k]);
        }
        each_group(batch.size, [&](int64_t k, auto n) {
            add_both<n.value>(at, grad, a.z_dst, batch.row + k, of_edge + k, base, vector, a.slope, acc);
        });
    });
    unpack(at, acc, row_of(a.grad_src, s));
}

template <int G, int M, typename T>
void attend_v2_backward_rows(const AttendV2Backward<T>& a, const HeadVectors<G, M, T>& at, int step) {
    const int64_t size = at.size(), first = a.csr.first_dst, num_dst = a.csr.num_dst - first;
    const Csr& rows = step == 0 ? a.csr : a.transposed;
    const int64_t edges = rows.indptr[rows.num_dst] - rows.indptr[rows.first_dst];
    Team team;
#pragma omp parallel if (edges * a.heads.count * a.heads.width > kThreadedNumbers)
    {
        Member member(team);
        Batch batch;
        T* packed = new_packed(at, 6);
        const DstRows<T> own{packed, packed + size, packed + 2 * size, packed + 3 * size, packed + 4 * size, packed + 5 * size};
        pack(at, a.vector, own.vector);
        pack(at, a.vector, own.whole_vector);
        zero_copies(at, own.vector);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < (step == 0 ? kVectorParts : 0); ++part) {
            std::fill(own.moments, own.moments + size, T(0));
            for (int64_t d = first + num_dst * part / kVectorParts; d < first + num_dst * (part + 1) / kVectorParts; ++d)
                attend_v2_backward_dst(a, at, d, batch, own);
            unpack(at, own.moments, a.vector_parts + part * a.heads.count * a.heads.width);
        }
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t s = a.transposed.first_dst; s < (step == 1 ? a.transposed.num_dst : 0); ++s)
            attend_v2_backward_src(a, at, s, own.whole_vector, batch, own.base, own.slopes);
        std::free(packed);
    }
}

// In two steps, of which the second wants the first of all rows that it reads: by destination, by source.
template <typename T>
void attend_v2_backward(const AttendV2Backward<T>& a, int step) {
    with_vectors<T>(a.heads, [&](const auto& at) { attend_v2_backward_rows(a, at, step); });
}

}  // namespace
