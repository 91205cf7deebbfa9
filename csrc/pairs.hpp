// Scores of pairs of rows.
//
// The score of (u, v) is relu(a_u + b_v) . w, or a_u . b_v without w. A pair that is scored alone and one that is scored among
// all pairs (count_above.hpp) are added up in the same order with the same rounding, so that they are equal to the last bit.
#pragma once

#include "vector.hpp"

struct PairScores {
    const float* a;      // (num_rows, width)
    const float* b;      // (num_cols, width)
    const float* w;      // (width) or null
    int64_t width;
    const int32_t* src;  // (num_pairs)
    const int32_t* dst;
    int64_t num_pairs;
    float* out;          // (num_pairs)
};

namespace {

// max(x, 0), and 0 for NaN.
[[gnu::always_inline]] inline Vec<float> relu(Vec<float> x) {
    const Vec<float> zero{};
    return x > zero ? x : zero;
}

// The same unless x is a NaN of positive sign. On x86 a maximum of integers may take any vector unit, that of floats may not.
[[gnu::always_inline]] inline Vec<float> relu_of_sum(Vec<float> x) {
#if defined(__x86_64__)
    const Vec<int32_t> bits = (Vec<int32_t>)x, zero{};
    return (Vec<float>)(bits > zero ? bits : zero);
#else
    return relu(x);
#endif
}

template <bool Dot>
void pair_scores_of(const PairScores& p) {
    constexpr int64_t n = lanes<float>;
#pragma omp parallel for schedule(static) if (p.num_pairs * p.width > 1 << 15)
    for (int64_t i = 0; i < p.num_pairs; i += n) {
        const int64_t count = p.num_pairs - i < n ? p.num_pairs - i : n;
        Vec<float> total{}, a{}, b{};
        for (int64_t d = 0; d < p.width; ++d) {
            for (int64_t k = 0; k < count; ++k) {
                a[k] = p.a[p.src[i + k] * p.width + d];
                b[k] = p.b[p.dst[i + k] * p.width + d];
            }
            if constexpr (Dot) total = total + a * b;
            else total = total + relu(a + b) * splat(p.w[d]);
        }
        for (int64_t k = 0; k < count; ++k) p.out[i + k] = total[k];
    }
}

inline void pair_scores(const PairScores& p) { p.w ? pair_scores_of<false>(p) : pair_scores_of<true>(p); }

}  // namespace
