// Maximum over in-neighbours, and its gradient.
#pragma once

#include <algorithm>

#include "spmm.hpp"

template <typename T>
struct SegmentMax {
    Csr csr;
    const T* x;     // (num_src, width)
    int64_t width;
    T* out;         // (num_dst, width), zero where there is no neighbour
    int32_t* from;  // (num_dst, width), the source that gave the maximum, -1 where there is none
    const int64_t* id;  // (num_src) or null; of equal rows the one with the lowest id gives the maximum, else the first
};

template <typename T>
struct SegmentMaxBackward {
    Csr csr;              // transposed: rows are sources, columns are destinations in ascending order
    const T* grad;        // (num_dst, width)
    const int32_t* from;  // (num_dst, width)
    int64_t width;
    T* out;               // (num_src, width)
};

namespace {

template <typename T>
void segment_max_row(const SegmentMax<T>& a, int64_t d, int64_t* best_id) {
    T* best = a.out + d * a.width;
    int32_t* from = a.from + d * a.width;
    const int64_t begin = a.csr.indptr[d], end = a.csr.indptr[d + 1];
    for (int64_t f = 0; f < a.width; ++f) best[f] = T(0), from[f] = -1;
    if (begin == end) return;
    const int32_t first = a.csr.indices[begin];
    for (int64_t f = 0; f < a.width; ++f) best[f] = a.x[first * a.width + f], from[f] = first;
    if (a.id) std::fill_n(best_id, a.width, a.id[first]);
    for (int64_t e = begin + 1; e < end; ++e) {
        const int32_t s = a.csr.indices[e];
        const T* row = a.x + int64_t(s) * a.width;
        if (e + 2 < end) __builtin_prefetch(a.x + int64_t(a.csr.indices[e + 2]) * a.width);
        if (!a.id) {
#pragma omp simd
            for (int64_t f = 0; f < a.width; ++f) {
                const bool more = (row[f] > best[f]) | ((row[f] != row[f]) & (best[f] == best[f]));  // the first NaN stays
                best[f] = more ? row[f] : best[f];
                from[f] = more ? s : from[f];
            }
            continue;
        }
        const int64_t id = a.id[s];
#pragma omp simd
        for (int64_t f = 0; f < a.width; ++f) {
            const bool lower = id < best_id[f], is_nan = row[f] != row[f], was_nan = best[f] != best[f];
            const bool more = (row[f] > best[f]) | (is_nan & !was_nan) | (lower & ((row[f] == best[f]) | (is_nan & was_nan)));
            best[f] = more ? row[f] : best[f];
            from[f] = more ? s : from[f];
            best_id[f] = more ? id : best_id[f];
        }
    }
}

template <typename T>
void segment_max(const SegmentMax<T>& a) {
    const int64_t edges = a.csr.indptr[a.csr.num_dst] - a.csr.indptr[a.csr.first_dst];
    Team team;
#pragma omp parallel if (edges * a.width > kThreadedNumbers)
    {
        Member member(team);
        int64_t* best_id = a.id ? new int64_t[size_t(a.width)] : nullptr;
#pragma omp for schedule(dynamic, 64)
        for (int64_t d = a.csr.first_dst; d < a.csr.num_dst; ++d) segment_max_row(a, d, best_id);
        delete[] best_id;
    }
}

template <typename T>
void segment_max_backward(const SegmentMaxBackward<T>& a) {
    const int64_t edges = a.csr.indptr[a.csr.num_dst] - a.csr.indptr[a.csr.first_dst];
    Team team;
#pragma omp parallel if (edges * a.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t s = a.csr.first_dst; s < a.csr.num_dst; ++s) {
            T* out = a.out + s * a.width;
            for (int64_t f = 0; f < a.width; ++f) out[f] = T(0);
            for (int64_t e = a.csr.indptr[s]; e < a.csr.indptr[s + 1]; ++e) {
                const int64_t d = a.csr.indices[e];
                if (e > a.csr.indptr[s] && a.csr.indices[e - 1] == d) continue;  // a double edge counts once
                const T* grad = a.grad + d * a.width;
                const int32_t* from = a.from + d * a.width;
#pragma omp simd
                for (int64_t f = 0; f < a.width; ++f) out[f] += from[f] == s ? grad[f] : T(0);
            }
        }
    }
}

}  // namespace
