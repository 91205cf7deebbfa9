// What follows a matrix product, in one pass: bias, activation, dropout. Nothing is kept for the backward pass but the
// output itself: the dropout mask is a function of (key, row id, column) and is computed again.
#pragma once

#include <algorithm>

#include "chunks.hpp"
#include "exp.hpp"
#include "hash.hpp"
#include "vector.hpp"

enum class Activation : int { none = 0, relu = 1, elu = 2 };

template <typename T>
struct Epilogue {
    const T* x;             // (rows, width)
    const T* bias;          // (width) or null
    const int64_t* row_id;  // (rows) or null: the row number
    int64_t rows, width;
    Activation activation;
    uint64_t key;
    uint32_t threshold;     // an element is dropped where its hash is below this; 0 drops none
    T scale;                // of the elements kept
    T* out;                 // (rows, width), may be x
};

template <typename T>
struct EpilogueBackward {
    const T* grad;          // (rows, width)
    int64_t stride;         // from a row of grad to the next
    const T* output;        // (rows, width), what forward returned
    const int64_t* row_id;
    int64_t rows, width;
    Activation activation;
    uint64_t key;
    uint32_t threshold;
    T scale;
    T* out;                 // (rows, width)
    T* bias_parts;          // (kBiasParts, width) or null: sums over fixed ranges of rows, to be added in order
};

constexpr int64_t kBiasParts = 32;

namespace {

template <typename T>
[[gnu::always_inline]] inline T activate(T x, Activation activation) {
    if (activation == Activation::relu) return x < T(0) ? T(0) : x;  // NaN is passed on
    if (activation == Activation::elu) return x > T(0) ? x : expm1_of(x > T(0) ? T(0) : x);
    return x;
}

// The derivative at the point whose (undropped) value is h.
template <typename T>
[[gnu::always_inline]] inline T slope_at(T h, Activation activation) {
    if (activation == Activation::relu) return h > T(0) ? T(1) : T(0);
    if (activation == Activation::elu) return h > T(0) ? T(1) : h + T(1);
    return T(1);
}

// Everything a loop reads is a local, so that the compiler need not fear that a store changes it. Kept: nothing is dropped.
template <Activation A, bool Kept, typename T>
[[gnu::always_inline]] inline void epilogue_columns(const T* x, const T* bias, T* out, int width, uint32_t state,
                                                    uint32_t threshold, T scale) {
#pragma omp simd
    for (int f = 0; f < width; ++f) {
        const T h = activate<T>(x[f] + bias[f], A);
        if constexpr (Kept) out[f] = h;
        else out[f] = element_hash(state, uint32_t(f)) < threshold ? T(0) : h * scale;
    }
}

template <Activation A, typename T>
void epilogue_row(const Epilogue<T>& a, const T* bias, int64_t r) {
    const T* x = a.x + r * a.width;
    T* out = a.out + r * a.width;
    const uint32_t state = row_state(a.key, a.row_id ? a.row_id[r] : r);
    if (a.threshold) epilogue_columns<A, false>(x, bias, out, int(a.width), state, a.threshold, a.scale);
    else epilogue_columns<A, true>(x, bias, out, int(a.width), state, 0, T(1));
}

template <Activation A, bool Kept, typename T>
[[gnu::always_inline]] inline void epilogue_backward_columns(const T* grad, const T* output, T* out, int width, uint32_t state,
                                                             uint32_t threshold, T scale) {
    const T back = T(1) / scale;
#pragma omp simd
    for (int f = 0; f < width; ++f) {
        const T local = grad[f] * scale * slope_at<T>(output[f] * back, A);
        // What ReLU's output shows as zero was cut off or dropped, so it needs no mask.
        if constexpr (Kept || A == Activation::relu) out[f] = local;
        else out[f] = element_hash(state, uint32_t(f)) < threshold ? T(0) : local;
    }
}

template <typename T>
void epilogue_row_of(const Epilogue<T>& a, const T* bias, int64_t r) {
    switch (a.activation) {
        case Activation::relu: return epilogue_row<Activation::relu>(a, bias, r);
        case Activation::elu: return epilogue_row<Activation::elu>(a, bias, r);
        default: return epilogue_row<Activation::none>(a, bias, r);
    }
}

template <Activation A, typename T>
void epilogue_backward_row(const EpilogueBackward<T>& a, int64_t r, T* out) {
    const T *grad = a.grad + r * a.stride, *output = a.output + r * a.width;
    const uint32_t state = row_state(a.key, a.row_id ? a.row_id[r] : r);
    if (a.threshold) epilogue_backward_columns<A, false>(grad, output, out, int(a.width), state, a.threshold, a.scale);
    else epilogue_backward_columns<A, true>(grad, output, out, int(a.width), state, 0, a.scale);
}

template <typename T>
void epilogue_backward_row_of(const EpilogueBackward<T>& a, int64_t r, T* out) {
    switch (a.activation) {
        case Activation::relu: return epilogue_backward_row<Activation::relu>(a, r, out);
        case Activation::elu: return epilogue_backward_row<Activation::elu>(a, r, out);
        default: return epilogue_backward_row<Activation::none>(a, r, out);
    }
}

template <typename T>
void epilogue(const Epilogue<T>& a) {
    T* zeros = a.bias ? nullptr : new T[a.width]();
    const T* bias = a.bias ? a.bias : zeros;
    Team team;
#pragma omp parallel if (a.rows * a.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, chunk_of(a.rows, a.rows * a.width)) nowait
        for (int64_t r = 0; r < a.rows; ++r) epilogue_row_of(a, bias, r);
    }
    delete[] zeros;
}

template <typename T>
void epilogue_backward(const EpilogueBackward<T>& a) {
    Team team;
#pragma omp parallel if (a.rows * a.width > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < kBiasParts; ++part) {
            T* sums = a.bias_parts ? a.bias_parts + part * a.width : nullptr;
            if (sums) std::fill(sums, sums + a.width, T(0));
            for (int64_t r = a.rows * part / kBiasParts; r < a.rows * (part + 1) / kBiasParts; ++r) {
                T* row = a.out + r * a.width;
                epilogue_backward_row_of(a, r, row);
                if (!sums) continue;
#pragma omp simd
                for (int64_t f = 0; f < a.width; ++f) sums[f] += row[f];
            }
        }
    }
}

}  // namespace
