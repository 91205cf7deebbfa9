// Counts of the scores of all pairs of two sets of rows that lie above some scores; nothing of size rows x columns exists.
//
// Scores are computed in tiles that stay in the cache nearest to the core, and counted there. A row or column may stand for
// several equal ones: each of its pairs then counts as often. Counts are whole numbers, so threads do not matter.
#pragma once

#include <omp.h>

#include "levels.hpp"
#include "pairs.hpp"

struct CountAbove {
    const float* a;            // (…, width)
    const float* b;            // (…, width)
    const float* w;            // (width) or null
    int64_t width;
    const int32_t* row;        // (num_rows) rows of a
    const int32_t* row_times;  // (num_rows) for how many rows each of them stands
    int64_t num_rows;
    const int32_t* col;        // (num_cols) rows of b
    const int32_t* col_times;  // (padded) the same, then zeros
    int64_t num_cols, padded;  // padded: a multiple of kPairColumns
    const int64_t* pos_ptr;    // (num_rows + 1)
    const float* pos;          // the scores that are looked for, row by row
    const float* level;        // (num_levels) scores that are looked for among all pairs, ascending, each once
    int64_t num_levels;        // 0: rows alone are counted
    int threads;
    int32_t* first;            // (num_cells + 1) room, see Levels
    uint8_t* marked;           // (num_cells) room
    int64_t num_cells;
    float* panels;             // (padded / kPairColumns, width, kPairColumns) room
    float* tiles;              // (threads, kChunkRows, width) room
    uint32_t* by_cell;         // (threads, num_cells) zeros
    int64_t* between;          // (threads, num_levels + 1) zeros: scores by the number of levels below them
    int64_t* same;             // (threads, num_levels) zeros: scores equal to a level
    int64_t* row_above;        // (positives) zeros
    int64_t* row_same;
};

// Pairs whose scores are others than those computed: the counts of the latter are exchanged.
struct ReplaceScores {
    const int64_t* indptr;   // (num_rows + 1) the pairs of each row
    const float* given;      // (pairs) the scores that stand
    const float* computed;   // (pairs) those that were counted
    int64_t begin, end;      // rows
    const int64_t* pos_ptr;  // (num_rows + 1), pos, level: see CountAbove
    const float* pos;
    const float* level;
    int64_t num_levels;
    int threads;
    int32_t* first;
    uint8_t* marked;
    int64_t num_cells;
    int64_t* between;
    int64_t* same;
    int64_t* row_above;
    int64_t* row_same;
};

