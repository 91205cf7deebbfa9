// Counter-based randomness: a number that depends on nothing but what it is keyed by.
#pragma once

#include <cstdint>

namespace {

[[gnu::always_inline]] inline uint64_t mixed(uint64_t key, int64_t id) {
    uint64_t z = key + uint64_t(id) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The i-th number of a stream, scaled to [0, bound).
[[gnu::always_inline]] inline int64_t number(uint64_t stream, int64_t i, int64_t bound) {
    return int64_t((static_cast<unsigned __int128>(mixed(stream, i)) * uint64_t(bound)) >> 64);
}

[[gnu::always_inline]] inline uint32_t row_state(uint64_t key, int64_t row) { return uint32_t(mixed(key, row)); }

[[gnu::always_inline]] inline uint32_t element_hash(uint32_t state, uint32_t column) {
    uint32_t h = state + column * 0x9E3779B9u;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) * 0x846CA68Bu;
    return h ^ (h >> 16);
}

}  // namespace
