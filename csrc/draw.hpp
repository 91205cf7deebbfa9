// Edges of rows that follow each other, drawn several rows at a time: a row's edges are bits, and a lane draws for a row.
// Compiled once per instruction set.
#pragma once

#include <cstdint>

#include "hash.hpp"
#include "sample.hpp"
#include "vector.hpp"

#if SIAFU_VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kRowsAhead = 16;  // rows between a prefetch of their edges and the use of it
constexpr int kWays = 3;        // rows of up to 64, 128 and 256 edges
constexpr int kLanes = 4;

// What is known of some rows before their edges are read.
struct Stretch {
    int64_t begin[kRowsAtOnce];
    int64_t degree[kRowsAtOnce + kLanes];
    uint64_t stream[kRowsAtOnce + kLanes];
    uint64_t mark[kRowsAtOnce + kLanes][kMarkWords];  // the edges that are drawn, as bits
    int32_t marked[kWays][kRowsAtOnce + kLanes];      // the rows whose edges are marked so
    int64_t num_marked[kWays];
};

#if SIAFU_VECTOR_BYTES >= 32
typedef uint64_t Four __attribute__((vector_size(32)));

[[gnu::always_inline]] inline Four bit(Four place) { return (Four)_mm256_sllv_epi64(_mm256_set1_epi64x(1), (__m256i)place); }  // 0 from 64 on

// number() of four streams; the bounds are below 2^32.
[[gnu::always_inline]] inline Four four_numbers(Four z, Four bound) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const Four low = (Four)_mm256_mul_epu32((__m256i)z, (__m256i)bound), high = (Four)_mm256_mul_epu32((__m256i)(z >> 32), (__m256i)bound);
    return ((low >> 32) + high) >> 32;
}

// Marks `fanout` edges of each of some rows, which have more, and at most 64 W, by Floyd's method: where a number was drawn
// before, the largest one, which was not, takes its place.
template <int W>
void mark(Stretch& a, const int32_t* rows, int64_t num_rows, int64_t fanout) {
    for (int64_t first = 0; first < num_rows; first += kLanes) {
        const int32_t* r = rows + first;
        Four stream{a.stream[r[0]], a.stream[r[1]], a.stream[r[2]], a.stream[r[3]]}, taken[W] = {};
        Four top = Four{uint64_t(a.degree[r[0]]), uint64_t(a.degree[r[1]]), uint64_t(a.degree[r[2]]), uint64_t(a.degree[r[3]])} - fanout;
        for (int64_t i = 0; i < fanout; ++i, top += 1, stream += 0x9E3779B97F4A7C15ull) {
            const Four pick = four_numbers(stream, top + 1);
            Four again{};
            for (int w = 0; w < W; ++w) again |= bit(pick - 64 * w) & taken[w];
            const Four fresh = (Four)(again == 0), drawn = (pick & fresh) | (top & ~fresh);
            for (int w = 0; w < W; ++w) taken[w] |= bit(drawn - 64 * w);
        }
        for (int lane = 0; lane < kLanes; ++lane)
            for (int w = 0; w < W; ++w) a.mark[r[lane]][w] = taken[w][lane];
    }
}

struct Packings {
    uint8_t places[256][8];
};

// For each byte, the places of its bits.
constexpr Packings packings() {
    Packings out{};
    for (int byte = 0; byte < 256; ++byte)
        for (int bit = 0, count = 0; bit < 8; ++bit)
            if (byte >> bit & 1) out.places[byte][count++] = uint8_t(bit);
    return out;
}

alignas(64) constexpr Packings kPackings = packings();

// Those of eight values whose bits are set, packed; what follows them is overwritten. Returns where they end.
[[gnu::always_inline]] inline int32_t* pack(const int32_t* from, uint64_t byte, int32_t* out) {
    const __m256i places = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPackings.places[byte])));
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(values, places));
    return out + __builtin_popcountll(byte);
}

// The marked ones of up to 64 values. Without a branch up to 32; nothing is read that lies eight or more behind the last.
[[gnu::always_inline]] inline int32_t* pack_all(const int32_t* from, int64_t degree, uint64_t mark, int32_t* out) {
    const auto eight = [&](int i) __attribute__((always_inline)) {
        out = pack(degree > 8 * i ? from + 8 * i : from, mark >> 8 * i & 255, out);
    };
    eight(0), eight(1), eight(2), eight(3);
    if (degree > 32) eight(4), eight(5), eight(6), eight(7);
    return out;
}
#else
template <int W>
void mark(Stretch& a, const int32_t* rows, int64_t num_rows, int64_t fanout) {
    for (const int32_t* row = rows; row < rows + num_rows; ++row) {
        uint64_t taken[W] = {};
        for (int64_t i = 0, top = a.degree[*row] - fanout; i < fanout; ++i, ++top) {
            const int64_t pick = number(a.stream[*row], i, top + 1);
            const int64_t again = -int64_t(taken[pick >> 6] >> (pick & 63) & 1), drawn = pick ^ ((pick ^ top) & again);
            taken[drawn >> 6] |= uint64_t(1) << (drawn & 63);
        }
        for (int w = 0; w < W; ++w) a.mark[*row][w] = taken[w];
    }
}
#endif

