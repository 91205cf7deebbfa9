// Products of rows and weights, and the gradient of the weights: many rows, weights that fit into a cache.
//
// Tiles of kHigh rows by kWide columns are kept in registers. The order of every sum depends on shapes alone, never on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "vector.hpp"

struct Product {
    const float* x;         // (any, in)
    const int64_t* index;   // (rows), which row of x each is; or null: the row's own number
    int64_t rows, in, width;
    const float* weight;    // (in, width), or (width, in) where it is turned
    bool turned;
    const float* add;       // (rows, width), may be out; or (width), or null
    bool add_rows;          // whether add has a row for each
    float* out;             // (rows, width)
};

struct ProductWeight {
    const float* x;         // (any, in)
    const int64_t* index;   // (rows) or null
    int64_t rows, in, width;
    const float* grad;      // (rows, width)
    int64_t parts;
    float* sums;            // (parts, in, width): over fixed ranges of rows, added in order
    float* out;             // (in, width)
};

namespace {

constexpr int kHigh = 6;
constexpr int kWide = 2 * lanes<float>;
constexpr int64_t kDeep = 256;       // terms that are added before a tile is written
constexpr int64_t kRowsAtOnce = 48;  // of a product: a multiple of kHigh
constexpr int64_t kTermsAtOnce = 128;  // rows of which the weights' gradient is added up before it is written

// What a tile is multiplied with: row r's k-th number is x[r][k], or, of sums over rows, x[k][r].
enum class Over { columns, rows };

// to[r] = from[r] + sum over k of the k-th number of row r * panel[k], for R rows of kWide columns. A function of its own, so that
// the compiler keeps the tile in registers.
template <int R, Over O>
[[gnu::noinline]] void add_tile(const float* const* x, int64_t first, int64_t depth, const float* panel, const float* const* from,
                                float* const* to) {
    Vec<float> low[R], high[R];
    const float* row[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        low[r] = load(from[r]), high[r] = load(from[r] + lanes<float>);
        if constexpr (O == Over::columns) row[r] = x[r] + first;
    }
    for (int64_t k = 0; k < depth; ++k) {
        const Vec<float> left = load(panel + k * kWide), right = load(panel + k * kWide + lanes<float>);
        const float* across = O == Over::rows ? x[k] + first : nullptr;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const Vec<float> value = (O == Over::rows ? across[r] : row[r][k]) - Vec<float>{};
            low[r] += value * left;
            high[r] += value * right;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) store(to[r], low[r]), store(to[r] + lanes<float>, high[r]);
}

template <Over O>
inline void add_tile_of(int rows, const float* const* x, int64_t first, int64_t depth, const float* panel, const float* const* from,
                        float* const* to) {
    switch (rows) {
        case 1: return add_tile<1, O>(x, first, depth, panel, from, to);
        case 2: return add_tile<2, O>(x, first, depth, panel, from, to);
        case 3: return add_tile<3, O>(x, first, depth, panel, from, to);
        case 4: return add_tile<4, O>(x, first, depth, panel, from, to);
        case 5: return add_tile<5, O>(x, first, depth, panel, from, to);
        default: return add_tile<kHigh, O>(x, first, depth, panel, from, to);
    }
}

// The same where fewer than kWide columns may be there: they are copied to and fro.
template <Over O>
inline void add_tile_within(int64_t columns, int rows, const float* const* x, int64_t first, int64_t depth, const float* panel,
                            const float* const* from, float* const* to) {
    if (columns >= kWide) return add_tile_of<O>(rows, x, first, depth, panel, from, to);
    float room[kHigh][kWide] = {};
    float* rooms[kHigh];
    for (int r = 0; r < kHigh; ++r) rooms[r] = room[r];
    for (int r = 0; r < rows; ++r) std::copy(from[r], from[r] + columns, room[r]);
    add_tile_of<O>(rows, x, first, depth, panel, rooms, rooms);
    for (int r = 0; r < rows; ++r) std::copy(room[r], room[r] + columns, to[r]);
}

// The weights, kWide columns after kWide columns, zero beyond the last.
inline void pack_weight(const Product& a, int64_t panel, float* to) {
    const int64_t first = panel * kWide, columns = std::min<int64_t>(kWide, a.width - first);
    for (int64_t k = 0; k < a.in; ++k) {
        float* row = to + k * kWide;
        for (int64_t c = 0; c < columns; ++c) row[c] = a.turned ? a.weight[(first + c) * a.in + k] : a.weight[k * a.width + first + c];
        std::fill(row + columns, row + kWide, 0.0f);
    }
}

inline void product_rows(const Product& a, const float* packed, const float* zeros, int64_t begin, int64_t end) {
    const int64_t panels = (a.width + kWide - 1) / kWide;
    for (int64_t k0 = 0; k0 == 0 || k0 < a.in; k0 += kDeep)
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t first = p * kWide, columns = std::min<int64_t>(kWide, a.width - first);
            const int64_t depth = std::min(kDeep, a.in - k0);
            const float* panel = packed + (p * a.in + k0) * kWide;
            for (int64_t r0 = begin; r0 < end; r0 += kHigh) {
                const int rows = int(std::min<int64_t>(kHigh, end - r0));
                const float *x[kHigh], *from[kHigh];
                float* to[kHigh];
                for (int r = 0; r < rows; ++r) {
                    const int64_t row = r0 + r;
                    x[r] = a.x + (a.index ? a.index[row] : row) * a.in;
                    to[r] = a.out + row * a.width + first;
                    from[r] = k0 ? to[r] : !a.add ? zeros : a.add_rows ? a.add + row * a.width + first : a.add + first;
                }
                add_tile_within<Over::columns>(columns, rows, x, k0, depth, panel, from, to);
            }
        }
}

