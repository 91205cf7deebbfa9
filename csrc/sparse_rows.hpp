// Rows most of whose numbers are zero: products with weights, sums over in-neighbours, and dense copies.
//
// Every sum has a fixed order, that of a row's columns or of a destination's edges. So results are the same for any number of
// threads, and equal those of the kernels for dense rows (product.hpp, spmm.hpp) to rounding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "epilogue.hpp"
#include "spmm.hpp"
#include "vector.hpp"

struct SparseRows {
    const int64_t* indptr;   // (rows + 1)
    const int32_t* indices;  // the columns of each row, ascending, each once
    const float* values;
    int64_t rows, width;
    const int64_t* row_id = nullptr;  // (rows), by which dropout falls, or null: the row number
    uint64_t key = 0;
    uint32_t threshold = 0;  // 0 drops nothing
    float scale = 1;
};

struct SparseProduct {
    SparseRows x;
    int64_t width;
    const float* weight;            // (x.width, width)
    const float* add;               // (rows, width), may be out; or (width), or null
    bool add_rows;                  // whether add has a row for each
    float* out;                     // (rows, width)
    const Epilogue<float>* after;   // done to the rows where they are, or null
};

struct SparseProductBackward {
    SparseRows x;
    int64_t width;
    const float* grad;                     // (rows, width), of what the product returned
    int64_t stride;                        // from a row of grad to the next
    const EpilogueBackward<float>* after;  // of what was done to the rows, or null; its out is not written
    int64_t parts;
    float* sums;                           // (parts, x.width + 1, padded width): over fixed ranges of rows, added in order
    float* out;                            // (x.width + 1, width): the gradient of the weights, then that of the bias
};

struct SparseSum {
    Csr csr;
    SparseRows x;         // of the sources
    const float* weight;  // as in Spmm
    const float* pre;
    const float* post;
    const float* loop;
    int64_t num_loop;
    int64_t* indptr;      // (num_dst + 1): first the length of each row is counted into indptr[d + 1]
    int32_t* indices;     // then rows are written; null while they are counted
    float* values;
};

struct SparseTake {
    SparseRows x;
    const int64_t* index;   // (num_out)
    int64_t num_out;
    const int64_t* indptr;  // (num_out + 1), where each row goes
    int32_t* indices;
    float* values;
};

struct SparseDense {
    SparseRows x;
    const int64_t* index;  // (num_out), or null: every row
    int64_t num_out;
    float* out;            // (num_out, x.width)
};

namespace {

constexpr int64_t kSparsePad = 16;  // the width of rows that kernels work on is a multiple of it

inline int64_t padded_width(int64_t width) { return (width + kSparsePad - 1) / kSparsePad * kSparsePad; }

inline int64_t longest_row(const SparseRows& x) {
    int64_t longest = 0;
    for (int64_t r = 0; r < x.rows; ++r) longest = std::max(longest, x.indptr[r + 1] - x.indptr[r]);
    return longest;
}

// The numbers of one row that dropout keeps.
struct KeptNumbers {
    const int32_t* column;
    const float* value;
    int64_t count;

    explicit KeptNumbers(const SparseRows& x, int64_t longest)
        : columns_(x.threshold ? new int32_t[size_t(longest) + 1] : nullptr),
          values_(x.threshold ? new float[size_t(longest) + 1] : nullptr) {}

