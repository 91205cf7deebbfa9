// Scores of pairs that stand row by row, and their gradients; nothing of size pairs x width exists.
//
// As in pairs.hpp the score of (u, v) is relu(a_u + b_v) . w, or a_u . b_v without w. Rows are as wide as a multiple of kPairWidth.
#pragma once

#include "chunks.hpp"
#include "vector.hpp"

struct PairRows {
    const int64_t* indptr;   // (num_rows + 1)
    const int32_t* indices;  // (num_pairs) the other ends
    int64_t num_rows, width;
    const float* a;          // (num_rows, width)
    const float* b;          // (others, width)
    const float* w;          // (width) or null
    float* score;            // (num_pairs), forward
    const float* grad;       // (num_pairs), backward: of the scores
    float* grad_a;           // (num_rows, width)
    float* weight_parts;     // (kPairParts, width) or null: of w, which parts of the rows add up
};

namespace {

constexpr int64_t kPairWidth = 16, kPairParts = 64;

[[gnu::always_inline]] inline Vec<float> cut_off(Vec<float> x) {
    const Vec<float> zero{};
    return x > zero ? x : zero;
}

template <bool Dot>
void pair_rows_of(const PairRows& p) {
    constexpr int64_t n = lanes<float>;
    Team team;
#pragma omp parallel if (p.indptr[p.num_rows] * p.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t u = 0; u < p.num_rows; ++u) {
            const float* a = p.a + u * p.width;
            for (int64_t e = p.indptr[u]; e < p.indptr[u + 1]; ++e) {
                const float* b = p.b + p.indices[e] * p.width;
                Vec<float> total{};
                for (int64_t d = 0; d < p.width; d += n) {
                    if constexpr (Dot) total += load(a + d) * load(b + d);
                    else total += cut_off(load(a + d) + load(b + d)) * load(p.w + d);
                }
                p.score[e] = sum_lanes<float>(total);
            }
        }
    }
}

// One row's gradient, and what it adds to that of w; some columns at a time stay in registers.
template <bool Dot, int64_t Vectors>
[[gnu::always_inline]] inline void pair_row_backward(const PairRows& p, int64_t u, int64_t d, float* weight) {
    constexpr int64_t n = lanes<float>;
    Vec<float> a[Vectors], total[Vectors]{}, of_weight[Vectors]{};
    for (int64_t k = 0; k < Vectors; ++k) a[k] = load(p.a + u * p.width + d + k * n);
    for (int64_t e = p.indptr[u]; e < p.indptr[u + 1]; ++e) {
        const float* b = p.b + p.indices[e] * p.width + d;
        const Vec<float> grad = splat(p.grad[e]), zero{};
#pragma GCC unroll 4
        for (int64_t k = 0; k < Vectors; ++k) {
            const Vec<float> other = load(b + k * n);
            if constexpr (Dot) {
                total[k] += grad * other;
            } else {
                const Vec<float> sum = a[k] + other, passed = sum > zero ? grad : zero;
                total[k] += passed;
                of_weight[k] += passed * sum;
            }
        }
    }
    for (int64_t k = 0; k < Vectors; ++k) {
        const int64_t at = d + k * n;
        store(p.grad_a + u * p.width + at, Dot ? total[k] : total[k] * load(p.w + at));
        if (weight) store(weight + at, load(weight + at) + of_weight[k]);
    }
}

template <bool Dot>
void pair_rows_backward_of(const PairRows& p) {
    constexpr int64_t n = lanes<float>;
    Team team;
#pragma omp parallel if (p.indptr[p.num_rows] * p.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < kPairParts; ++part) {
            float* weight = p.weight_parts ? p.weight_parts + part * p.width : nullptr;
            for (int64_t u = p.num_rows * part / kPairParts; u < p.num_rows * (part + 1) / kPairParts; ++u) {
                int64_t d = 0;
                for (; d + 4 * n <= p.width; d += 4 * n) pair_row_backward<Dot, 4>(p, u, d, weight);
                for (; d < p.width; d += n) pair_row_backward<Dot, 1>(p, u, d, weight);
            }
        }
    }
}

inline void pair_rows(const PairRows& p) { p.w ? pair_rows_of<false>(p) : pair_rows_of<true>(p); }
inline void pair_rows_backward(const PairRows& p) { p.w ? pair_rows_backward_of<false>(p) : pair_rows_backward_of<true>(p); }

}  // namespace
