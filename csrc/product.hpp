// Products of rows and weights with what follows them, and their gradients: many rows, weights that fit into a cache.
//
// Tiles of kHigh rows by kWide columns are kept in registers; what follows is done to rows that are still in the cache. The order
// of every sum depends on shapes alone, never on threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "epilogue.hpp"
#include "vector.hpp"

// One of the products that are added up.
struct Term {
    const float* x;       // (rows, in)
    int64_t in;
    const float* weight;  // (in, width)

    const float* row(int64_t r) const { return x + r * in; }
};

constexpr int kMostTerms = 2;

struct Product {
    Term terms[kMostTerms];
    int num_terms;
    int64_t rows, width;
    const float* add;               // (rows, width), may be out; or (width), or null
    bool add_rows;                  // whether add has a row for each
    float* out;                     // (rows, width)
    const Epilogue<float>* after;   // done to the rows where they are, or null
};

struct ProductBackward {
    Term terms[kMostTerms];
    int num_terms;
    int64_t rows, width;
    const float* grad;                        // (rows, width), of what the product returned
    int64_t stride;                           // from a row of grad to the next
    const EpilogueBackward<float>* after;     // of what was done to the rows, or null; its out is not written
    int64_t parts;
    float* sums;                              // (parts, size): over fixed ranges of rows, added in order
    float* out;                               // (size): gradients of the weights, one after another, then that of the bias
    float* grad_x[kMostTerms];                // (rows, in) or null
    int64_t size() const {
        int64_t in = 1;
        for (int t = 0; t < num_terms; ++t) in += terms[t].in;
        return in * width;
    }
};