    void read(const SparseRows& x, int64_t r) {
        const int64_t begin = x.indptr[r], length = x.indptr[r + 1] - begin;
        column = x.indices + begin, value = x.values + begin, count = length;
        if (!x.threshold) return;
        const uint32_t state = row_state(x.key, x.row_id ? x.row_id[r] : r);
        int64_t kept = 0;
        for (int64_t i = 0; i < length; ++i) {
            columns_[kept] = column[i];
            values_[kept] = value[i] * x.scale;
            kept += element_hash(state, uint32_t(column[i])) >= x.threshold;
        }
        column = columns_.get(), value = values_.get(), count = kept;
    }

private:
    std::unique_ptr<int32_t[]> columns_;
    std::unique_ptr<float[]> values_;
};

// Calls tile<N>(first column) for every N vectors of a padded row, N at most kTile.
template <typename Tile>
[[gnu::always_inline]] inline void each_tile(int64_t padded, const Tile& tile) {
    const int64_t vectors = padded / lanes<float>;
    int64_t v = 0;
    for (; v + kTile <= vectors; v += kTile) tile.template operator()<kTile>(v * lanes<float>);
    const int64_t first = v * lanes<float>;
    switch (vectors - v) {
        case 1: return tile.template operator()<1>(first);
        case 2: return tile.template operator()<2>(first);
        case 3: return tile.template operator()<3>(first);
        case 4: return tile.template operator()<4>(first);
        case 5: return tile.template operator()<5>(first);
        case 6: return tile.template operator()<6>(first);
        case 7: return tile.template operator()<7>(first);
        default: return;
    }
}

// row[first, ...) += the numbers times rows of the weights, N vectors in registers.
template <int N>
[[gnu::noinline]] void add_sparse_tile(const KeptNumbers& x, const float* weight, int64_t padded, float* row) {
    Vec<float> acc[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[i] = load(row + i * lanes<float>);
    for (int64_t k = 0; k < x.count; ++k) {
        if (k + kAhead < x.count) {
            const char* next = reinterpret_cast<const char*>(weight + x.column[k + kAhead] * padded);
#pragma GCC unroll 8
            for (int64_t b = 0; b < int64_t(N * sizeof(Vec<float>)); b += 64) __builtin_prefetch(next + b);
        }
        const float* from = weight + x.column[k] * padded;
        const Vec<float> value = splat(x.value[k]);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[i] += value * load(from + i * lanes<float>);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store(row + i * lanes<float>, acc[i]);
}

// Rows of weights, each as wide as a multiple of kSparsePad, zero beyond the last column.
inline std::unique_ptr<float[]> padded_rows(const float* rows, int64_t count, int64_t width, int64_t padded) {
    std::unique_ptr<float[]> out(new float[size_t(count * padded)]);
    for (int64_t r = 0; r < count; ++r) {
        std::copy(rows + r * width, rows + (r + 1) * width, out.get() + r * padded);
        std::fill(out.get() + r * padded + width, out.get() + (r + 1) * padded, 0.0f);
    }
    return out;
}

inline void sparse_product(const SparseProduct& a) {
    const int64_t padded = padded_width(a.width), longest = longest_row(a.x), entries = a.x.indptr[a.x.rows];
    std::unique_ptr<float[]> wide;
    if (padded != a.width) wide = padded_rows(a.weight, a.x.width, a.width, padded);
    const float* weight = wide ? wide.get() : a.weight;
    const std::unique_ptr<float[]> no_bias(a.after && !a.after->bias ? new float[size_t(a.width)]() : nullptr);
    Team team;
#pragma omp parallel if ((entries + a.x.rows) * a.width > kThreadedNumbers)
    {
        Member member(team);
        KeptNumbers kept(a.x, longest);
        const std::unique_ptr<float[]> room(new float[size_t(padded)]());
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t begin = 0; begin < a.x.rows; begin += kRowChunk) {
            const int64_t end = std::min(begin + kRowChunk, a.x.rows);
            for (int64_t r = begin; r < end; ++r) {
                float *out = a.out + r * a.width, *row = padded == a.width ? out : room.get();
                const float* add = !a.add ? nullptr : a.add_rows ? a.add + r * a.width : a.add;
                if (!add) std::fill(row, row + a.width, 0.0f);
                else if (add != row) std::copy(add, add + a.width, row);
                kept.read(a.x, r);
                each_tile(padded, [&]<int N>(int64_t first) { add_sparse_tile<N>(kept, weight + first, padded, row + first); });
                if (row != out) std::copy(row, row + a.width, out);
            }
            if (!a.after) continue;
            const float* bias = a.after->bias ? a.after->bias : no_bias.get();
            for (int64_t r = begin; r < end; ++r) epilogue_row_of(*a.after, bias, r);
        }
    }
}

// sums[column] += number * grad for each number of a row, N vectors of the gradient in registers.
template <int N>
[[gnu::noinline]] void scatter_sparse_tile(const KeptNumbers& x, const float* grad, int64_t padded, float* sums) {
    Vec<float> g[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) g[i] = load(grad + i * lanes<float>);
    for (int64_t k = 0; k < x.count; ++k) {
        if (k + kAhead < x.count) {
            const char* next = reinterpret_cast<const char*>(sums + x.column[k + kAhead] * padded);
#pragma GCC unroll 8
            for (int64_t b = 0; b < int64_t(N * sizeof(Vec<float>)); b += 64) __builtin_prefetch(next + b, 1);
        }
        float* to = sums + x.column[k] * padded;
        const Vec<float> value = splat(x.value[k]);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) store(to + i * lanes<float>, load(to + i * lanes<float>) + value * g[i]);
    }
}

inline void sparse_product_backward(const SparseProductBackward& a) {
    const int64_t padded = padded_width(a.width), longest = longest_row(a.x), size = (a.x.width + 1) * padded;
    const int64_t entries = a.x.indptr[a.x.rows];
    Team team;
#pragma omp parallel if ((entries + a.x.rows) * a.width > kThreadedNumbers)
    {
        Member member(team);
        KeptNumbers kept(a.x, longest);
        const std::unique_ptr<float[]> grad(new float[size_t(padded)]());
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < a.parts; ++part) {
            float *sums = a.sums + part * size, *bias = sums + a.x.width * padded;
            std::fill(sums, sums + size, 0.0f);
            for (int64_t r = a.x.rows * part / a.parts; r < a.x.rows * (part + 1) / a.parts; ++r) {
                if (a.after) epilogue_backward_row_of(*a.after, r, grad.get());
                else std::copy(a.grad + r * a.stride, a.grad + r * a.stride + a.width, grad.get());
                kept.read(a.x, r);
                each_tile(padded, [&]<int N>(int64_t first) { scatter_sparse_tile<N>(kept, grad.get() + first, padded, sums + first); });
#pragma omp simd
                for (int64_t c = 0; c < padded; ++c) bias[c] += grad[c];
            }
        }
        member.wait();
#pragma omp for schedule(dynamic, 16) nowait
        for (int64_t row = 0; row <= a.x.width; ++row)
            for (int64_t c = 0; c < a.width; ++c) {
                float total = 0;
                for (int64_t part = 0; part < a.parts; ++part) total += a.sums[part * size + row * padded + c];
                a.out[row * a.width + c] = total;
            }
    }
}

