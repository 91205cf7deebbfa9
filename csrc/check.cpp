#include "check.hpp"

#include <algorithm>

#include "chunks.hpp"

namespace {

template <typename Value, typename Unsigned>
int64_t outside(const Value* values, int64_t count, int64_t limit) {
    Unsigned most = 0;  // a negative value is the largest of all
#pragma omp parallel for simd schedule(dynamic, kChunkNumbers) reduction(max : most) if (count > 2 * kThreadedNumbers)
    for (int64_t i = 0; i < count; ++i) most = std::max(most, Unsigned(values[i]));
    const uint64_t bound = std::min(uint64_t(std::max<int64_t>(limit, 0)), uint64_t(Unsigned(-1) / 2) + 1);
    if (count == 0 || most < bound) return -1;
    return std::find_if(values, values + count, [&](Value value) { return value < 0 || value >= limit; }) - values;
}

}  // namespace

int64_t first_fall(const int64_t* values, int64_t count) {
    int falls = 0;
#pragma omp parallel for simd schedule(dynamic, kChunkNumbers) reduction(| : falls) if (count > 2 * kThreadedNumbers)
    for (int64_t i = 1; i < count; ++i) falls |= values[i] < values[i - 1];
    for (int64_t i = 1; falls && i < count; ++i)
        if (values[i] < values[i - 1]) return i - 1;
    return -1;
}

int64_t first_outside(const int32_t* values, int64_t count, int64_t limit) { return outside<int32_t, uint32_t>(values, count, limit); }
int64_t first_outside(const int64_t* values, int64_t count, int64_t limit) { return outside<int64_t, uint64_t>(values, count, limit); }

int64_t first_unsorted(const int64_t* indptr, const int32_t* indices, int64_t num_rows) {
    int64_t first = num_rows;
#pragma omp parallel for schedule(dynamic, chunk_of(num_rows, indptr[num_rows])) reduction(min : first) if (indptr[num_rows] > kThreadedNumbers)
    for (int64_t r = 0; r < num_rows; ++r) {
        bool falls = false;
        for (int64_t e = indptr[r] + 1; e < indptr[r + 1]; ++e) falls |= indices[e] < indices[e - 1];
        if (falls) first = std::min(first, r);
    }
    return first < num_rows ? first : -1;
}
