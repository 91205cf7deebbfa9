// exp and expm1 as plain arithmetic, so that loops over floats become vector code. Doubles use the library's.
//
// x = n ln 2 + r with n whole and |r| <= ln 2 / 2; then e^x = 2^n (1 + p) with p = e^r - 1, a polynomial.
#pragma once

#include <cstdint>

namespace {

struct PowerOfTwo {
    float scale;  // 2^n
    float rest;   // e^r - 1
};

// For x in [-87, 88]; what is outside is for the caller to handle. NaN gives a rest that is NaN.
[[gnu::always_inline]] inline PowerOfTwo split_exp(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
    const float shifted = x * 1.44269504f + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, n times the first is exact
    const float q = ((((r * (1.0f / 5040) + 1.0f / 720) * r + 1.0f / 120) * r + 1.0f / 24) * r + 1.0f / 6) * r + 0.5f;
    const uint32_t bits = (__builtin_bit_cast(uint32_t, shifted) << 23) + 0x3F800000u;
    return {__builtin_bit_cast(float, bits), r * r * q + r};
}

// Zero below -87, where floats end.
[[gnu::always_inline]] inline float exp_of(float x) {
    const PowerOfTwo e = split_exp(x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x);
    return x < -87.0f ? 0.0f : e.scale * e.rest + e.scale;
}
[[gnu::always_inline]] inline double exp_of(double x) { return __builtin_exp(x); }

// For x <= 0.
[[gnu::always_inline]] inline float expm1_of(float x) {
    const PowerOfTwo e = split_exp(x < -87.0f ? -87.0f : x);
    return e.scale * e.rest + (e.scale - 1.0f);
}
[[gnu::always_inline]] inline double expm1_of(double x) { return __builtin_expm1(x); }

}  // namespace
