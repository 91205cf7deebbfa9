#include <omp.h>

#include <algorithm>
#include <utility>

#include "items.hpp"
#include "partition.hpp"

int64_t quality_bytes(int64_t num_nodes, int64_t parts) {
    return Work::bytes<int32_t>(num_nodes) + Work::bytes<int64_t>(parts + 1) + omp_get_max_threads() * Work::bytes<uint64_t>(num_nodes / 64 + 1);
}

// One part after another, so that a bit a node suffices to count each row of a halo once.
void partition_quality(const PartitionJob& job, const int32_t* part, char* space, const PartitionCounts& counts) {
    Work work(space);
    int32_t* member = work.take<int32_t>(job.num_nodes);
    int64_t* start = work.take<int64_t>(job.parts + 1);
    const int64_t words = job.num_nodes / 64 + 1;
    char* seen_of = work.mark();
    std::fill(start, start + job.parts + 1, 0);
    for (int64_t v = 0; v < job.num_nodes; ++v) ++start[part[v]];
    for (int64_t p = 0, at = 0; p <= job.parts; ++p) at += std::exchange(start[p], at);
    for (int64_t v = 0; v < job.num_nodes; ++v) member[start[part[v]]++] = int32_t(v);
#pragma omp parallel for schedule(dynamic, 1) if (job.indptr[job.num_nodes] >= kSmall)
    for (int64_t p = 0; p < job.parts; ++p) {
        uint64_t* seen = reinterpret_cast<uint64_t*>(seen_of + omp_get_thread_num() * Work::bytes<uint64_t>(words));
        std::fill(seen, seen + words, 0);
        int64_t edges = 0, train = 0, inside = 0, halo = 0;
        const int64_t begin = p ? start[p - 1] : 0;  // each start has moved to where the next part begins
        for (int64_t m = begin; m < start[p]; ++m) {
            const int32_t v = member[m];
            edges += job.indptr[v + 1] - job.indptr[v];
            train += job.train && job.train[v];
            for (int64_t e = job.indptr[v]; e < job.indptr[v + 1]; ++e) {
                const int32_t u = job.indices[e];
                if (part[u] == p) {
                    ++inside;
                    continue;
                }
                const uint64_t bit = uint64_t(1) << (u & 63);
                halo += !(seen[u >> 6] & bit);
                seen[u >> 6] |= bit;
            }
        }
        counts.nodes[p] = start[p] - begin, counts.edges[p] = edges, counts.train[p] = train;
        counts.inside[p] = inside, counts.halo[p] = halo;
    }
}
