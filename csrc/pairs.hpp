// Scores of pairs of rows, and what of all pairs lies above some of them; nothing of size rows x columns exists.
//
// The score of (u, v) is relu(a_u + b_v) . w, or a_u . b_v without w. A pair that is scored alone and one that is scored among
// all of its row are added up in the same order by the same instructions, so that they are equal to the last bit.
#pragma once

#include <omp.h>

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

struct CountAbove {
    const float* a;           // (num_rows, width)
    const float* b_t;         // (width, padded), padded >= num_cols a multiple of kPairColumns
    const float* w;           // (width) or null
    int64_t begin, end;       // rows
    int64_t num_cols, padded, width;
    const int64_t* given_ptr; // (num_rows + 1) or null: scores that stand instead
    const int32_t* given_col;
    const float* given;
    const int64_t* pos_ptr;   // (num_rows + 1)
    const float* pos;         // the scores that are looked for, row by row
    const float* level;       // (num_levels) the same, ascending, each once
    int64_t num_levels;
    int32_t* first;           // (kCells + 1) room
    int threads;
    float* room;              // (threads, kPairRows, padded)
    int64_t* between;         // (threads, num_levels + 1) zeros: scores by the number of levels below them
    int64_t* same;            // (threads, num_levels) zeros: scores equal to a level
    int64_t* row_above;       // (positives)
    int64_t* row_same;
};

namespace {

constexpr int64_t kPairRows = 4, kPairColumns = 32, kCells = 1 << 13;

template <bool Dot>
[[gnu::always_inline]] inline Vec<float> added(Vec<float> total, Vec<float> a, Vec<float> b, Vec<float> w) {
    if constexpr (Dot) return total + a * b;
    const Vec<float> sum = a + b, zero{};
    return total + (sum > zero ? sum : zero) * w;
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
            total = added<Dot>(total, a, b, splat(Dot ? 0.0f : p.w[d]));
        }
        for (int64_t k = 0; k < count; ++k) p.out[i + k] = total[k];
    }
}

inline void pair_scores(const PairScores& p) { p.w ? pair_scores_of<false>(p) : pair_scores_of<true>(p); }

// Scores of kPairRows rows from `row` on with all columns; rows past the end repeat the last.
template <bool Dot>
void score_rows(const CountAbove& p, int64_t row, float* out) {
    constexpr int64_t n = lanes<float>;
    const float* a[kPairRows];
    for (int64_t r = 0; r < kPairRows; ++r) a[r] = p.a + (row + r < p.end ? row + r : p.end - 1) * p.width;
    for (int64_t v = 0; v < p.padded; v += 2 * n) {
        Vec<float> total[kPairRows][2]{};
        const float* b = p.b_t + v;
        for (int64_t d = 0; d < p.width; ++d, b += p.padded) {
            const Vec<float> left = load(b), right = load(b + n), w = splat(Dot ? 0.0f : p.w[d]);
#pragma GCC unroll 4
            for (int64_t r = 0; r < kPairRows; ++r) {
                const Vec<float> x = splat(a[r][d]);
                total[r][0] = added<Dot>(total[r][0], x, left, w);
                total[r][1] = added<Dot>(total[r][1], x, right, w);
            }
        }
        for (int64_t r = 0; r < kPairRows; ++r) {
            store(out + r * p.padded + v, total[r][0]);
            store(out + r * p.padded + v + n, total[r][1]);
        }
    }
}

// Where a score lies among the levels: their range is cut into cells, so that few of them have to be looked at.
struct Levels {
    const float* level;
    int64_t count;
    int32_t* first;  // (kCells + 1) the first level of each cell
    float low, scale;

    explicit Levels(const CountAbove& p) : level(p.level), count(p.num_levels), first(p.first), low(p.level[0]), scale(0) {
        const float range = level[count - 1] - low;
        if (range > 1e-30f && range < 1e30f) scale = float(kCells) / range;
        int64_t next = 0;
        for (int64_t cell = 0; cell < kCells; ++cell) {
            while (next < count && cell_of(level[next]) < cell) ++next;
            first[cell] = int32_t(next);
        }
        first[kCells] = int32_t(count);
    }

    int64_t cell_of(float score) const {
        const float at = (score - low) * scale;  // may be infinite, or no number
        if (!(at >= 1)) return 0;
        return at < float(kCells) ? int64_t(at) : kCells - 1;
    }

    int64_t below(float score) const {  // how many levels are less
        if (!(score > low)) return 0;
        if (score > level[count - 1]) return count;
        const int64_t cell = cell_of(score);
        int64_t begin = first[cell], left = first[cell + 1] - begin;
        while (left > 0) {
            const int64_t half = left / 2;
            const bool less = level[begin + half] < score;
            begin = less ? begin + half + 1 : begin;
            left = less ? left - half - 1 : half;
        }
        return begin;
    }
};

inline void count_row(const CountAbove& p, const Levels& levels, int64_t row, float* score, int64_t* between, int64_t* same) {
    if (p.given_ptr)
        for (int64_t i = p.given_ptr[row]; i < p.given_ptr[row + 1]; ++i) score[p.given_col[i]] = p.given[i];
    for (int64_t i = p.pos_ptr[row]; i < p.pos_ptr[row + 1]; ++i) {
        const float looked_for = p.pos[i];
        int32_t above = 0, equal = 0;
#pragma omp simd reduction(+ : above, equal)
        for (int64_t v = 0; v < p.num_cols; ++v) {
            above += score[v] > looked_for;
            equal += score[v] == looked_for;
        }
        p.row_above[i] = above;
        p.row_same[i] = equal;
    }
    for (int64_t v = 0; v < p.num_cols; ++v) {
        const int64_t below = levels.below(score[v]);
        ++between[below];
        if (below < levels.count && levels.level[below] == score[v]) ++same[below];
    }
}

inline void count_above(const CountAbove& p) {
    const Levels levels(p);
    const int64_t tiles = (p.end - p.begin + kPairRows - 1) / kPairRows;
#pragma omp parallel num_threads(p.threads)
    {
        const int thread = omp_get_thread_num();
        float* room = p.room + thread * kPairRows * p.padded;
        int64_t* between = p.between + thread * (p.num_levels + 1);
        int64_t* same = p.same + thread * p.num_levels;
#pragma omp for schedule(dynamic, 4)
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t row = p.begin + tile * kPairRows;
            p.w ? score_rows<false>(p, row, room) : score_rows<true>(p, row, room);
            for (int64_t r = 0; r < kPairRows && row + r < p.end; ++r)
                count_row(p, levels, row + r, room + r * p.padded, between, same);
        }
    }
}

}  // namespace
