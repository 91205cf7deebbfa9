// Sums over in-neighbours. Rows of the CSR are destinations, its columns are sources.
//
//   out[d] = post[d] * ( sum_e weight[e] * pre[s(e)] * x[s(e)]  +  loop[d] * pre[d] * x[d] )
//
// weight, pre, post and loop may each be null (then 1, 1, 1 and 0). This one form is the plain sum, the mean
// (post = 1 / degree) and GCN's normalised sum (pre = post = degree^-1/2, loop = what a row lacks of one edge to itself),
// and, on the transposed CSR with pre and post exchanged, the gradient of each.
//
// A row's edges may be summed in two goes, each over a range of its columns that lies in an array of its own: `ends` cuts
// rows short, `first_src` is the column that row 0 of x stands for, `add` adds to what is there.
#pragma once

#include <algorithm>

#include "vector.hpp"

struct Csr {
    const int64_t* indptr;   // (num_dst + 1)
    const int32_t* indices;  // (num_edges)
    int64_t num_dst;         // where the rows that a kernel works on end
    int64_t first_dst = 0;   // where they begin; every array is still that of all rows
};

template <typename T, typename X>
struct Spmm {
    Csr csr;
    const X* x;         // (num_src, width)
    int64_t width;
    const T* weight;    // (num_edges) or null
    const T* pre;       // (num_src) or null
    const T* post;      // (num_dst) or null
    const T* loop;      // (num_loop) or null; rows beyond num_loop have none
    int64_t num_loop;   // destinations that are also sources
    T* out;             // (num_dst, width)
    const int64_t* ends = nullptr;  // (num_dst), where each row ends, or null: where the next one begins
    int64_t first_src = 0;
    bool add = false;
};

