// Rows picked by number.
#pragma once

#include "chunks.hpp"
#include "vector.hpp"

struct Gather {
    const char* rows;      // (num_rows, row_bytes)
    const char* more;      // rows that stand after those
    int64_t num_rows;
    int64_t row_bytes;
    const int64_t* index;  // (num_out)
    int64_t num_out;
    char* out;             // (num_out, row_bytes)
};

template <typename X>
struct GatherWiden {
    const X* rows;      // (num_rows, width)
    int64_t width;
    const int64_t* index;  // (num_out)
    int64_t num_out;
    float* out;            // (num_out, width)
};

namespace {

constexpr int64_t kGatherAhead = 8;  // rows between a prefetch and its use

inline void gather(const Gather& a) {
    if (!a.row_bytes) return;
    const auto row = [&a](int64_t i) {
        const int64_t at = a.index[i];
        return at < a.num_rows ? a.rows + at * a.row_bytes : a.more + (at - a.num_rows) * a.row_bytes;
    };
    const int64_t numbers = a.num_out * ((a.row_bytes + 3) / 4);
    Team team;
#pragma omp parallel if (numbers > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, chunk_of(a.num_out, numbers)) nowait
        for (int64_t i = 0; i < a.num_out; ++i) {
            if (i + kGatherAhead < a.num_out) {
                const char* next = row(i + kGatherAhead);
                for (int64_t b = 0; b < a.row_bytes && b < 512; b += 64) __builtin_prefetch(next + b);
            }
            __builtin_memcpy(a.out + i * a.row_bytes, row(i), size_t(a.row_bytes));
        }
    }
}

template <typename X>
void gather_widen(const GatherWiden<X>& a) {
    Team team;
#pragma omp parallel if (a.num_out * a.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, chunk_of(a.num_out, a.num_out * a.width)) nowait
        for (int64_t i = 0; i < a.num_out; ++i) {
            const X* row = a.rows + a.index[i] * a.width;
#pragma omp simd
            for (int64_t f = 0; f < a.width; ++f) a.out[i * a.width + f] = widen(row[f]);
        }
    }
}

}  // namespace
