// Adam in two passes over a parameter, before and after the square root of its second moment, which torch takes: the
// roots of the library that torch calls are not those of the processor in every last bit.
#pragma once

#include <cmath>
#include <cstdint>

template <typename T>
struct AdamMoments {
    const T* grad;       // (size), as all arrays here
    const T* parameter;  // or null where the decay is 0
    T* mean;
    T* square;
    int64_t size;
    T decay, mean_rate, square_keep, square_rate;
};

template <typename T>
struct AdamMove {
    const T* mean;
    const T* root;       // of the second moment
    T* parameter;
    int64_t size;
    T divisor, eps, rate;
};

namespace {

constexpr int64_t kAdamSmall = 1 << 15;  // elements; fewer are not worth a second thread

// x * y + z as torch's vectors compute it: rounded once where the instruction set can.
template <typename T>
[[gnu::always_inline]] inline T multiply_add(T x, T y, T z) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(x, y, z);
#else
    return x * y + z;
#endif
}

template <bool Decays, typename T>
void adam_moments_of(const AdamMoments<T>& a) {
    const T *given = a.grad, *parameter = a.parameter;
    T *mean = a.mean, *square = a.square;
    const T decay = a.decay, mean_rate = a.mean_rate, keep = a.square_keep, rate = a.square_rate;
#pragma omp parallel for simd if (parallel : a.size > kAdamSmall)
    for (int64_t i = 0; i < a.size; ++i) {
        T grad = given[i];
        if constexpr (Decays) grad = multiply_add(decay, parameter[i], grad);
        mean[i] = multiply_add(mean_rate, grad - mean[i], mean[i]);
        square[i] = multiply_add(rate * grad, grad, square[i] * keep);
    }
}

template <typename T>
void adam_moments(const AdamMoments<T>& a) {
    a.parameter ? adam_moments_of<true>(a) : adam_moments_of<false>(a);
}

template <typename T>
void adam_move(const AdamMove<T>& a) {
    const T *mean = a.mean, *root = a.root;
    T* parameter = a.parameter;
    const T divisor = a.divisor, eps = a.eps, rate = a.rate;
#pragma omp parallel for simd if (parallel : a.size > kAdamSmall)
    for (int64_t i = 0; i < a.size; ++i) parameter[i] += rate * mean[i] / (root[i] / divisor + eps);
}

}  // namespace
