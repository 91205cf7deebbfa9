// Rows of several heads, and the batches of edges that attention works on.
//
// A row is cut into vectors head by head. Where the width of a head is no multiple of a vector, its last vector starts
// early and overlaps the one before. Heads narrower than a vector lie side by side in one, 1, 2 or 4 of them, each with an
// equal share of the lanes. Rows that stay near the registers (sums, the row that all edges share) are kept packed, one slot
// a vector: sums may then hold a column twice, and a factor of a dot product has its second copy zeroed.
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

[[gnu::always_inline]] inline void prefetch(const void* from, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b);
}

// The vectors of a row. G heads lie side by side in one, or, where G is 0, a head has one vector or more. M is the number of
// groups, or 0 where it is told at run time; then every group is full, and heads side by side leave no lane without a column.
template <int G, int M, typename T>
struct HeadVectors {
    static constexpr int kHeads = G ? G : 1;            // heads of a group: of one vector, or of several that are one head
    static constexpr int kShare = lanes<T> / kHeads;    // lanes of a head
    static constexpr bool kExact = G > 1 && M > 0;

    int64_t count, width;     // of heads
    int64_t num_groups, vectors_of_head;
    First<T> whole, last;     // columns of a vector, of the last one
    First<T> heads_whole, heads_last;
    Places<T> columns;        // the column of each lane, within a vector's columns
    Places<T> homes;          // the lane of each column
    Places<T> owners;         // the head of each lane, within its group

    explicit HeadVectors(Heads h)
        : count(h.count), width(h.width), num_groups((h.count + kHeads - 1) / kHeads), vectors_of_head(vectors_in<T>(h.width)),
          whole(kHeads * h.width), last((h.count - (num_groups - 1) * kHeads) * h.width), heads_whole(kHeads),
          heads_last(h.count - (num_groups - 1) * kHeads),
          columns(places_of<T>([h](int i) { return i / kShare * h.width + std::min<int64_t>(i % kShare, h.width - 1); })),
          homes(places_of<T>([h](int i) { return h.width ? i / h.width * kShare + i % h.width : 0; })),
          owners(places_of<T>([](int i) { return i / kShare; })) {}

    [[gnu::always_inline]] int64_t heads() const { return M ? M * kHeads : count; }
    [[gnu::always_inline]] int64_t groups() const { return M ? M : num_groups; }
    [[gnu::always_inline]] int64_t width_of_group() const { return kExact ? lanes<T> : kHeads * width; }
    [[gnu::always_inline]] int64_t vectors() const { return G ? 1 : vectors_of_head; }            // of a group
    [[gnu::always_inline]] int64_t size() const { return groups() * vectors() * lanes<T>; }       // elements of a packed row

    // The column at which vector v of group j starts.
    [[gnu::always_inline]] int64_t column(int64_t j, int64_t v) const {
        return j * width_of_group() + (G ? 0 : std::min(v * lanes<T>, width - lanes<T>));
    }

    // What lies in lanes without a column of their own is no column's value, or a second copy of one.
    [[gnu::always_inline]] Vec<T> load_columns(const T* row, int64_t j, int64_t v) const {
        const T* from = row + column(j, v);
        if constexpr (G == 0 || kExact) return load(from);
        else {
            const Vec<T> value = load(from, M || j + 1 < num_groups ? whole : last);
            if constexpr (G == 1) return value;
            else return __builtin_shuffle(value, columns);
        }
    }

    [[gnu::always_inline]] void store_columns(T* row, int64_t j, int64_t v, Vec<T> value) const {
        T* to = row + column(j, v);
        if constexpr (G == 0 || kExact) return store(to, value);
        if constexpr (G > 1) value = __builtin_shuffle(value, homes);
        store(to, value, M || j + 1 < num_groups ? whole : last);
    }

    // One number a head, in each lane of the head.
    [[gnu::always_inline]] Vec<T> spread(const T* of_heads, int64_t j) const {
        if constexpr (G < 2) return splat<T>(of_heads[j]);
        else return __builtin_shuffle(load(of_heads + j * G, M || j + 1 < num_groups ? heads_whole : heads_last), owners);
    }

