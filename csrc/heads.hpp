// Rows of several heads, and the batches of edges that attention works on.
//
// A row is cut into vectors head by head. Where the width of a head is no multiple of a vector, its last vector starts
// early and overlaps the one before. Rows that stay near the registers (sums, the row that all edges share) are kept
// packed, one slot a vector: sums may then hold a column twice, and a factor of a dot product has its second copy zeroed.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "exp.hpp"
#include "hash.hpp"
#include "spmm.hpp"

template <typename T>
struct Rows {
    T* data;
    int64_t stride;  // elements from one row to the next
};

struct Heads {
    int64_t count, width;
};

// An edge's head is dropped where the hash of (key, id of its destination, id of its source, head) is below a threshold.
template <typename T>
struct EdgeDropout {
    const int64_t* node_id;  // (num_src) or null: the row number
    uint64_t key;
    uint32_t threshold;      // 0 drops none
    T scale;                 // of what is kept
};

constexpr int64_t kMaxHeads = 512;

namespace {

constexpr int kGroup = 4;          // rows read side by side
constexpr int kEdgesAhead = 8;     // edges between a prefetch and its use
constexpr int64_t kBatch = 64;     // edges whose scores are computed together
constexpr int64_t kScores = 1024;  // edges x heads of a batch

template <typename T>
[[gnu::always_inline]] inline T* row_of(Rows<T> rows, int64_t i) {
    return rows.data + i * rows.stride;
}

template <typename T>
[[gnu::always_inline]] inline int64_t packed_size(Heads heads) {
    return heads.count * vectors_in<T>(heads.width) * lanes<T>;
}

// The column, within a head, at which vector v starts.
template <typename T>
[[gnu::always_inline]] inline int64_t column_of(Heads heads, int64_t v) {
    return std::min(v * lanes<T>, std::max<int64_t>(heads.width - lanes<T>, 0));
}

// A head narrower than a vector is read element by element.
template <bool Narrow, typename T>
[[gnu::always_inline]] inline Vec<T> load_head(const T* from, int64_t width) {
    if constexpr (!Narrow) return load(from);
    T whole[lanes<T>] = {};
    for (int64_t f = 0; f < width; ++f) whole[f] = from[f];
    return load(whole);
}

template <bool Narrow, typename T>
[[gnu::always_inline]] inline void store_head(T* to, Vec<T> value, int64_t width) {
    if constexpr (!Narrow) return store(to, value);
    T whole[lanes<T>];
    store(whole, value);
    for (int64_t f = 0; f < width; ++f) to[f] = whole[f];
}

// visit(slot, column): slot counts elements of a packed row, column those of a row.
template <typename T, typename Visit>
[[gnu::always_inline]] inline void each_vector(Heads heads, const Visit& visit) {
    const int64_t vectors = vectors_in<T>(heads.width);
    int64_t slot = 0;
    for (int64_t h = 0; h < heads.count; ++h)
        for (int64_t v = 0; v < vectors; ++v, slot += lanes<T>) visit(slot, h * heads.width + column_of<T>(heads, v));
}

template <bool Narrow, typename T>
void pack(Heads heads, const T* row, T* packed) {
    each_vector<T>(heads, [&](int64_t slot, int64_t column) {
        store(packed + slot, load_head<Narrow>(row + column, heads.width));
    });
}

// Zeroes every second copy of a column, so that a dot product counts it once.
template <typename T>
void zero_copies(Heads heads, T* packed) {
    const int64_t vectors = vectors_in<T>(heads.width), copies = std::max<int64_t>(vectors * lanes<T> - heads.width, 0);
    if (vectors < 2) return;  // what is beyond a narrow head is zero already
    for (int64_t h = 0; h < heads.count; ++h) {
        T* last = packed + ((h + 1) * vectors - 1) * lanes<T>;
        for (int64_t i = 0; i < copies; ++i) last[i] = T(0);
    }
}

template <bool Narrow, typename T>
void unpack(Heads heads, const T* packed, T* row) {
    each_vector<T>(heads, [&](int64_t slot, int64_t column) {
        store_head<Narrow>(row + column, load(packed + slot), heads.width);
    });
}

// Packed rows of one thread; to be freed with std::free. No exceptions: each instruction set has its own copy of all code.
template <typename T>
T* new_packed(Heads heads, int64_t rows) {
    const size_t bytes = (size_t(rows * packed_size<T>(heads)) * sizeof(T) + 63) / 64 * 64;
    void* packed = std::aligned_alloc(64, bytes);
    if (!packed) __builtin_trap();
    return static_cast<T*>(packed);
}

template <typename T>
[[gnu::always_inline]] inline T sum_across(Vec<T> v) {
    typedef typename std::conditional<sizeof(T) == 4, int32_t, int64_t>::type Lane;
    Vec<Lane> at;
    for (int i = 0; i < lanes<T>; ++i) at[i] = i;
#pragma GCC unroll 4
    for (int half = lanes<T> / 2; half > 0; half /= 2) v += __builtin_shuffle(v, at ^ Lane(half));
    return v[0];
}

[[gnu::always_inline]] inline void prefetch(const void* from, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b);
}

