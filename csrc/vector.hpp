// Vectors of the width of the instruction set this file is compiled for, by the compiler's own vector types.
#pragma once

#include <cstdint>
#include <cstring>
#if SIAFU_VECTOR_BYTES >= 32
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
// So nothing is padded and nothing is masked; a width below one vector is handled by scalar code.
template <typename T>
[[gnu::always_inline]] inline int64_t vectors_in(int64_t width) {
    return (width + lanes<T> - 1) / lanes<T>;
}

}  // namespace
