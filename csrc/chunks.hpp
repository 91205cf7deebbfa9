// How much work threads take at a time, and how much is worth a second thread at all.
//
// Threads take chunks as they come (schedule dynamic), because another process may have taken the core of one of them: with
// equal shares all threads would wait for that one. A chunk is short, so that the wait for the last one is, and long enough
// that taking it costs little. At the end of a parallel region threads wait for each other; where one has lost its core that
// takes a time slice of some milliseconds, so a region begins only where each thread has some 50 microseconds of work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "team.hpp"

namespace {

constexpr int64_t kChunkNumbers = 1 << 16;      // numbers read or written in a chunk: some 20 microseconds
constexpr int64_t kThreadedNumbers = 1 << 18;   // numbers read or written, fewer are not worth a second thread
constexpr int64_t kThreadedProducts = 1 << 22;  // as kThreadedNumbers, of numbers multiplied in registers
constexpr int64_t kThreadedEdges = 1 << 15;     // as kThreadedNumbers, of edges that are looked up, copied or sorted

// Items of a chunk, of `count` items that read or write `numbers` in all.
inline int64_t chunk_of(int64_t count, int64_t numbers) {
    return std::max<int64_t>(1, int64_t(double(count) * double(kChunkNumbers) / double(std::max<int64_t>(1, numbers))));
}

}  // namespace
