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
constexpr int64_t kGradRows = 256;  // rows of a gradient that are added to the sums together

inline int64_t padded_width(int64_t width) { return (width + kSparsePad - 1) / kSparsePad * kSparsePad; }

// The numbers of one row.
struct KeptNumbers {
    const int32_t* column;
    const float* value;
    int64_t count;
};

// The numbers of some consecutive rows that dropout keeps: where nothing is dropped, those that are stored.
struct KeptRows {
    int64_t count = 0, most;  // rows; most numbers of so many rows

    KeptRows(const SparseRows& x, int64_t rows) : most(longest_rows(x, rows)), end_(new int64_t[size_t(rows) + 1]) {
        if (!x.threshold) return;
        columns_.reset(new int32_t[size_t(most) + 1]);
        values_.reset(new float[size_t(most) + 1]);
    }

    void read(const SparseRows& x, int64_t begin, int64_t end) {
        count = end - begin;
        const int64_t first = x.indptr[begin];
        column_ = x.indices + first, value_ = x.values + first;
        end_[0] = 0;
        for (int64_t r = begin; r < end; ++r) end_[r - begin + 1] = x.indptr[r + 1] - first;
        if (!x.threshold) return;
        for (int64_t r = begin, kept = 0; r < end; ++r) {
            const uint32_t state = row_state(x.key, x.row_id ? x.row_id[r] : r);
            for (int64_t i = x.indptr[r]; i < x.indptr[r + 1]; ++i) {
                columns_[kept] = x.indices[i];
                values_[kept] = x.values[i] * x.scale;
                kept += element_hash(state, uint32_t(x.indices[i])) >= x.threshold;
            }
            end_[r - begin + 1] = kept;
        }
        column_ = columns_.get(), value_ = values_.get();
    }

    KeptNumbers row(int64_t r) const { return {column_ + end_[r], value_ + end_[r], end_[r + 1] - end_[r]}; }

private:
    // The most numbers that so many consecutive rows have.
    static int64_t longest_rows(const SparseRows& x, int64_t rows) {
        int64_t longest = 0;
        for (int64_t r = 0; r < x.rows; ++r) longest = std::max(longest, x.indptr[std::min(r + rows, x.rows)] - x.indptr[r]);
        return longest;
    }

    std::unique_ptr<int64_t[]> end_;
    std::unique_ptr<int32_t[]> columns_;
    std::unique_ptr<float[]> values_;
    const int32_t* column_ = nullptr;
    const float* value_ = nullptr;
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
    const int64_t padded = padded_width(a.width), entries = a.x.indptr[a.x.rows];
    std::unique_ptr<float[]> wide;
    if (padded != a.width) wide = padded_rows(a.weight, a.x.width, a.width, padded);
    const float* weight = wide ? wide.get() : a.weight;
    const std::unique_ptr<float[]> no_bias(a.after && !a.after->bias ? new float[size_t(a.width)]() : nullptr);
    Team team;
#pragma omp parallel if ((entries + a.x.rows) * a.width > kThreadedNumbers)
    {
        Member member(team);
        KeptRows kept(a.x, kRowChunk);
        const std::unique_ptr<float[]> room(padded == a.width ? nullptr : new float[size_t(kRowChunk * padded)]());
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t begin = 0; begin < a.x.rows; begin += kRowChunk) {
            const int64_t end = std::min(begin + kRowChunk, a.x.rows);
            float* rows = room ? room.get() : a.out + begin * a.width;
            for (int64_t r = begin; r < end; ++r) {
                const float* add = !a.add ? nullptr : a.add_rows ? a.add + r * a.width : a.add;
                float* row = rows + (r - begin) * padded;
                if (!add) std::fill(row, row + a.width, 0.0f);
                else if (add != row) std::copy(add, add + a.width, row);
            }
            kept.read(a.x, begin, end);
            each_tile(padded, [&]<int N>(int64_t first) {  // so that the columns of the weights stay in the cache
                for (int64_t r = 0; r < end - begin; ++r) add_sparse_tile<N>(kept.row(r), weight + first, padded, rows + r * padded + first);
            });
            if (room)
                for (int64_t r = begin; r < end; ++r) std::copy_n(rows + (r - begin) * padded, a.width, a.out + r * a.width);
            if (!a.after) continue;
            const float* bias = a.after->bias ? a.after->bias : no_bias.get();
            for (int64_t r = begin; r < end; ++r) epilogue_row_of(*a.after, bias, r);
        }
    }
}

// Some rows' numbers by column: of each column the rows that have it, ascending.
struct KeptColumns {
    std::unique_ptr<int64_t[]> end;  // (width), where each column's rows end; they begin where those of the column before end
    std::unique_ptr<int32_t[]> row;
    std::unique_ptr<float[]> value;
    int64_t width;

