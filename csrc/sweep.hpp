// One pass over items, each of which picks a new place by looking at the places of others. Several threads pick at once, yet
// the outcome is the same for any number of them: the items are cut into streams, a batch takes the next few items of every
// stream, and what a batch picked is carried out at its end, in order. A stream sees its own picks at once, those of other
// streams after the batch. Streams lie far apart, so this is close to going through the items one by one.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t kStreams = 64, kStretch = 4096, kBatches = 16;

// What an item sees while its stream is under way: the places of all items, and the picks of the stream in this batch.
struct Seen {
    const int32_t* place;
    const int32_t* picked;
    int64_t begin, now;

    int32_t operator[](int64_t item) const {
        return uint64_t(item - begin) < uint64_t(now - begin) ? picked[item - begin] : place[item];
    }
};

// pick(item, seen, thread) returns a place; carry_out(item, place) says whether the item went there.
// picks: kStreams * kStretch numbers. Returns how many items moved.
template <typename Pick, typename CarryOut>
int64_t sweep(int64_t count, const int32_t* place, int32_t* picks, bool threaded, const Pick& pick, const CarryOut& carry_out) {
    const int64_t batch = std::clamp<int64_t>(count / kBatches, 1, kStreams * kStretch);
    const int64_t streams = std::min(kStreams, batch), stretch = batch / streams;
    const int64_t longest = (count + streams - 1) / streams;
    int64_t moved = 0;
#pragma omp parallel if (threaded)
    for (int64_t done = 0; done < longest; done += stretch) {
        const auto bounds = [&](int64_t s) {
            const int64_t first = count * s / streams + done;
            return std::pair(first, std::min(first + stretch, count * (s + 1) / streams));
        };
#pragma omp for schedule(dynamic, 1)
        for (int64_t s = 0; s < streams; ++s) {
            const auto [begin, end] = bounds(s);
            int32_t* picked = picks + s * stretch;
            for (int64_t i = begin; i < end; ++i) picked[i - begin] = pick(i, Seen{place, picked, begin, i}, omp_get_thread_num());
        }
#pragma omp single
        for (int64_t s = 0; s < streams; ++s) {
            const auto [begin, end] = bounds(s);
            for (int64_t i = begin; i < end; ++i)
                if (picks[s * stretch + i - begin] != place[i]) moved += carry_out(i, picks[s * stretch + i - begin]);
        }
    }
    return moved;
}

}  // namespace
