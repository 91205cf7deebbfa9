// GAT's aggregate: softmax over each destination's in-edges, with one loop in place of whatever loops there are, and the
// sum of source rows that it weighs.
//
//   score[e, h] = leaky(score_src[s, h] + score_dst[d, h])
//   alpha[e, h] = exp(score[e, h] - top[d, h]) / total[d, h]
//   out[d, h]   = sum_e alpha[e, h] * drop[e, h] * z[s, h]
//
// Scores are recomputed wherever they are needed; the backward pass alone holds one number an edge and head.
#pragma once

#include "heads.hpp"

template <typename T>
struct Attend {
    Csr csr;
    Rows<const T> z;          // (num_src, heads * width)
    Rows<const T> score_src;  // (num_src, heads)
    Rows<const T> score_dst;  // (num_dst, heads)
    Heads heads;
    T slope;                  // of leaky below zero, not negative
    EdgeDropout<T> drop;
    T* out;                   // (num_dst, heads * width)
    T* softmax;               // (num_dst, 2, heads): top, 1 / total
};

template <typename T>
struct AttendBackward {
    Csr csr;                  // by destination
    Csr transposed;           // by source
    const int64_t* origin;    // (num_edges), the place in csr of each edge of transposed
    Rows<const T> z;
    Rows<const T> score_src;
    Rows<const T> score_dst;
    Heads heads;
    T slope;
    EdgeDropout<T> drop;
    const T* out;             // (num_dst, heads * width), what forward returned
    const T* softmax;
    const T* grad;            // (num_dst, heads * width)
    T* at_dst;                // (num_dst, 4, heads), scratch: score_dst, top, 1 / total, <grad, out>
    T* grad_edge;             // (num_edges, heads), scratch: the gradient before leaky, in the order of csr
    Rows<T> grad_z;           // (num_src, heads * width)
    Rows<T> grad_score_src;   // (num_src, heads)
    Rows<T> grad_score_dst;   // (num_dst, heads)
    int64_t num_loop;         // sources that are destinations too
};

namespace {

// Without a branch, which would be taken at random.
template <typename T>
[[gnu::always_inline]] inline T leaky(T x, T slope) {
    return (x > T(0) ? x : T(0)) + slope * (x > T(0) ? T(0) : x);
}

// acc[h] += sum_i weight[i, h] * x[ids[i], h] for N rows.
template <int N, int G, int M, typename T>
[[gnu::always_inline]] inline void add_rows(const HeadVectors<G, M, T>& at, Rows<const T> x, const int64_t* ids, const T* weight, T* acc) {
    const int64_t vectors = at.vectors(), heads = at.heads();
    const T *row[N], *next[N];
    for (int i = 0; i < N; ++i) row[i] = row_of(x, ids[i]), next[i] = row_of(x, ids[i + kEdgesAhead]);
    for (int64_t j = 0; j < at.groups(); ++j) {
        Vec<T> w[N];
        for (int i = 0; i < N; ++i) {
            at.prefetch_group(next[i], j);
            w[i] = at.spread(weight + i * heads, j);
        }
        for (int64_t v = 0; v < vectors; ++v, acc += lanes<T>) {
            Vec<T> sum = load(acc);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) sum += w[i] * at.load_columns(row[i], j, v);
            store(acc, sum);
        }
    }
}

// As add_rows, and dot[i, h] = <x[ids[i], h], with[h]>; `with` is packed, without second copies.
template <int N, int G, int M, typename T>
[[gnu::always_inline]] inline void add_and_dot_rows(const HeadVectors<G, M, T>& at, Rows<const T> x, const int64_t* ids, const T* weight,
                                                    const T* with, T* acc, T* dot) {
    const int64_t vectors = at.vectors(), heads = at.heads(), groups = at.groups();
    const T *row[N], *next[N];
    for (int i = 0; i < N; ++i) row[i] = row_of(x, ids[i]), next[i] = row_of(x, ids[i + kEdgesAhead]);
    HeadSums<N, G, M, T> sums(at, dot);
    for (int64_t j = 0; j < groups; ++j) {
        Vec<T> w[N], dots[N] = {};
        for (int i = 0; i < N; ++i) {
            at.prefetch_group(next[i], j);
            w[i] = at.spread(weight + i * heads, j);
        }
        for (int64_t v = 0; v < vectors; ++v, acc += lanes<T>, with += lanes<T>) {
            const Vec<T> own = load(with);
            Vec<T> sum = load(acc);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                const Vec<T> value = at.load_columns(row[i], j, v);
                sum += w[i] * value;
                dots[i] += own * value;
            }
            store(acc, sum);
        }
        sums.add(j, dots);
    }
    sums.end();
}

