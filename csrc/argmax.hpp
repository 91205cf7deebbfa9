// The column of the largest number of rows picked by number; of equal ones the first.
#pragma once

#include <cstdint>

#include "chunks.hpp"

struct ArgmaxRows {
    const float* x;        // (num_rows, width), width at least 1
    int64_t width;
    const int64_t* index;  // (count)
    int64_t count;
    int64_t* out;          // (count)
};

namespace {

inline void argmax_rows(const ArgmaxRows& a) {
    Team team;
#pragma omp parallel if (a.count * a.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, chunk_of(a.count, a.count * a.width)) nowait
        for (int64_t i = 0; i < a.count; ++i) {
            const float* row = a.x + a.index[i] * a.width;
            float top = row[0];
#pragma omp simd reduction(max : top)
            for (int64_t c = 1; c < a.width; ++c) top = row[c] > top ? row[c] : top;
            int64_t column = 0;
            while (column + 1 < a.width && row[column] != top) ++column;
            a.out[i] = column;
        }
    }
}

}  // namespace
