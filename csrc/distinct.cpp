#include "distinct.hpp"

#include <cstring>

namespace {

uint64_t hash_of(const float* row, int64_t width) {
    uint64_t hash = 0x9E3779B97F4A7C15ull, bits = 0;
    for (int64_t d = 0; d < width; d += 2) {
        std::memcpy(&bits, row + d, d + 1 < width ? 8 : 4);
        hash = (hash ^ bits) * 0xBF58476D1CE4E5B9ull;
        hash ^= hash >> 32;
    }
    return hash;
}

}  // namespace

int64_t distinct_rows(const float* x, int64_t num_rows, int64_t width, uint64_t* hash, int32_t* slot, int64_t num_slots,
                      int32_t* group, int32_t* first) {
#pragma omp parallel for schedule(static) if (num_rows * width > 1 << 16)
    for (int64_t row = 0; row < num_rows; ++row) hash[row] = hash_of(x + row * width, width);
    for (int64_t i = 0; i < num_slots; ++i) slot[i] = -1;
    int64_t count = 0;
    const auto equal = [&](int64_t row, int64_t other) {
        return hash[row] == hash[other] && (!width || !std::memcmp(x + row * width, x + other * width, size_t(width) * sizeof(float)));
    };
    for (int64_t row = 0; row < num_rows; ++row) {
        int64_t at = int64_t(hash[row] & uint64_t(num_slots - 1));
        while (slot[at] >= 0 && !equal(row, first[slot[at]])) at = (at + 1) & (num_slots - 1);
        if (slot[at] < 0) first[count] = int32_t(row), slot[at] = int32_t(count++);
        group[row] = slot[at];
    }
    return count;
}