// Looks rows up, and sorts out those whose edges are to be marked; others are taken whole, or have very many edges.
[[gnu::always_inline]] inline void look_up(const Draw& a, int64_t first, int64_t count, uint64_t key, Stretch& s) {
    int64_t num[kWays] = {};
    for (int64_t i = 0; i < count; ++i) {
        const int64_t soon = first + i + 2 * kRowsAhead;
        if (soon < a.num_rows) {
            __builtin_prefetch(a.indptr + a.rows[soon]);
            if (a.id) __builtin_prefetch(a.id + a.rows[soon]);
        }
        const int64_t row = a.rows[first + i], degree = a.indptr[row + 1] - a.indptr[row];
        s.begin[i] = a.indptr[row], s.degree[i] = degree;
        s.stream[i] = mixed(key, a.id ? a.id[row] : row);
        s.mark[i][0] = degree ? ~uint64_t(0) >> ((64 - degree) & 63) : 0;  // taken whole, if it has at most 64
        const bool some = !a.whole(degree) & !a.replace;
        for (int way = 0; way < kWays; ++way) {
            s.marked[way][num[way]] = int32_t(i);
            num[way] += some & (degree <= 64 << way) & (way == 0 || degree > 32 << way);
        }
    }
    for (int way = 0; way < kWays; ++way) {
        s.num_marked[way] = num[way];
        for (int lane = 0; lane < kLanes; ++lane) s.marked[way][num[way] + lane] = int32_t(kRowsAtOnce + lane);  // drawn for nobody
    }
    for (int lane = 0; lane < kLanes; ++lane) s.degree[kRowsAtOnce + lane] = 64, s.stream[kRowsAtOnce + lane] = 0;
}

// Fetches the edges of a row, all of them if they are few. It must be inlined: a function that does nothing but fetch may
// do nothing in the compiler's eyes, and calls of it were seen to be left out.
[[gnu::always_inline]] inline void fetch(const int32_t* row, int64_t degree) {
    const int64_t last = ((degree + 7) & ~int64_t(7)) - 1;
    const auto first = reinterpret_cast<intptr_t>(row);  // a number: nothing may be there
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const void*>(first + (i < last ? i : last) * int64_t(sizeof *row)));
    };
    at(0), at(16), at(32);
    for (int64_t i = 48; i < 64 * kMarkWords && i < last + 16; i += 16) at(i);
}

// The marked edges of a row; returns where they end.
inline int32_t* read_marked(const Draw& a, int64_t begin, const uint64_t* words, int32_t* out, int64_t* edge) {
    uint64_t left = words[0];
    for (int64_t k = 0, word = 0; k < a.fanout; ++k, left &= left - 1) {
        while (!left) left = words[++word];
        const int64_t at = begin + word * 64 + __builtin_ctzll(left);
        out[k] = a.indices[at];
        if (edge) edge[k] = at;
    }
    return out + a.fanout;
}

inline int32_t* read_whole(const Draw& a, int64_t begin, int64_t degree, int32_t* out, int64_t* edge) {
    if (degree) __builtin_memcpy(out, a.indices + begin, size_t(degree) * sizeof *out);
    for (int64_t k = 0; edge && k < degree; ++k) edge[k] = begin + k;
    return out + degree;
}

// What is drawn for at most kRowsAtOnce rows of one group: see DrawRows.
inline int64_t draw_rows(const Draw& a, int64_t first, int64_t count, uint64_t key, int32_t* out, int64_t* edge) {
    Stretch s;
    look_up(a, first, count, key, s);
    for (int64_t i = 0; i < count && i < kRowsAhead; ++i) fetch(a.indices + s.begin[i], s.degree[i]);
    mark<1>(s, s.marked[0], s.num_marked[0], a.fanout);
    mark<2>(s, s.marked[1], s.num_marked[1], a.fanout);
    mark<4>(s, s.marked[2], s.num_marked[2], a.fanout);
    int32_t* end = out;
    for (int64_t i = 0; i < count; ++i) {
        if (i + kRowsAhead < count) fetch(a.indices + s.begin[i + kRowsAhead], s.degree[i + kRowsAhead]);
        const int64_t begin = s.begin[i], degree = s.degree[i];
        int64_t* places = edge ? edge + (end - out) : nullptr;
#if SIAFU_VECTOR_BYTES >= 32
        if (degree <= 64 && !edge && !a.replace && begin + 64 <= a.num_edges) {
            end = pack_all(a.indices + begin, degree, s.mark[i][0], end);
            continue;
        }
#endif
        if (a.whole(degree)) end = read_whole(a, begin, degree, end, places);
        else if (a.replace || degree > 64 * kMarkWords) end = read_many(a, s.stream[i], begin, degree, end, places);
        else end = read_marked(a, begin, s.mark[i], end, places);
    }
    return end - out;
}

}  // namespace