inline void product(const Product& a) {
    const int64_t panels = (a.width + kWide - 1) / kWide;
    const std::unique_ptr<float[]> packed(new float[size_t(panels * a.in * kWide)]);
    const float zeros[kWide] = {};
    const bool threaded = a.rows * a.in * a.width > 1 << 16;
#pragma omp parallel if (threaded)
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels; ++p) pack_weight(a, p, packed.get() + p * a.in * kWide);
#pragma omp for schedule(dynamic, 4)
        for (int64_t begin = 0; begin < a.rows; begin += kRowsAtOnce)
            product_rows(a, packed.get(), zeros, begin, std::min(begin + kRowsAtOnce, a.rows));
    }
}

// Rows of kWide columns after rows of kWide columns, zero beyond the last column.
inline void pack_rows(const float* x, int64_t width, int64_t begin, int64_t end, float* to) {
    for (int64_t first = 0; first < width; first += kWide) {
        const int64_t columns = std::min<int64_t>(kWide, width - first);
        for (int64_t r = begin; r < end; ++r, to += kWide) {
            const float* row = x + r * width + first;
            if (columns == kWide) {
                store(to, load(row)), store(to + lanes<float>, load(row + lanes<float>));
                continue;
            }
            std::copy(row, row + columns, to);
            std::fill(to + columns, to + kWide, 0.0f);
        }
    }
}

// Adds the share of some rows to the sums of a part.
inline void add_weight_rows(const ProductWeight& a, const float* const* x, const float* grad, int64_t rows, float* sums) {
    for (int64_t i0 = 0; i0 < a.in; i0 += kHigh)
        for (int64_t c0 = 0, p = 0; c0 < a.width; c0 += kWide, ++p) {
            const int high = int(std::min<int64_t>(kHigh, a.in - i0));
            const int64_t columns = std::min<int64_t>(kWide, a.width - c0);
            float* to[kHigh];
            for (int r = 0; r < high; ++r) to[r] = sums + (i0 + r) * a.width + c0;
            add_tile_within<Over::rows>(columns, high, x, i0, rows, grad + p * rows * kWide, to, to);
        }
}

inline void product_weight(const ProductWeight& a) {
    const int64_t width = (a.width + kWide - 1) / kWide * kWide, size = a.in * a.width;
#pragma omp parallel if (a.rows * size > 1 << 16)
    {
        const std::unique_ptr<float[]> grad(new float[size_t(kTermsAtOnce * width)]);
        const float* x[kTermsAtOnce];
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < a.parts; ++part) {
            float* sums = a.sums + part * size;
            std::fill(sums, sums + size, 0.0f);
            const int64_t last = a.rows * (part + 1) / a.parts;
            for (int64_t begin = a.rows * part / a.parts; begin < last; begin += kTermsAtOnce) {
                const int64_t end = std::min(begin + kTermsAtOnce, last);
                for (int64_t r = begin; r < end; ++r) x[r - begin] = a.x + (a.index ? a.index[r] : r) * a.in;
                pack_rows(a.grad, a.width, begin, end, grad.get());
                add_weight_rows(a, x, grad.get(), end - begin, sums);
            }
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < size; ++i) {
            float total = 0;
            for (int64_t part = 0; part < a.parts; ++part) total += a.sums[part * size + i];
            a.out[i] = total;
        }
    }
}

}  // namespace