// Scales each head of a packed row.
template <int G, int M, typename T>
[[gnu::always_inline]] inline void scale_heads(const HeadVectors<G, M, T>& at, const T* factor, T* packed) {
    each_vector(at, [&](int64_t slot, int64_t j, int64_t) { store(packed + slot, at.spread(factor, j) * load(packed + slot)); });
}

template <typename T>
void exp_all(T* values, int64_t size) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) values[i] = exp_of(values[i]);
}

// The number of a batch's scores, and zeros after them up to a multiple of a vector: loops over them are then without a rest.
template <typename T>
[[gnu::always_inline]] inline int64_t fill_up(T* scores, int64_t size) {
    store(scores + size, Vec<T>{});
    return (size + lanes<T> - 1) / lanes<T> * lanes<T>;
}

// The largest score of each head. leaky never falls, so the largest is that of the largest source.
template <typename T>
void top_scores(const Attend<T>& a, int64_t d, T* top) {
    const T *own = row_of(a.score_src, d), *to = row_of(a.score_dst, d);
    with_heads(a.heads.count, [&](auto heads) {
        T most[kMaxHeads];
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) most[h] = own[h];
        for (int64_t e = a.csr.indptr[d]; e < a.csr.indptr[d + 1]; ++e) {
            const T* from = row_of(a.score_src, a.csr.indices[e]);
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) most[h] = from[h] > most[h] ? from[h] : most[h];
        }
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) top[h] = leaky(most[h] + to[h], a.slope);
    });
}

// Fetches the scores of the sources that come after a batch's, as many.
template <typename T>
[[gnu::always_inline]] inline void prefetch_scores(const Attend<T>& a, const Batch& batch) {
    const int64_t first = batch.edge[batch.size - 1] + 1, last = std::min(first + batch.size, a.csr.indptr[a.csr.num_dst]);
    for (int64_t e = first; e < last; ++e) __builtin_prefetch(row_of(a.score_src, a.csr.indices[e]));
}

// weight[k, h] = exp(score - top), and total[h] += their sum. Where the batch is all of the row, it finds top too.
template <bool FindTop, typename T>
void weigh_batch(const Attend<T>& a, int64_t d, const Batch& batch, T* top, T* total, T* weight) {
    const T* to = row_of(a.score_dst, d);
    with_heads(a.heads.count, [&](auto heads) {
        T less[kScores + lanes<T>];
        const int64_t size = batch.size * heads;
        prefetch_scores(a, batch);
        for (int64_t k = 0; k < batch.size; ++k) {
            const T* from = row_of(a.score_src, batch.row[k]);
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) weight[k * heads + h] = from[h];
        }
        T sums[kMaxHeads];
        if constexpr (FindTop) {
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) sums[h] = weight[h];
            for (int64_t k = 1; k < batch.size; ++k)
#pragma omp simd
                for (int64_t h = 0; h < heads; ++h) sums[h] = weight[k * heads + h] > sums[h] ? weight[k * heads + h] : sums[h];
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) top[h] = leaky(sums[h] + to[h], a.slope);
        }
        for (int64_t k = 0; k < batch.size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) weight[k * heads + h] += to[h], less[k * heads + h] = top[h];
        const int64_t full = fill_up(weight, size);
        fill_up(less, size);
#pragma omp simd
        for (int64_t i = 0; i < full; ++i) weight[i] = exp_of(leaky(weight[i], a.slope) - less[i]);
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) sums[h] = total[h];
        for (int64_t k = 0; k < batch.size; ++k)
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) sums[h] += weight[k * heads + h];
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) total[h] = sums[h];
    });
}

template <int G, int M, typename T>
void attend_row(const Attend<T>& a, const HeadVectors<G, M, T>& given, int64_t d, Batch& batch, T* acc) {
    const HeadVectors<G, M, T> at = given;  // a local, so that the compiler need not fear that a store changes it
    const int64_t heads = at.heads(), capacity = batch_capacity(heads);
    const bool once = a.csr.indptr[d + 1] - a.csr.indptr[d] < capacity;
    T* top = a.softmax + d * 2 * heads;
    T* total = top + heads;
    T weight[kScores + lanes<T>];
    if (!once) top_scores(a, d, top);
    std::fill(total, total + heads, T(0));
    std::fill(acc, acc + at.size(), T(0));
    each_batch(a.csr, d, true, capacity, batch, [&] {
        once ? weigh_batch<true>(a, d, batch, top, total, weight) : weigh_batch<false>(a, d, batch, top, total, weight);
        drop_edges<true>(a.drop, d, batch, heads, weight);
        each_group(batch.size, [&](int64_t k, auto n) { add_rows<n.value>(at, a.z, batch.row + k, weight + k * heads, acc); });
    });
    for (int64_t h = 0; h < heads; ++h) total[h] = T(1) / total[h];
    scale_heads(at, total, acc);
    unpack(at, acc, a.out + d * heads * a.heads.width);
}