namespace {

constexpr int kHigh = 6;
constexpr int kWide = 2 * lanes<float>;
constexpr int64_t kDeep = 256;       // terms that are added before a tile is written
constexpr int64_t kRowsAtOnce = 48;  // of a product: a multiple of kHigh
constexpr int64_t kTermsAtOnce = 128;  // rows of which the weights' gradient is added up before it is written

// What a tile is multiplied with: row r's k-th number is x[r][k], or, of sums over rows, x[k][r].
enum class Over { columns, rows };

// to[r] = from[r] + sum over k of the k-th number of row r * panel[k], for R rows of V vectors, of which the last has `some`
// columns, or, if Whole, all. A function of its own, so that the compiler keeps the tile in registers.
template <int R, int V, bool Whole, Over O>
[[gnu::noinline]] void add_tile(const float* const* x, int64_t first, int64_t depth, const float* panel, const float* const* from,
                                float* const* to, First<float> some) {
    constexpr int64_t kLast = (V - 1) * lanes<float>;
    Vec<float> low[R], last[R];  // low is that of two vectors alone
    const float* row[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        if constexpr (V > 1) low[r] = load(from[r]);
        last[r] = Whole ? load(from[r] + kLast) : load(from[r] + kLast, some);
        if constexpr (O == Over::columns) row[r] = x[r] + first;
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
        const Vec<float> left = load(panel + k * kWide), right = load(panel + k * kWide + kLast);
        const float* across = O == Over::rows ? x[k] + first : nullptr;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const Vec<float> value = (O == Over::rows ? across[r] : row[r][k]) - Vec<float>{};
            if constexpr (V > 1) low[r] += value * left;
            last[r] += value * right;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        if constexpr (V > 1) store(to[r], low[r]);
        if constexpr (Whole) store(to[r] + kLast, last[r]);
        else store(to[r] + kLast, last[r], some);
    }
}

template <int V, bool Whole, Over O>
inline void add_tile_of(int rows, const float* const* x, int64_t first, int64_t depth, const float* panel, const float* const* from,
                        float* const* to, First<float> some) {
    switch (rows) {
        case 1: return add_tile<1, V, Whole, O>(x, first, depth, panel, from, to, some);
        case 2: return add_tile<2, V, Whole, O>(x, first, depth, panel, from, to, some);
        case 3: return add_tile<3, V, Whole, O>(x, first, depth, panel, from, to, some);
        case 4: return add_tile<4, V, Whole, O>(x, first, depth, panel, from, to, some);
        case 5: return add_tile<5, V, Whole, O>(x, first, depth, panel, from, to, some);
        default: return add_tile<kHigh, V, Whole, O>(x, first, depth, panel, from, to, some);
    }
}

// The same where fewer than kWide columns may be there: beyond them nothing is read or written.
template <Over O>
inline void add_tile_within(int64_t columns, int rows, const float* const* x, int64_t first, int64_t depth, const float* panel,
                            const float* const* from, float* const* to) {
    const auto tile = [&](auto add, int64_t some) { add(rows, x, first, depth, panel, from, to, First<float>(some)); };
    if (columns >= kWide) tile(add_tile_of<2, true, O>, lanes<float>);
    else if (columns > lanes<float>) tile(add_tile_of<2, false, O>, columns - lanes<float>);
    else tile(add_tile_of<1, false, O>, columns);
}

// Weights (in, width), or (width, in) where they are turned, kWide columns after kWide columns, zero beyond the last.
inline void pack_weight(const float* weight, bool turned, int64_t in, int64_t width, int64_t panel, float* to) {
    const int64_t first = panel * kWide, columns = std::min<int64_t>(kWide, width - first);
    for (int64_t k = 0; k < in; ++k) {
        float* row = to + k * kWide;
        for (int64_t c = 0; c < columns; ++c) row[c] = turned ? weight[(first + c) * in + k] : weight[k * width + first + c];
        std::fill(row + columns, row + kWide, 0.0f);
    }
}

// Adds one term to some rows, whose first values are told by `from(row)`, each `width` wide; those of `out` begin `stride` apart.
template <typename Row, typename From>
inline void add_term(const Row& row, int64_t in, int64_t width, const float* packed, int64_t begin, int64_t end, const From& from, float* out,
                     int64_t stride) {
    for (int64_t k0 = 0; k0 == 0 || k0 < in; k0 += kDeep)
        for (int64_t first = 0, p = 0; first < width; first += kWide, ++p) {
            const int64_t depth = std::min(kDeep, in - k0);
            for (int64_t r0 = begin; r0 < end; r0 += kHigh) {
                const int rows = int(std::min<int64_t>(kHigh, end - r0));
                const float *x[kHigh], *before[kHigh];
                float* to[kHigh];
                for (int r = 0; r < rows; ++r) {
                    x[r] = row(r0 + r);
                    to[r] = out + (r0 + r) * stride + first;
                    before[r] = k0 ? to[r] : from(r0 + r, first);
                }
                add_tile_within<Over::columns>(width - first, rows, x, k0, depth, packed + (p * in + k0) * kWide, before, to);
            }
        }
}

constexpr float kZeros[kWide] = {};

inline int64_t panels_of(int64_t width) { return (width + kWide - 1) / kWide; }

inline void product(const Product& a) {
    const int64_t panels = panels_of(a.width);
    int64_t in = 0, start[kMostTerms];
    for (int t = 0; t < a.num_terms; in += a.terms[t++].in) start[t] = panels * in * kWide;
    const std::unique_ptr<float[]> packed(new float[size_t(panels * in * kWide)]);
    const std::unique_ptr<float[]> no_bias(a.after && !a.after->bias ? new float[size_t(a.width)]() : nullptr);
    for (int t = 0; t < a.num_terms; ++t) {
        const Term& term = a.terms[t];
#pragma omp parallel for schedule(dynamic, 1) if (panels * term.in * kWide > kThreadedNumbers)
        for (int64_t p = 0; p < panels; ++p)
            pack_weight(term.weight, false, term.in, a.width, p, packed.get() + start[t] + p * term.in * kWide);
    }
    Team team;
#pragma omp parallel if (a.rows * in * a.width > kThreadedProducts)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 4) nowait
        for (int64_t begin = 0; begin < a.rows; begin += kRowsAtOnce) {
            const int64_t end = std::min(begin + kRowsAtOnce, a.rows);
            for (int t = 0; t < a.num_terms; ++t) {
                const auto from = [&a, t](int64_t r, int64_t c) -> const float* {
                    if (t) return a.out + r * a.width + c;
                    return !a.add ? kZeros : a.add_rows ? a.add + r * a.width + c : a.add + c;
                };
                const Term& term = a.terms[t];
                const auto row = [&term](int64_t r) { return term.row(r); };
                add_term(row, term.in, a.width, packed.get() + start[t], begin, end, from, a.out, a.width);
            }
            if (!a.after) continue;
            const float* bias = a.after->bias ? a.after->bias : no_bias.get();
            for (int64_t r = begin; r < end; ++r) epilogue_row_of(*a.after, bias, r);
        }
    }
}

// Rows of kWide columns after rows of kWide columns, zero beyond the last column.
inline void pack_rows(const float* x, int64_t stride, int64_t width, int64_t rows, float* to) {
    for (int64_t first = 0; first < width; first += kWide) {
        const int64_t columns = std::min<int64_t>(kWide, width - first);
        for (int64_t r = 0; r < rows; ++r, to += kWide) {
            const float* row = x + r * stride + first;
            if (columns == kWide) {
                store(to, load(row)), store(to + lanes<float>, load(row + lanes<float>));
                continue;
            }
            std::copy(row, row + columns, to);
            std::fill(to + columns, to + kWide, 0.0f);
        }
    }
}