    KeptColumns(int64_t width, int64_t most)
        : end(new int64_t[size_t(width) + 1]), row(new int32_t[size_t(most) + 1]), value(new float[size_t(most) + 1]), width(width) {}

    void sort(const KeptRows& kept) {
        std::fill(end.get(), end.get() + width + 1, 0);
        for (int64_t r = 0; r < kept.count; ++r) {
            const KeptNumbers numbers = kept.row(r);
            for (int64_t k = 0; k < numbers.count; ++k) ++end[numbers.column[k] + 1];
        }
        for (int64_t c = 0; c < width; ++c) end[c + 1] += end[c];  // for now where each column's rows begin
        for (int64_t r = 0; r < kept.count; ++r) {
            const KeptNumbers numbers = kept.row(r);
            for (int64_t k = 0; k < numbers.count; ++k) {
                const int64_t place = end[numbers.column[k]]++;
                row[place] = int32_t(r), value[place] = numbers.value[k];
            }
        }
    }
};

// sums[column] += number * grad[row] for each number of some rows, in the order of the rows, N vectors in registers.
template <int N>
[[gnu::noinline]] void add_columns_tile(const KeptColumns& x, const float* grad, int64_t padded, float* sums) {
    for (int64_t c = 0, k = 0; c < x.width; ++c) {
        const int64_t end = x.end[c];
        if (k == end) continue;
        Vec<float> acc[N];
        float* to = sums + c * padded;
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[i] = load(to + i * lanes<float>);
        for (; k < end; ++k) {
            const float* from = grad + x.row[k] * padded;
            const Vec<float> value = splat(x.value[k]);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) acc[i] += value * load(from + i * lanes<float>);
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) store(to + i * lanes<float>, acc[i]);
    }
}

inline void sparse_product_backward(const SparseProductBackward& a) {
    const int64_t padded = padded_width(a.width), size = (a.x.width + 1) * padded, entries = a.x.indptr[a.x.rows];
    Team team;
#pragma omp parallel if ((entries + a.x.rows) * a.width > kThreadedNumbers)
    {
        Member member(team);
        KeptRows kept(a.x, kGradRows);
        KeptColumns columns(a.x.width, kept.most);
        const std::unique_ptr<float[]> grad(new float[size_t(kGradRows * padded)]());
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < a.parts; ++part) {
            float *sums = a.sums + part * size, *bias = sums + a.x.width * padded;
            std::fill(sums, sums + size, 0.0f);
            const int64_t last = a.x.rows * (part + 1) / a.parts;
            for (int64_t begin = a.x.rows * part / a.parts; begin < last; begin += kGradRows) {
                const int64_t end = std::min(begin + kGradRows, last);
                for (int64_t r = begin; r < end; ++r) {
                    float* row = grad.get() + (r - begin) * padded;
                    if (a.after) epilogue_backward_row_of(*a.after, r, row);
                    else std::copy_n(a.grad + r * a.stride, a.width, row);
#pragma omp simd
                    for (int64_t c = 0; c < padded; ++c) bias[c] += row[c];
                }
                kept.read(a.x, begin, end);
                columns.sort(kept);
                each_tile(padded, [&]<int N>(int64_t first) { add_columns_tile<N>(columns, grad.get() + first, padded, sums + first); });
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
    const int64_t* indptr = a.csr.indptr;
    Team team;
#pragma omp parallel if (indptr[a.csr.num_dst] > 1 << 12)
    {
        Member member(team);
        ColumnBits columns(a.x.width);
        KeptRows rows(a.x, 1);
        const std::unique_ptr<float[]> sum(a.values ? new float[size_t(a.x.width)]() : nullptr);
#pragma omp for schedule(dynamic, kRowChunk) nowait
        for (int64_t d = 0; d < a.csr.num_dst; ++d) {
            const auto add = [&](int64_t s, float coef) {
                rows.read(a.x, s, s + 1);
                const KeptNumbers kept = rows.row(0);
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
    Team team;
#pragma omp parallel if (a.num_out * a.x.width > kThreadedNumbers)
    {
        Member member(team);
        KeptRows rows(a.x, 1);
#pragma omp for schedule(dynamic, kRowChunk) nowait
        for (int64_t i = 0; i < a.num_out; ++i) {
            float* row = a.out + i * a.x.width;
            std::fill(row, row + a.x.width, 0.0f);
            const int64_t r = a.index ? a.index[i] : i;
            rows.read(a.x, r, r + 1);
            const KeptNumbers kept = rows.row(0);
            for (int64_t k = 0; k < kept.count; ++k) row[kept.column[k]] = kept.value[k];
        }
    }
}

}  // namespace
