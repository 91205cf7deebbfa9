// What every pass of the partitioner works with: the graph, one array to take memory from, and small tables for each thread.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "items.hpp"
#include "sweep.hpp"
#include "tally.hpp"

namespace {

struct Scratch {
    const PartitionJob& job;
    Work work;
    int64_t threads = omp_get_max_threads();
    bool threaded = job.indptr[job.num_nodes] >= kSmall;
    int32_t* picks = work.take<int32_t>(kStreams * kStretch);
    char* tallies = work.take<char>(threads * Tally::kBytes);
    int64_t* ties = work.take<int64_t>(threads * job.parts);  // zero between uses
    int32_t* tied = work.take<int32_t>(threads * job.parts);

    Scratch(const PartitionJob& given, char* begin) : job(given), work(begin) {
        for (int64_t t = 0; t < threads; ++t) Tally(tallies + t * Tally::kBytes).make_empty();
        std::fill(ties, ties + threads * job.parts, 0);
    }

    static int64_t bytes(int64_t parts) {
        const int64_t threads = omp_get_max_threads();
        return Work::bytes<int32_t>(kStreams * kStretch) + Work::bytes<char>(threads * Tally::kBytes) +
               Work::bytes<int64_t>(threads * parts) + Work::bytes<int32_t>(threads * parts);
    }

    Tally tally(int thread) const { return Tally(tallies + thread * Tally::kBytes); }

    // Counts the edges into an item from each part, and calls visit(part, edges) for those that there are any from.
    // part_of[item] is a part, or negative where there is none yet.
    template <typename Items, typename PartOf, typename Visit>
    void each_tie(const Items& items, int64_t i, const PartOf& part_of, int thread, const Visit& visit) {
        int64_t* tie = ties + thread * job.parts;
        int32_t* found = tied + thread * job.parts;
        int32_t count = 0;
        items.each_source(i, [&](int32_t u) { __builtin_prefetch(&part_of.place[u]); }, [&](int32_t u) {
            const int32_t p = part_of[u];
            if (p >= 0 && tie[p]++ == 0) found[count++] = p;
        });
        for (int32_t k = 0; k < count; ++k) {
            const int64_t edges = tie[found[k]];
            tie[found[k]] = 0;
            visit(found[k], edges);
        }
    }
};

}  // namespace