namespace {

constexpr int64_t kPairRows = 8, kPairColumns = 32, kPanels = 16, kChunkRows = 128;
constexpr int64_t kTileColumns = kPanels * kPairColumns;
static_assert(kTileColumns <= kMostScores);

// A NaN of a + b then has a negative sign, see relu_of_sum.
inline float without_sign_of_nan(float x) { return x == x ? x : -__builtin_nanf(""); }

// Some rows side by side: out[d][i] is column d of the i-th; zeros where there is none.
inline void pack(const float* x, const int32_t* row, int64_t count, int64_t side, int64_t width, float* out) {
    for (int64_t d = 0; d < width; ++d)
        for (int64_t i = 0; i < side; ++i) out[d * side + i] = i < count ? without_sign_of_nan(x[row[i] * width + d]) : 0.0f;
}

// A number in all lanes. splat() adds it to zeros, which takes an instruction.
[[gnu::always_inline]] inline Vec<float> repeat(float value) { return value - Vec<float>{}; }

// The scores of kPairRows packed rows with kPairColumns packed columns; rows of `out` are kTileColumns apart.
template <bool Dot>
void score_tile(const float* a, const float* b, const float* w, int64_t width, float* out) {
    constexpr int64_t n = lanes<float>, rows = n < 16 ? kPairRows / 2 : kPairRows;
    for (int64_t row = 0; row < kPairRows; row += rows)
        for (int64_t v = 0; v < kPairColumns; v += 2 * n) {
            Vec<float> total[rows][2]{};
            for (int64_t d = 0; d < width; ++d) {
                const Vec<float> left = load(b + d * kPairColumns + v), right = load(b + d * kPairColumns + v + n);
                const Vec<float> weight = repeat(Dot ? 0.0f : w[d]);
#pragma GCC unroll 8
                for (int64_t r = 0; r < rows; ++r) {
                    const Vec<float> x = repeat(a[d * kPairRows + row + r]);
                    if constexpr (Dot) {
                        total[r][0] = total[r][0] + x * left;
                        total[r][1] = total[r][1] + x * right;
                    } else {
                        total[r][0] = total[r][0] + relu_of_sum(x + left) * weight;
                        total[r][1] = total[r][1] + relu_of_sum(x + right) * weight;
                    }
                }
            }
#pragma GCC unroll 8
            for (int64_t r = 0; r < rows; ++r) {
                store(out + (row + r) * kTileColumns + v, total[r][0]);
                store(out + (row + r) * kTileColumns + v + n, total[r][1]);
            }
        }
}

// Adds to the counts of one row's positives.
inline void count_row(const CountAbove& p, int64_t row, const float* score, const int32_t* times, int64_t size) {
    for (int64_t i = p.pos_ptr[row]; i < p.pos_ptr[row + 1]; ++i) {
        const Vec<float> looked_for = splat(p.pos[i]);
        Vec<int32_t> above{}, equal{};
        for (int64_t v = 0; v < size; v += lanes<float>) {
            const Vec<float> found = load(score + v);
            const Vec<int32_t> each = load(times + v);
            above += (found > looked_for) & each;
            equal += (found == looked_for) & each;
        }
        p.row_above[i] += sum_lanes<int32_t>(above);
        p.row_same[i] += sum_lanes<int32_t>(equal);
    }
}

// Counts the pairs of some rows, at most kChunkRows, with all columns.
inline void count_rows(const CountAbove& p, const Levels& levels, Tally& tally, int64_t begin, int64_t end, float* tiles) {
    alignas(64) float score[kPairRows * kTileColumns];
    for (int64_t row = begin; row < end; row += kPairRows)
        pack(p.a, p.row + row, end - row, kPairRows, p.width, tiles + (row - begin) * p.width);
    for (int64_t col = 0; col < p.padded; col += kTileColumns) {
        const int64_t size = p.padded - col < kTileColumns ? p.padded - col : kTileColumns;
        for (int64_t row = begin; row < end; row += kPairRows) {
            const float* a = tiles + (row - begin) * p.width;
            for (int64_t v = 0; v < size; v += kPairColumns) {
                const float* b = p.panels + (col + v) * p.width;
                p.w ? score_tile<false>(a, b, p.w, p.width, score + v) : score_tile<true>(a, b, p.w, p.width, score + v);
            }
            for (int64_t r = 0; r < kPairRows && row + r < end; ++r) {
                count_row(p, row + r, score + r * kTileColumns, p.col_times + col, size);
                if (levels.count) levels.add_row(tally, score + r * kTileColumns, p.col_times + col, size, p.row_times[row + r]);
            }
        }
    }
}

inline void count_above(const CountAbove& p) {
    const Levels levels(p.level, p.num_levels, p.first, p.marked, p.num_cells);
    const int64_t share = (p.num_rows / (4 * p.threads) + kPairRows) / kPairRows * kPairRows;
    const int64_t chunk = share < kChunkRows ? share : kChunkRows;
#pragma omp parallel num_threads(p.threads)
    {
        const int thread = omp_get_thread_num();
        Tally tally{p.by_cell + thread * p.num_cells, p.between + thread * (p.num_levels + 1), p.same + thread * p.num_levels, 0};
#pragma omp for schedule(static)
        for (int64_t col = 0; col < p.padded; col += kPairColumns)
            pack(p.b, p.col + col, p.num_cols - col, kPairColumns, p.width, p.panels + col * p.width);
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < p.num_rows; row += chunk)
            count_rows(p, levels, tally, row, row + chunk < p.num_rows ? row + chunk : p.num_rows,
                       p.tiles + thread * kChunkRows * p.width);
        if (levels.count) levels.finish(tally);
    }
}

inline void replace_scores(const ReplaceScores& p) {
    const Levels levels(p.level, p.num_levels, p.first, p.marked, p.num_cells);
#pragma omp parallel num_threads(p.threads)
    {
        const int thread = omp_get_thread_num();
        const Tally tally{nullptr, p.between + thread * (p.num_levels + 1), p.same + thread * p.num_levels, 0};
#pragma omp for schedule(dynamic, 64)
        for (int64_t row = p.begin; row < p.end; ++row) {
            const int64_t first = p.indptr[row], last = p.indptr[row + 1];
            for (int64_t i = p.pos_ptr[row]; i < p.pos_ptr[row + 1]; ++i)
                for (int64_t pair = first; pair < last; ++pair) {
                    p.row_above[i] += (p.given[pair] > p.pos[i]) - (p.computed[pair] > p.pos[i]);
                    p.row_same[i] += (p.given[pair] == p.pos[i]) - (p.computed[pair] == p.pos[i]);
                }
            for (int64_t pair = first; levels.count && pair < last; ++pair) {
                levels.add(tally, p.computed[pair], levels.cell_of(p.computed[pair]), -1);
                levels.add(tally, p.given[pair], levels.cell_of(p.given[pair]), 1);
            }
        }
    }
}

}  // namespace