namespace {

constexpr int kTile = 8;           // vectors held in registers
constexpr int kAhead = 6;          // edges between a prefetch and its use
constexpr int64_t kRowChunk = 64;  // rows a thread takes at a time

template <int N, typename T, typename X>
[[gnu::always_inline]] inline void add_row(Vec<T> (&acc)[N], const X* row, int64_t first, int64_t last, T coef) {
    const Vec<T> c = splat<T>(coef);
#pragma GCC unroll 8
    for (int i = 0; i < N - 1; ++i) acc[i] += c * load(row + first + i * lanes<T>);
    acc[N - 1] += c * load(row + last);
}

template <typename T, typename X>
[[gnu::always_inline]] inline int64_t end_of(const Spmm<T, X>& a, int64_t d) {
    return a.ends ? a.ends[d] : a.csr.indptr[d + 1];
}

// The lanes of a last vector that the vector before it does not cover; those it covers are zero.
template <typename T>
[[gnu::always_inline]] inline Vec<T> uncovered(Vec<T> v, int64_t covered) {
    for (int64_t i = 0; i < covered; ++i) v[i] = T(0);
    return v;
}

// Columns [first, ...) of rows [begin, end) in N vectors, the last of which starts at column `last`.
template <int N, typename T, typename X>
void spmm_tile(const Spmm<T, X>& a, int64_t begin, int64_t end, int64_t first, int64_t last) {
    const int64_t* indptr = a.csr.indptr;
    const int32_t* indices = a.csr.indices;
    const X* x = a.x - a.first_src * a.width;  // the row of column 0, there or not
    const T* pre = a.pre ? a.pre - a.first_src : nullptr;
    const int64_t stop = end_of(a, end - 1), covered = first + (N - 1) * lanes<T> - last;
    for (int64_t d = begin; d < end; ++d) {
        const int64_t row_end = end_of(a, d);
        if (a.add && !a.loop && row_end == indptr[d]) continue;
        Vec<T> acc[N] = {};
        for (int64_t e = indptr[d]; e < row_end; ++e) {
            if (e + kAhead < stop) {
                const char* next = reinterpret_cast<const char*>(x + indices[e + kAhead] * a.width + first);
#pragma GCC unroll 8
                for (int64_t b = 0; b < int64_t(N * lanes<T> * sizeof(X)); b += 64) __builtin_prefetch(next + b);
            }
            const int64_t s = indices[e];
            T coef = a.weight ? a.weight[e] : T(1);
            if (pre) coef *= pre[s];
            add_row<N>(acc, x + s * a.width, first, last, coef);
        }
        if (a.loop && d < a.num_loop && a.loop[d] != T(0))
            add_row<N>(acc, a.x + d * a.width, first, last, a.loop[d] * (a.pre ? a.pre[d] : T(1)));
        const Vec<T> scale = splat<T>(a.post ? a.post[d] : T(1));
        T* out = a.out + d * a.width;
        if (a.add) {
#pragma GCC unroll 8
            for (int i = 0; i < N - 1; ++i) store(out + first + i * lanes<T>, load(out + first + i * lanes<T>) + scale * acc[i]);
            store(out + last, load(out + last) + uncovered<T>(scale * acc[N - 1], covered));
            continue;
        }
#pragma GCC unroll 8
        for (int i = 0; i < N - 1; ++i) store(out + first + i * lanes<T>, scale * acc[i]);
        store(out + last, scale * acc[N - 1]);
    }
}

// Fewer columns than one vector.
template <typename T, typename X>
void spmm_narrow(const Spmm<T, X>& a, int64_t begin, int64_t end) {
    const auto add = [&](T* acc, int64_t s, T coef) {
        if (a.pre) coef *= a.pre[s];
        for (int64_t f = 0; f < a.width; ++f) acc[f] += coef * T(widen(a.x[s * a.width + f]));
    };
    for (int64_t d = begin; d < end; ++d) {
        T acc[lanes<T>] = {};
        for (int64_t e = a.csr.indptr[d]; e < end_of(a, d); ++e)
            add(acc, a.csr.indices[e] - a.first_src, a.weight ? a.weight[e] : T(1));
        if (a.loop && d < a.num_loop && a.loop[d] != T(0)) add(acc, d, a.loop[d]);
        T* out = a.out + d * a.width;
        for (int64_t f = 0; f < a.width; ++f) out[f] = (a.add ? out[f] : T(0)) + acc[f] * (a.post ? a.post[d] : T(1));
    }
}

template <typename T, typename X>
void spmm_rows(const Spmm<T, X>& a, int64_t begin, int64_t end) {
    if (a.width < lanes<T>) return spmm_narrow(a, begin, end);
    const int64_t vectors = vectors_in<T>(a.width);
    for (int64_t v = 0; v < vectors; v += kTile) {
        const int64_t n = std::min<int64_t>(kTile, vectors - v), first = v * lanes<T>;
        const int64_t last = std::min(first + (n - 1) * lanes<T>, a.width - lanes<T>);
        switch (n) {
            case 1: spmm_tile<1>(a, begin, end, first, last); break;
            case 2: spmm_tile<2>(a, begin, end, first, last); break;
            case 3: spmm_tile<3>(a, begin, end, first, last); break;
            case 4: spmm_tile<4>(a, begin, end, first, last); break;
            case 5: spmm_tile<5>(a, begin, end, first, last); break;
            case 6: spmm_tile<6>(a, begin, end, first, last); break;
            case 7: spmm_tile<7>(a, begin, end, first, last); break;
            default: spmm_tile<8>(a, begin, end, first, last);
        }
    }
}

template <typename T, typename X>
void spmm(const Spmm<T, X>& a) {
    if (a.csr.num_dst == a.csr.first_dst) return;
#pragma omp parallel for schedule(dynamic, 4) if ((end_of(a, a.csr.num_dst - 1) - a.csr.indptr[a.csr.first_dst]) * a.width > 1 << 14)
    for (int64_t begin = a.csr.first_dst; begin < a.csr.num_dst; begin += kRowChunk)
        spmm_rows(a, begin, std::min(begin + kRowChunk, a.csr.num_dst));
}

}  // namespace
