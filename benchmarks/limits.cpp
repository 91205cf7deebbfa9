// What a machine can do at most: multiply-adds in registers, and rows read at random. Compiled by kernels.py.
#include <omp.h>

#include <cstdint>

namespace {

#ifdef __AVX512F__
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vec __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / 4;
constexpr int kSums = 12;   // multiply-adds under way: more than latency times units, fewer than registers
constexpr int kAhead = 16;  // rows between a prefetch and its use

Vec load(const float* from) {
    Vec v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

}  // namespace

extern "C" {

// Floating-point operations of `rounds` rounds on each thread.
double multiply_add(int64_t rounds, int threads, float* out) {
#pragma omp parallel num_threads(threads)
    {
        Vec sums[kSums], factor = Vec{} + 0.999f, add = Vec{} + 1e-3f;
        for (int k = 0; k < kSums; ++k) sums[k] = Vec{} + float(k);  // unlike, or they would be one
        for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
            for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * factor + add;
        }
        float total = 0;
        for (const Vec& sum : sums) total += sum[0];
#pragma omp critical
        *out += total;
    }
    return 2.0 * double(rounds) * kSums * kLanes * threads;
}

// Reads the rows named by ids, (count), each `width` floats and `stride` from the next, and adds them up.
void gather(const float* x, int64_t width, int64_t stride, const int32_t* ids, int64_t count, int threads, float* out) {
#pragma omp parallel num_threads(threads)
    {
        Vec sums[4] = {};
        float rest = 0;
#pragma omp for schedule(static)
        for (int64_t e = 0; e < count; ++e) {
            const float* row = x + ids[e] * stride;
            const char* next = reinterpret_cast<const char*>(x + ids[e + kAhead < count ? e + kAhead : e] * stride);
            const char* end = next + width * 4;
            for (; next < end; next += 64) __builtin_prefetch(next);
            __builtin_prefetch(end - 1);
            int64_t f = 0;
            for (; f + kLanes <= width; f += kLanes) sums[f / kLanes % 4] += load(row + f);
            if (f < width && width >= kLanes) sums[3] += load(row + width - kLanes);
            for (; f < width && width < kLanes; ++f) rest += row[f];
        }
        for (const Vec& sum : sums) rest += sum[0];
#pragma omp critical
        *out += rest;
    }
}
}