    // Lines of a group's columns, which may begin anywhere in a line.
    [[gnu::always_inline]] void prefetch_group(const T* row, int64_t j) const {
        const T* from = row + j * width_of_group();
        prefetch(from, width_of_group() * int64_t(sizeof(T)));
        if (!kExact && j + 1 == groups()) __builtin_prefetch(from + width_of_group() - 1);
    }
};

// Calls use(vectors) with the vectors of rows of these heads. Of one head, and of floats of 4 and 8, the number is one known to
// the compiler.
template <typename T, typename Use>
[[gnu::always_inline]] inline void with_vectors(Heads heads, const Use& use) {
    constexpr bool kFloats = sizeof(T) == 4 && lanes<T> >= 8;
    if (heads.width >= lanes<T>) {
        if constexpr (kFloats) {
            if (heads.count == 1) return use(HeadVectors<0, 1, T>(heads));
            if (heads.count == 4) return use(HeadVectors<0, 4, T>(heads));
            if (heads.count == 8) return use(HeadVectors<0, 8, T>(heads));
        }
        return use(HeadVectors<0, 0, T>(heads));
    }
    if constexpr (lanes<T> >= 16)
        if (heads.count > 2 && 4 * heads.width <= lanes<T>) return use(HeadVectors<4, 0, T>(heads));
    if constexpr (lanes<T> >= 8)
        if (heads.count > 1 && 2 * heads.width <= lanes<T>) {
            if constexpr (kFloats)
                if (heads.count == 8 && 2 * heads.width == lanes<T>) return use(HeadVectors<2, 4, T>(heads));
            return use(HeadVectors<2, 0, T>(heads));
        }
    use(HeadVectors<1, 0, T>(heads));
}

// visit(slot, group, vector): slot counts elements of a packed row.
template <int G, int M, typename T, typename Visit>
[[gnu::always_inline]] inline void each_vector(const HeadVectors<G, M, T>& at, const Visit& visit) {
    const int64_t vectors = at.vectors();
    int64_t slot = 0;
    for (int64_t j = 0; j < at.groups(); ++j)
        for (int64_t v = 0; v < vectors; ++v, slot += lanes<T>) visit(slot, j, v);
}

template <int G, int M, typename T>
[[gnu::always_inline]] inline void pack(const HeadVectors<G, M, T>& at, const T* row, T* packed) {
    each_vector(at, [&](int64_t slot, int64_t j, int64_t v) { store(packed + slot, at.load_columns(row, j, v)); });
}

template <int G, int M, typename T>
[[gnu::always_inline]] inline void unpack(const HeadVectors<G, M, T>& at, const T* packed, T* row) {
    each_vector(at, [&](int64_t slot, int64_t j, int64_t v) { at.store_columns(row, j, v, load(packed + slot)); });
}

// Zeroes every second copy of a column, so that a dot product counts it once.
template <int G, int M, typename T>
[[gnu::always_inline]] inline void zero_copies(const HeadVectors<G, M, T>& at, T* packed) {
    if constexpr (G == 0) {
        const int64_t vectors = at.vectors(), copies = vectors * lanes<T> - at.width;
        for (int64_t h = 0; h < at.heads(); ++h) {
            T* last = packed + ((h + 1) * vectors - 1) * lanes<T>;
            for (int64_t i = 0; i < copies; ++i) last[i] = T(0);
        }
    } else if constexpr (G > 1 && !at.kExact) {
        for (int64_t i = 0; i < at.size(); ++i)
            if (i % at.kShare >= at.width) packed[i] = T(0);
    }
}

// Packed rows of one thread; to be freed with std::free. No exceptions: each instruction set has its own copy of all code.
template <int G, int M, typename T>
T* new_packed(const HeadVectors<G, M, T>& at, int64_t rows) {
    const size_t bytes = (size_t(rows * at.size()) * sizeof(T) + 63) / 64 * 64;
    void* packed = std::aligned_alloc(64, bytes);
    if (!packed) __builtin_trap();
    return static_cast<T*>(packed);
}