// Edges of one row of a CSR, as many as are worked on together.
struct Batch {
    int64_t size;
    int64_t row[kBatch + kEdgesAhead];  // the other end of each edge; beyond size, those that come next
    int64_t edge[kBatch];               // its place in the CSR, -1 for the loop
};

[[gnu::always_inline]] inline int64_t batch_capacity(int64_t heads) { return std::min(kBatch, kScores / heads); }

// Cuts a row's edges into batches: the loop first, where there is one, then the edges as they stand, less real loops.
template <typename Use>
[[gnu::always_inline]] inline void each_batch(const Csr& csr, int64_t row, bool loop, int64_t capacity, Batch& batch, const Use& use) {
    const int64_t end = csr.indptr[row + 1], stop = csr.indptr[csr.num_dst];
    int64_t e = csr.indptr[row];
    batch.size = 0;
    if (loop) batch.row[0] = row, batch.edge[0] = -1, batch.size = 1;
    do {
        for (; e < end && batch.size < capacity; ++e) {
            if (csr.indices[e] == row) continue;
            batch.row[batch.size] = csr.indices[e];
            batch.edge[batch.size++] = e;
        }
        if (batch.size == 0) return;
        for (int i = 0; i < kEdgesAhead; ++i) batch.row[batch.size + i] = e + i < stop ? csr.indices[e + i] : row;
        use();
        batch.size = 0;
    } while (e < end);
}

// Calls use(count) with the usual numbers of heads as compile-time ones, for short loops over heads.
template <typename Use>
[[gnu::always_inline]] inline void with_heads(int64_t count, const Use& use) {
    switch (count) {
        case 1: return use(std::integral_constant<int64_t, 1>{});
        case 2: return use(std::integral_constant<int64_t, 2>{});
        case 4: return use(std::integral_constant<int64_t, 4>{});
        case 8: return use(std::integral_constant<int64_t, 8>{});
        default: return use(count);
    }
}

// Multiplies weights (size, heads) of a batch by the scale, or by zero where dropped. `fixed` is the row all edges share.
template <bool FixedIsDst, typename T>
void drop_edges(const EdgeDropout<T>& drop, int64_t fixed, const Batch& batch, int64_t count, T* weight) {
    if (drop.threshold == 0) return;
    const auto id = [&](int64_t i) { return drop.node_id ? drop.node_id[i] : i; };
    uint32_t hash[kScores];
    with_heads(count, [&](auto heads) {
        for (int64_t k = 0; k < batch.size; ++k) {
            const int64_t dst = FixedIsDst ? fixed : batch.row[k], src = FixedIsDst ? batch.row[k] : fixed;
            const uint32_t state = uint32_t(mixed(mixed(drop.key, id(dst)), id(src)));
            for (int64_t h = 0; h < heads; ++h) hash[k * heads + h] = element_hash(state, uint32_t(h));
        }
    });
    const int64_t size = batch.size * count;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) weight[i] *= hash[i] >= drop.threshold ? drop.scale : T(0);
}

// Calls use(first, N) for groups of N rows of a batch, N a compile-time number.
template <typename Use>
[[gnu::always_inline]] inline void each_group(int64_t size, const Use& use) {
    int64_t k = 0;
    for (; k + kGroup <= size; k += kGroup) use(k, std::integral_constant<int, kGroup>{});
    for (; k < size; ++k) use(k, std::integral_constant<int, 1>{});
}

}  // namespace
