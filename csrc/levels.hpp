// Levels: some scores, ascending, each once, and counts of other scores by the number of levels below them.
#pragma once

#include "vector.hpp"

namespace {

constexpr int64_t kMostScores = 512;  // that are added at once

// Counts of one thread.
struct Tally {
    uint32_t* by_cell;  // (num_cells) zeros; of cells without a level
    int64_t* between;   // (num_levels + 1) scores by the number of levels below them
    int64_t* same;      // (num_levels) scores equal to a level
    uint64_t bound;     // no number of by_cell is greater
};

// The range of the levels is cut into cells of equal width, so that few levels have to be looked at for a score, and none for
// most. The first cell is for scores below all levels, the last for scores above all.
struct Levels {
    const float* level;
    int64_t count;
    int32_t* first;   // (num_cells + 1) the first level of each cell
    uint8_t* marked;  // (num_cells) 1 where a cell has a level
    int64_t num_cells;
    float low, high, scale, most;

    Levels(const float* level, int64_t count, int32_t* first, uint8_t* marked, int64_t num_cells)
        : level(level), count(count), first(first), marked(marked), num_cells(num_cells), low(0), high(0), scale(0) {
        most = float(num_cells - 3);
        if (!count) return;
        low = level[0], high = level[count - 1];
        const float range = high - low;
        if (range > 1e-30f && range < 1e30f) scale = float(num_cells - 2) / range;
        int64_t next = 0;
        for (int64_t cell = 0; cell < num_cells; ++cell) {
            while (next < count && cell_of(level[next]) < cell) ++next;
            first[cell] = int32_t(next);
        }
        first[num_cells] = int32_t(count);
        for (int64_t cell = 0; cell < num_cells; ++cell) marked[cell] = first[cell] < first[cell + 1];
    }

    int32_t cell_of(float score) const {
        if (!(score >= low)) return 0;
        if (score > high) return int32_t(num_cells - 1);
        const float at = (score - low) * scale;  // no number if a level is infinite
        return 1 + (at > 0 ? at < most ? int32_t(at) : int32_t(most) : 0);
    }

    [[gnu::always_inline]] Vec<int32_t> cells_of(Vec<float> score) const {
        const Vec<float> zero{}, last = splat(most);
        Vec<float> at = (score - splat(low)) * splat(scale);
        at = at > zero ? at : zero;
        at = at < last ? at : last;
        const Vec<int32_t> cell = __builtin_convertvector(at, Vec<int32_t>) + 1;
        return score > splat(high) ? splat(int32_t(num_cells - 1)) : cell & (score >= splat(low));
    }

    // How many levels are less than a score of a cell.
    [[gnu::always_inline]] int64_t below(float score, int32_t cell) const {
        int64_t begin = first[cell], left = first[cell + 1] - begin;
        while (left > 1) {
            const int64_t half = left / 2;
            const bool less = level[begin + half] < score;
            begin = less ? begin + half + 1 : begin;
            left = less ? left - half - 1 : half;
        }
        return begin + (left > 0 && level[begin] < score);
    }

    [[gnu::always_inline]] void add(const Tally& tally, float score, int32_t cell, int64_t times) const {
        const int64_t less = below(score, cell);
        tally.between[less] += times;
        if (less < count) tally.same[less] += level[less] == score ? times : 0;
    }

    // Adds some scores, a multiple of a vector, each so many times.
    void add_row(Tally& tally, const float* score, const int32_t* each, int64_t size, int64_t times) const {
        uint64_t total = 0;
        for (int64_t k = 0; k < size; ++k) total += uint64_t(each[k]);
        total *= uint64_t(times);
        if (total > UINT32_MAX) {
            for (int64_t k = 0; k < size; ++k) add(tally, score[k], cell_of(score[k]), each[k] * times);
            return;
        }
        if (tally.bound + total > UINT32_MAX) finish(tally);
        tally.bound += total;
        alignas(64) uint32_t weight[kMostScores];
        if (times != 1)
            for (int64_t k = 0; k < size; ++k) weight[k] = uint32_t(each[k]) * uint32_t(times);
        add_weighted(tally, score, times == 1 ? (const uint32_t*)each : weight, size);
    }

    void add_weighted(const Tally& tally, const float* score, const uint32_t* weight, int64_t size) const {
        alignas(64) int32_t cell[kMostScores];
        int32_t held[kMostScores + 1], vectors[kMostScores / lanes<float>];
        int64_t num_held = 0, num_vectors = 0;
        for (int64_t v = 0; v < size; v += lanes<float>) {
            const Vec<int32_t> found = cells_of(load(score + v));
            store(cell + v, found);
            vectors[num_vectors] = int32_t(v);
            num_vectors += any(found);
        }
        uint32_t* const by_cell = tally.by_cell;
        const uint8_t* const has_level = marked;
        for (int64_t i = 0; i < num_vectors; ++i)
#pragma GCC unroll 16
            for (int64_t lane = 0; lane < lanes<float>; ++lane) {
                const int64_t k = vectors[i] + lane;
                by_cell[cell[k]] += weight[k];
                held[num_held] = int32_t(k);
                num_held += has_level[cell[k]];
            }
        for (int64_t i = 0; i < num_held; ++i) add(tally, score[held[i]], cell[held[i]], weight[held[i]]);
    }

    // Hands the counts of cells on.
    void finish(Tally& tally) const {
        for (int64_t cell = 0; cell < num_cells; ++cell) {
            if (!marked[cell]) tally.between[first[cell]] += tally.by_cell[cell];
            tally.by_cell[cell] = 0;
        }
        tally.bound = 0;
    }
};

}  // namespace