template <int G, int M, typename T>
void attend_rows(const Attend<T>& a, const HeadVectors<G, M, T>& at) {
    const int64_t edges = a.csr.indptr[a.csr.num_dst] - a.csr.indptr[a.csr.first_dst];
    Team team;
#pragma omp parallel if (edges * a.heads.count * a.heads.width > kThreadedNumbers)
    {
        Member member(team);
        Batch batch;
        T* acc = new_packed(at, 1);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t d = a.csr.first_dst; d < a.csr.num_dst; ++d) attend_row(a, at, d, batch, acc);
        std::free(acc);
    }
}

template <typename T>
void attend(const Attend<T>& a) {
    with_vectors<T>(a.heads, [&](const auto& at) { attend_rows(a, at); });
}

// <x[h], y[h]> of two rows, in a fixed order.
template <typename T>
[[gnu::always_inline]] inline T dot_head(const T* x, const T* y, int64_t width) {
    Vec<T> sum = {};
    int64_t f = 0;
    for (; f + lanes<T> <= width; f += lanes<T>) sum += load(x + f) * load(y + f);
    T rest = 0;
    for (; f < width; ++f) rest += x[f] * y[f];
    return sum_across<T>(sum) + rest;
}

// What edges need to know of their destination, side by side.
template <typename T>
void gather_dst(const AttendBackward<T>& a) {
    const int64_t heads = a.heads.count, width = a.heads.width;
    const int64_t rows = a.csr.num_dst - a.csr.first_dst, numbers = 2 * rows * heads * width;
#pragma omp parallel for schedule(dynamic, chunk_of(rows, numbers)) if (numbers > kThreadedNumbers)
    for (int64_t d = a.csr.first_dst; d < a.csr.num_dst; ++d) {
        T* at = a.at_dst + d * 4 * heads;
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t head = (d * heads + h) * width;
            at[h] = row_of(a.score_dst, d)[h];
            at[heads + h] = a.softmax[d * 2 * heads + h];
            at[2 * heads + h] = a.softmax[(d * 2 + 1) * heads + h];
            at[3 * heads + h] = dot_head(a.grad + head, a.out + head, width);
        }
    }
}

// What a batch of one source's edges is computed from, (size, heads) each.
template <typename T>
struct SourceEdges {
    T alpha[kScores + lanes<T>], weight[kScores + lanes<T>], slope[kScores + lanes<T>], dot[kScores + lanes<T>];
};

// alpha and weight, which is still without dropout, and leaky's slope.
template <typename T>
void weigh_batch(const AttendBackward<T>& a, int64_t s, const Batch& batch, SourceEdges<T>& edges) {
    const T* from = row_of(a.score_src, s);
    with_heads(a.heads.count, [&](auto heads) {
        for (int64_t k = 0; k < batch.size; ++k) {
            const T* at = a.at_dst + batch.row[k] * 4 * heads;
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) {
                edges.slope[k * heads + h] = from[h] + at[h];  // the score before leaky, for now
                edges.alpha[k * heads + h] = at[heads + h];
            }
        }
        const int64_t full = fill_up(edges.slope, batch.size * heads);
        fill_up(edges.alpha, batch.size * heads);
#pragma omp simd
        for (int64_t i = 0; i < full; ++i) {
            const T raw = edges.slope[i];
            edges.alpha[i] = exp_of(leaky(raw, a.slope) - edges.alpha[i]);
            edges.slope[i] = raw > T(0) ? T(1) : a.slope;
        }
        for (int64_t k = 0; k < batch.size; ++k) {
            const T* inverse = a.at_dst + batch.row[k] * 4 * heads + 2 * heads;
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t i = k * heads + h;
                edges.weight[i] = edges.alpha[i] = edges.alpha[i] * inverse[h];
            }
        }
    });
}