// The columns that the sum of some rows has, as bits, and where among them to look.
struct ColumnBits {
    std::unique_ptr<uint64_t[]> bits;
    int64_t first, last;

    explicit ColumnBits(int64_t width) : bits(new uint64_t[size_t(width / 64 + 1)]()), first(INT64_MAX), last(-1) {}

    void add(const KeptNumbers& row) {
        for (int64_t i = 0; i < row.count; ++i) {
            const int64_t word = row.column[i] / 64;
            first = std::min(first, word), last = std::max(last, word);
            bits[word] |= uint64_t(1) << (row.column[i] % 64);
        }
    }

    // Calls each(column) in ascending order, and forgets all.
    template <typename Each>
    void drain(const Each& each) {
        for (int64_t word = first; word <= last; ++word)
            for (uint64_t left = std::exchange(bits[word], 0); left; left &= left - 1)
                each(int32_t(word * 64 + __builtin_ctzll(left)));
        first = INT64_MAX, last = -1;
    }
};

// Counts the columns of each sum, or, where there is room for them, writes the sums.
inline void sparse_sum(const SparseSum& a) {
    const int64_t *indptr = a.csr.indptr, longest = longest_row(a.x);
    Team team;
#pragma omp parallel if (indptr[a.csr.num_dst] > 1 << 12)
    {
        Member member(team);
        ColumnBits columns(a.x.width);
        KeptNumbers kept(a.x, longest);
        const std::unique_ptr<float[]> sum(a.values ? new float[size_t(a.x.width)]() : nullptr);
#pragma omp for schedule(dynamic, kRowChunk) nowait
        for (int64_t d = 0; d < a.csr.num_dst; ++d) {
            const auto add = [&](int64_t s, float coef) {
                kept.read(a.x, s);
                columns.add(kept);
                if (!a.values) return;
                if (a.pre) coef *= a.pre[s];
                for (int64_t i = 0; i < kept.count; ++i) sum[kept.column[i]] += coef * kept.value[i];
            };
            for (int64_t e = indptr[d]; e < indptr[d + 1]; ++e) add(a.csr.indices[e], a.weight ? a.weight[e] : 1.0f);
            if (a.loop && d < a.num_loop && a.loop[d] != 0.0f) add(d, a.loop[d]);
            int64_t count = 0;
            if (!a.values) {
                columns.drain([&count](int32_t) { ++count; });
                a.indptr[d + 1] = count;
                continue;
            }
            const float post = a.post ? a.post[d] : 1.0f;
            columns.drain([&](int32_t column) {
                if (a.indptr[d] + count == a.indptr[d + 1]) return;
                a.indices[a.indptr[d] + count] = column;
                a.values[a.indptr[d] + count++] = post * std::exchange(sum[column], 0.0f);
            });
        }
    }
}

inline void sparse_take(const SparseTake& a) {
    Team team;
#pragma omp parallel if (a.num_out > 1 << 12)
    {
        Member member(team);
#pragma omp for schedule(dynamic, kRowChunk) nowait
        for (int64_t i = 0; i < a.num_out; ++i) {
            const int64_t begin = a.x.indptr[a.index[i]], end = a.x.indptr[a.index[i] + 1];
            std::copy(a.x.indices + begin, a.x.indices + end, a.indices + a.indptr[i]);
            std::copy(a.x.values + begin, a.x.values + end, a.values + a.indptr[i]);
        }
    }
}

inline void sparse_dense(const SparseDense& a) {
    const int64_t longest = longest_row(a.x);
    Team team;
#pragma omp parallel if (a.num_out * a.x.width > kThreadedNumbers)
    {
        Member member(team);
        KeptNumbers kept(a.x, longest);
#pragma omp for schedule(dynamic, kRowChunk) nowait
        for (int64_t i = 0; i < a.num_out; ++i) {
            float* row = a.out + i * a.x.width;
            std::fill(row, row + a.x.width, 0.0f);
            kept.read(a.x, a.index ? a.index[i] : i);
            for (int64_t k = 0; k < kept.count; ++k) row[kept.column[k]] = kept.value[k];
        }
    }
}

}  // namespace
