// Levels: some scores, ascending, each once, and counts of other scores by the number of levels below them.
#pragma once

#include "vector.hpp"

namespace {

// Cells of equal width between the lowest and the highest level; the first is for scores below all levels, the last above all.
constexpr int64_t kInnerCells = 1 << 12, kCells = kInnerCells + 2;

// Counts of one thread.
struct Tally {
    int64_t* by_cell;  // (kCells) of cells without a level
    int64_t* between;  // (num_levels + 1) scores by the number of levels below them
    int64_t* same;     // (num_levels) scores equal to a level
};

struct Levels {
    const float* level;
    int64_t count;
    int32_t* first;   // (kCells + 1) the first level of each cell
    uint8_t* marked;  // (kCells) 1 where a cell has a level
    float low, high, scale;

    Levels(const float* level, int64_t count, int32_t* first, uint8_t* marked)
        : level(level), count(count), first(first), marked(marked), low(0), high(0), scale(0) {
        if (!count) return;
        low = level[0], high = level[count - 1];
        const float range = high - low;
        if (range > 1e-30f && range < 1e30f) scale = float(kInnerCells) / range;
        int64_t next = 0;
        for (int64_t cell = 0; cell < kCells; ++cell) {
            while (next < count && cell_of(level[next]) < cell) ++next;
            first[cell] = int32_t(next);
        }
        first[kCells] = int32_t(count);
        for (int64_t cell = 0; cell < kCells; ++cell) marked[cell] = first[cell] < first[cell + 1];
    }

    int32_t cell_of(float score) const {
        if (!(score >= low)) return 0;
        if (score > high) return int32_t(kCells - 1);
        const float at = (score - low) * scale;  // no number if a level is infinite
        return 1 + (at >= 1 ? at < float(kInnerCells) ? int32_t(at) : int32_t(kInnerCells - 1) : 0);
    }

    [[gnu::always_inline]] Vec<int32_t> cells_of(Vec<float> score) const {
        const Vec<float> zero{}, most = splat(float(kInnerCells - 1));
        Vec<float> at = (score - splat(low)) * splat(scale);
        at = at > zero ? at : zero;
        at = at < most ? at : most;
        Vec<int32_t> cell = __builtin_convertvector(at, Vec<int32_t>) + 1;
        cell &= score >= splat(low);
        return score > splat(high) ? splat(int32_t(kCells - 1)) : cell;
    }

    // How many levels are less than a score of a cell.
    int64_t below(float score, int32_t cell) const {
        int64_t begin = first[cell], left = first[cell + 1] - begin;
        while (left > 0) {
            const int64_t half = left / 2;
            const bool less = level[begin + half] < score;
            begin = less ? begin + half + 1 : begin;
            left = less ? left - half - 1 : half;
        }
        return begin;
    }

    void add(const Tally& tally, float score, int32_t cell, int64_t times) const {
        const int64_t less = below(score, cell);
        tally.between[less] += times;
        if (less < count && level[less] == score) tally.same[less] += times;
    }

    // Adds some scores, a multiple of a vector, at most 256, each so many times.
    void add_row(const Tally& tally, const float* score, const int32_t* weight, int64_t size, int64_t times) const {
        alignas(64) int32_t cell[256];
        int32_t held[257], num_held = 0;
        for (int64_t v = 0; v < size; v += lanes<float>) {
            const Vec<int32_t> found = cells_of(load(score + v));
            store(cell + v, found);
            if (!any(found)) continue;
            for (int64_t k = v; k < v + lanes<float>; ++k) {
                tally.by_cell[cell[k]] += weight[k] * times;
                held[num_held] = int32_t(k);
                num_held += marked[cell[k]];
            }
        }
        for (int64_t i = 0; i < num_held; ++i) add(tally, score[held[i]], cell[held[i]], weight[held[i]] * times);
    }

    // Counts scores of cells without a level once for all.
    void finish(const Tally& tally) const {
        for (int64_t cell = 0; cell < kCells; ++cell)
            if (!marked[cell]) tally.between[first[cell]] += tally.by_cell[cell];
    }
};

}  // namespace