// The gradients of a batch's scores: one number an edge and head, and their sum.
template <typename T>
void grad_scores(const AttendBackward<T>& a, int64_t s, const Batch& batch, const SourceEdges<T>& edges, T* grad_from) {
    with_heads(a.heads.count, [&](auto heads) {
        T sums[kMaxHeads];
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) sums[h] = grad_from[h];
        for (int64_t k = 0; k < batch.size; ++k) {
            const T* product = a.at_dst + batch.row[k] * 4 * heads + 3 * heads;
            const int64_t edge = batch.edge[k];
            T* to = edge < 0 ? row_of(a.grad_score_dst, s) : a.grad_edge + a.origin[edge] * heads;
#pragma omp simd
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t i = k * heads + h;
                const T grad = edges.slope[i] * (edges.weight[i] * edges.dot[i] - edges.alpha[i] * product[h]);
                to[h] = grad;
                sums[h] += grad;
            }
        }
#pragma omp simd
        for (int64_t h = 0; h < heads; ++h) grad_from[h] = sums[h];
    });
}

// Fetches the places of a batch's gradients of scores, which are written at random.
template <typename T>
void prefetch_grads(const AttendBackward<T>& a, const Batch& batch) {
    const int64_t bytes = a.heads.count * int64_t(sizeof(T));
    for (int64_t k = 0; k < batch.size; ++k) {
        if (batch.edge[k] < 0) continue;
        const char* to = reinterpret_cast<const char*>(a.grad_edge + a.origin[batch.edge[k]] * a.heads.count);
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(to + b, 1);
    }
}

// Everything of source s but the sums by destination: its rows' gradients, and one number an edge and head.
template <int G, int M, typename T>
void attend_backward_row(const AttendBackward<T>& a, const HeadVectors<G, M, T>& given, int64_t s, Batch& batch, T* own, T* acc) {
    const HeadVectors<G, M, T> at = given;
    const int64_t heads = at.heads(), total_width = heads * a.heads.width;
    const Rows<const T> grad{a.grad, total_width};
    T* grad_from = row_of(a.grad_score_src, s);
    SourceEdges<T> edges;
    pack(at, row_of(a.z, s), own);
    zero_copies(at, own);
    std::fill(acc, acc + at.size(), T(0));
    std::fill(grad_from, grad_from + heads, T(0));
    each_batch(a.transposed, s, s < a.num_loop, batch_capacity(heads), batch, [&] {
        prefetch_grads(a, batch);
        weigh_batch(a, s, batch, edges);
        drop_edges<false>(a.drop, s, batch, heads, edges.weight);
        each_group(batch.size, [&](int64_t k, auto n) {
            add_and_dot_rows<n.value>(at, grad, batch.row + k, edges.weight + k * heads, own, acc, edges.dot + k * heads);
        });
        grad_scores(a, s, batch, edges, grad_from);
    });
    unpack(at, acc, row_of(a.grad_z, s));
}

// grad_score_dst holds the loop's share; the edges' are added.
template <typename T>
void add_edges_by_dst(const AttendBackward<T>& a) {
    const int64_t edges = a.csr.indptr[a.csr.num_dst] - a.csr.indptr[a.csr.first_dst], rows = a.csr.num_dst - a.csr.first_dst;
    const int64_t chunk = chunk_of(rows, edges * (a.heads.count + 1));
#pragma omp parallel for schedule(dynamic, chunk) if (edges * (a.heads.count + 1) > kThreadedNumbers)
    for (int64_t d = a.csr.first_dst; d < a.csr.num_dst; ++d)
        with_heads(a.heads.count, [&](auto heads) {
            T* to = row_of(a.grad_score_dst, d);
            for (int64_t e = a.csr.indptr[d]; e < a.csr.indptr[d + 1]; ++e) {
                if (a.csr.indices[e] == d) continue;
#pragma omp simd
                for (int64_t h = 0; h < heads; ++h) to[h] += a.grad_edge[e * heads + h];
            }
        });
}

template <int G, int M, typename T>
void attend_backward_rows(const AttendBackward<T>& a, const HeadVectors<G, M, T>& at) {
    const int64_t edges = a.transposed.indptr[a.transposed.num_dst] - a.transposed.indptr[a.transposed.first_dst];
    Team team;
#pragma omp parallel if (edges * a.heads.count * a.heads.width > kThreadedNumbers)
    {
        Member member(team);
        Batch batch;
        T* packed = new_packed(at, 2);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t s = a.transposed.first_dst; s < a.transposed.num_dst; ++s)
            attend_backward_row(a, at, s, batch, packed, packed + at.size());
        std::free(packed);
    }
}

// In three steps, of which each wants the one before of all rows that it reads: by destination, by source, by destination.
template <typename T>
void attend_backward(const AttendBackward<T>& a, int step) {
    if (step == 0) return gather_dst(a);
    if (step == 2) return add_edges_by_dst(a);
    with_vectors<T>(a.heads, [&](const auto& at) { attend_backward_rows(a, at); });
}

}  // namespace
