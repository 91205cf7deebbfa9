// Vectors of the width of the instruction set this file is compiled for, by the compiler's own vector types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef SIAFU_VECTOR_BYTES
#define SIAFU_VECTOR_BYTES 16
#endif

namespace {

using bf16 = uint16_t;  // the upper half of an IEEE float

template <typename T>
struct VectorOf {
    typedef T type __attribute__((vector_size(SIAFU_VECTOR_BYTES)));
};
template <typename T>
using Vec = typename VectorOf<T>::type;

template <typename T>
constexpr int lanes = SIAFU_VECTOR_BYTES / int(sizeof(T));

template <typename T>
[[gnu::always_inline]] inline Vec<T> splat(T value) {
    return Vec<T>{} + value;
}

template <typename T>
[[gnu::always_inline]] inline Vec<T> load(const T* from) {
    Vec<T> v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

// A row stored narrow is widened as it is read: sums are always kept in T.
[[gnu::always_inline]] inline Vec<float> load(const bf16* from) {
    typedef uint16_t Half __attribute__((vector_size(SIAFU_VECTOR_BYTES / 2)));
    typedef uint32_t Whole __attribute__((vector_size(SIAFU_VECTOR_BYTES)));
    Half half;
    __builtin_memcpy(&half, from, sizeof half);
    const Whole whole = __builtin_convertvector(half, Whole) << 16;
    return (Vec<float>)whole;
}

[[gnu::always_inline]] inline Vec<float> load(const int8_t* from) {
    typedef int8_t Bytes __attribute__((vector_size(SIAFU_VECTOR_BYTES / 4)));
    typedef int32_t Whole __attribute__((vector_size(SIAFU_VECTOR_BYTES)));
    Bytes bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Whole), Vec<float>);
}

template <typename T>
[[gnu::always_inline]] inline void store(T* to, Vec<T> v) {
    __builtin_memcpy(to, &v, sizeof v);
}

[[gnu::always_inline]] inline float widen(float x) { return x; }
[[gnu::always_inline]] inline double widen(double x) { return x; }
[[gnu::always_inline]] inline float widen(int8_t x) { return float(x); }
[[gnu::always_inline]] inline float widen(bf16 x) {
    const uint32_t bits = uint32_t(x) << 16;
    float out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
}

// Whole numbers as wide as the lanes of a Vec<T>, which say where a lane is taken from.
template <typename T>
using Places = Vec<std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>;

// place(i) for each lane i.
template <typename T, typename Place>
[[gnu::always_inline]] inline Places<T> places_of(const Place& place) {
    Places<T> places = {};
    for (int i = 0; i < lanes<T>; ++i) places[i] = place(i);
    return places;
}

// Lane i is lane At{}(i) of x and y, one after the other; At is known to the compiler.
template <typename At, typename T, size_t... I>
[[gnu::always_inline]] inline Vec<T> permute_each(Vec<T> x, Vec<T> y, std::index_sequence<I...>) {
    return __builtin_shufflevector(x, y, At{}(int(I))...);
}
template <typename T, typename At>
[[gnu::always_inline]] inline Vec<T> permute(Vec<T> x, Vec<T> y, At) {
    return permute_each<At, T>(x, y, std::make_index_sequence<lanes<T>>{});
}

// The first lanes of a vector, at most all. A load of them gives zero in the others and reads nothing there; a store of them
// writes nothing there.
#if SIAFU_VECTOR_BYTES == 64
template <typename T>
struct First {
    uint32_t bits;

    explicit First(int64_t count) : bits(count < lanes<T> ? (1u << count) - 1 : ~0u) {}
};

[[gnu::always_inline]] inline Vec<float> load(const float* from, First<float> of) { return _mm512_maskz_loadu_ps(__mmask16(of.bits), from); }
[[gnu::always_inline]] inline Vec<double> load(const double* from, First<double> of) { return _mm512_maskz_loadu_pd(__mmask8(of.bits), from); }
[[gnu::always_inline]] inline void store(float* to, Vec<float> v, First<float> of) { _mm512_mask_storeu_ps(to, __mmask16(of.bits), v); }
[[gnu::always_inline]] inline void store(double* to, Vec<double> v, First<double> of) { _mm512_mask_storeu_pd(to, __mmask8(of.bits), v); }
#elif SIAFU_VECTOR_BYTES == 32
template <typename T>
struct First {
    Places<T> mask;

    explicit First(int64_t count) : mask(places_of<T>([count](int i) { return i < count ? -1 : 0; })) {}
};

[[gnu::always_inline]] inline Vec<float> load(const float* from, First<float> of) { return _mm256_maskload_ps(from, (__m256i)of.mask); }
[[gnu::always_inline]] inline Vec<double> load(const double* from, First<double> of) { return _mm256_maskload_pd(from, (__m256i)of.mask); }
[[gnu::always_inline]] inline void store(float* to, Vec<float> v, First<float> of) { _mm256_maskstore_ps(to, (__m256i)of.mask, v); }
[[gnu::always_inline]] inline void store(double* to, Vec<double> v, First<double> of) { _mm256_maskstore_pd(to, (__m256i)of.mask, v); }
#else
template <typename T>
struct First {
    int64_t count;

    explicit First(int64_t lanes_wanted) : count(lanes_wanted < lanes<T> ? lanes_wanted : lanes<T>) {}
};

template <typename T>
[[gnu::always_inline]] inline Vec<T> load(const T* from, First<T> of) {
    Vec<T> v = {};
    for (int i = 0; i < lanes<T>; ++i)
        if (i < of.count) v[i] = from[i];
    return v;
}
template <typename T>
[[gnu::always_inline]] inline void store(T* to, Vec<T> v, First<T> of) {
    for (int i = 0; i < lanes<T>; ++i)
        if (i < of.count) to[i] = v[i];
}
#endif

template <typename T>
[[gnu::always_inline]] inline T sum_lanes(Vec<T> v) {
    T total = 0;
    for (int i = 0; i < lanes<T>; ++i) total += v[i];
    return total;
}

// Whether any lane is not 0.
[[gnu::always_inline]] inline bool any(Vec<int32_t> v) {
#if SIAFU_VECTOR_BYTES == 64
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v);
#elif SIAFU_VECTOR_BYTES == 32
    return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#else
    const Vec<int64_t> halves = (Vec<int64_t>)v;
    return halves[0] | halves[1];
#endif
}

// Columns are cut into vectors; where the width is no multiple, the last vector overlaps the one before.
// So nothing is padded.
template <typename T>
[[gnu::always_inline]] inline int64_t vectors_in(int64_t width) {
    return (width + lanes<T> - 1) / lanes<T>;
}

}  // namespace