// Adds the share of some rows to the sums of a part. fetch(i) is called before columns [i, i + kHigh) of x are worked on.
template <typename Fetch>
inline void add_weight_rows(int64_t in, int64_t width, const float* const* x, const float* grad, int64_t rows, float* sums,
                            const Fetch& fetch) {
    for (int64_t i0 = 0; i0 < in; i0 += kHigh) {
        fetch(i0);
        for (int64_t c0 = 0, p = 0; c0 < width; c0 += kWide, ++p) {
            const int high = int(std::min<int64_t>(kHigh, in - i0));
            float* to[kHigh];
            for (int r = 0; r < high; ++r) to[r] = sums + (i0 + r) * width + c0;
            add_tile_within<Over::rows>(width - c0, high, x, i0, rows, grad + p * rows * kWide, to, to);
        }
    }
}

inline void add_weight_rows(int64_t in, int64_t width, const float* const* x, const float* grad, int64_t rows, float* sums) {
    add_weight_rows(in, width, x, grad, rows, sums, [](int64_t) {});
}

// What a thread of the backward pass works with.
struct BackwardRoom {
    std::unique_ptr<float[]> grad, packed;
    const float* x[kTermsAtOnce];

    explicit BackwardRoom(int64_t width)
        : grad(new float[size_t(kTermsAtOnce * width)]), packed(new float[size_t(kTermsAtOnce * panels_of(width) * kWide)]) {}
};

// Fetches floats [first, last) of an array, a line at a time.
inline void fetch_lines(const float* from, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += 16) __builtin_prefetch(from + i);
}

// Adds the share of some rows to the sums of a part, and writes the gradients of their inputs.
inline void backward_rows(const ProductBackward& a, const float* const* turned, int64_t begin, int64_t end, BackwardRoom& room, float* sums) {
    const int64_t ahead = std::min(2 * end - begin, a.rows) - end;  // rows that are read next, across which sums go column by column
    const int64_t rows = end - begin, stride = a.after ? a.width : a.stride;
    const float* grad = a.grad + begin * a.stride;
    if (a.after) {
        for (int64_t r = 0; r < rows; ++r) epilogue_backward_row_of(*a.after, begin + r, room.grad.get() + r * a.width);
        grad = room.grad.get();
    }
    pack_rows(grad, stride, a.width, rows, room.packed.get());
    for (int t = 0; t < a.num_terms; ++t) {
        const Term& term = a.terms[t];
        for (int64_t r = 0; r < rows; ++r) room.x[r] = term.row(begin + r);
        add_weight_rows(term.in, a.width, room.x, room.packed.get(), rows, sums, [&](int64_t i) {
            fetch_lines(term.row(end), ahead * i, ahead * std::min(i + kHigh, term.in));
        });
        sums += term.in * a.width;
        if (!a.grad_x[t]) continue;
        const auto row = [grad, stride](int64_t r) { return grad + r * stride; };
        add_term(row, a.width, term.in, turned[t], 0, rows, [](int64_t, int64_t) { return kZeros; }, a.grad_x[t] + begin * term.in, term.in);
    }
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
        for (int64_t c = 0; c < a.width; ++c) sums[c] += grad[r * stride + c];
    }
}

inline void product_backward(const ProductBackward& a) {
    const int64_t size = a.size();
    std::unique_ptr<float[]> turned[kMostTerms];
    const float* turned_of[kMostTerms] = {};
    for (int t = 0; t < a.num_terms; ++t) {
        if (!a.grad_x[t]) continue;
        const int64_t in = a.terms[t].in;
        turned[t].reset(new float[size_t(panels_of(in) * a.width * kWide)]);
        turned_of[t] = turned[t].get();
        for (int64_t p = 0; p < panels_of(in); ++p)
            pack_weight(a.terms[t].weight, true, a.width, in, p, turned[t].get() + p * a.width * kWide);
    }
    Team team;
#pragma omp parallel if (a.rows * size > kThreadedProducts)
    {
        Member member(team);
        BackwardRoom room(a.width);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < a.parts; ++part) {
            float* sums = a.sums + part * size;
            std::fill(sums, sums + size, 0.0f);
            const int64_t last = a.rows * (part + 1) / a.parts;
            for (int64_t begin = a.rows * part / a.parts; begin < last; begin += kTermsAtOnce)
                backward_rows(a, turned_of, begin, std::min(begin + kTermsAtOnce, last), room, sums);
        }
        member.wait();
#pragma omp for schedule(dynamic, 1024) nowait
        for (int64_t i = 0; i < size; ++i) {
            float total = 0;
            for (int64_t part = 0; part < a.parts; ++part) total += a.sums[part * size + i];
            a.out[i] = total;
        }
    }
}

}  // namespace