// Adds what lies B lanes apart, of x where a lane's bit B is clear, of y where it is set.
template <int B, typename T>
[[gnu::always_inline]] inline Vec<T> add_halves(Vec<T> x, Vec<T> y) {
    struct Own {
        constexpr int operator()(int i) const { return i & B ? lanes<T> + i : i; }
    };
    struct Other {
        constexpr int operator()(int i) const { return i & B ? lanes<T> + (i ^ B) : i ^ B; }
    };
    return permute<T>(x, y, Own{}) + permute<T>(x, y, Other{});
}

template <int B, int N, typename T>
[[gnu::always_inline]] inline Vec<T> fold_down(const Vec<T>* v) {
    if constexpr (B == 0) return v[0];
    else if constexpr (N == 1) {
        const Vec<T> sum = add_halves<B, T>(v[0], v[0]);
        return fold_down<B / 2, 1, T>(&sum);
    } else {
        Vec<T> half[N / 2];
#pragma GCC unroll 16
        for (int i = 0; i < N / 2; ++i) half[i] = add_halves<B, T>(v[2 * i], v[2 * i + 1]);
        return fold_down<B / 2, N / 2, T>(half);
    }
}

// Lane i * G + g: the sum over share g of the lanes of v[i], of N vectors, N a power of two. Its order is that of one vector alone:
// halves are added until one lane is left.
template <int G, int N, typename T>
[[gnu::always_inline]] inline Vec<T> fold(const Vec<T>* v) {
    constexpr int kShare = lanes<T> / G;
    static_assert(N <= kShare);
    struct Place {
        constexpr int operator()(int lane) const {
            int from = lane % G * kShare, bit = kShare / 2;
            for (int i = lane / G % N; i; i /= 2, bit /= 2) from += i % 2 * bit;
            return from;
        }
    };
    const Vec<T> sums = fold_down<kShare / 2, N, T>(v);
    return permute<T>(sums, sums, Place{});
}

template <typename T>
[[gnu::always_inline]] inline T sum_across(Vec<T> v) {
    return fold<1, 1, T>(&v)[0];
}

// Sums over each head of N rows' vectors, which are given group by group.
template <int N, int G, int M, typename T>
struct HeadSums {
    static constexpr int kHeads = HeadVectors<G, M, T>::kHeads;
    static constexpr int kAll = M ? N * M : N;
    static constexpr int kFold = std::min(kAll, lanes<T> / kHeads);  // vectors folded together

    const HeadVectors<G, M, T>& at;
    T* to;  // (N, heads)
    Vec<T> held[kAll];

    [[gnu::always_inline]] HeadSums(const HeadVectors<G, M, T>& vectors, T* sums) : at(vectors), to(sums) {}

    [[gnu::always_inline]] void add(int64_t j, const Vec<T> (&parts)[N]) {
        for (int i = 0; i < N; ++i) held[M ? i * M + j : i] = parts[i];
        if constexpr (!M) {
            T sums[kAll * kHeads + lanes<T>];
            write(sums);
            for (int i = 0; i < N; ++i)
                for (int g = 0; g < kHeads; ++g)
                    if (j * kHeads + g < at.count) to[i * at.count + j * kHeads + g] = sums[i * kHeads + g];
        }
    }

    [[gnu::always_inline]] void end() {
        if constexpr (M) write(to);
    }

    [[gnu::always_inline]] void write(T* sums) {
        const First<T> some(kFold * kHeads);
#pragma GCC unroll 16
        for (int i = 0; i < kAll; i += kFold) {
            const Vec<T> folded = fold<kHeads, kFold, T>(held + i);
            if constexpr (kFold * kHeads == lanes<T>) store(sums + i * kHeads, folded);
            else store(sums + i * kHeads, folded, some);
        }
    }
};

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
