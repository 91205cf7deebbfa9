#include "partition.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "balance.hpp"
#include "hierarchy.hpp"
#include "parts.hpp"
#include "scratch.hpp"

namespace {

constexpr int kClusterRounds = 3, kNodeRounds = 8;

// Places items, the heaviest first, each into the part that most of its edges come from, weighed by the room that is left
// there (Stanton and Kliot 2012). Nodes are placed as they come.
template <typename Items>
void place(Scratch& scratch, const Items& items, Parts& parts, int32_t* part) {
    int32_t* order = scratch.work.take<int32_t>(items.count);
    std::iota(order, order + items.count, 0);
    if constexpr (std::is_same_v<Items, Clusters>)
        std::sort(order, order + items.count, [&](int32_t a, int32_t b) {
            return std::pair(-items.load(a).edges, a) < std::pair(-items.load(b).edges, b);
        });
    std::fill(part, part + items.count, -1);
    for (int64_t k = 0; k < items.count; ++k) {
        const int32_t i = order[k];
        const Load load = items.load(i);
        int32_t best = -1;
        double most = 0;
        scratch.each_tie(items, i, Seen{part, nullptr, 0, 0}, 0, [&](int32_t p, int64_t edges) {
            const double score = double(edges) * (1 - parts.fill[p]);
            if (parts.room(p, load) && score > most) best = p, most = score;
        });
        part[i] = best < 0 ? parts.emptiest(load) : best;
        parts.put(load, part[i]);
    }
}

// One pass in which each item moves to the part that most of its edges come from and that has room; among equals, to one
// less filled. Returns how many moved.
template <typename Items>
int64_t refine(Scratch& scratch, const Items& items, Parts& parts, int32_t* part) {
    const auto pick = [&](int64_t i, const Seen& seen, int thread) {
        const Load load = items.load(i);
        const int32_t here = part[i];
        int64_t at_home = 0, most = 0;
        int32_t best = here;
        scratch.each_tie(items, i, seen, thread, [&](int32_t p, int64_t edges) {
            if (p == here) at_home = edges;
            else if (edges >= most && parts.room(p, load) && (edges > most || parts.fill[p] < parts.fill[best])) best = p, most = edges;
        });
        return most > at_home || (most == at_home && parts.fill[best] < parts.fill[here]) ? best : here;
    };
    return sweep(items.count, part, scratch.picks, scratch.threaded, pick, [&](int64_t i, int32_t to) {
        const Load load = items.load(i);
        if (!parts.room(to, load) || parts.loads[part[i]].nodes == load.nodes) return 0;
        parts.move(load, part[i], to);
        part[i] = to;
        return 1;
    });
}

}  // namespace

int64_t partition_bytes(int64_t num_nodes, int64_t parts) {
    return Scratch::bytes(parts) + Parts::bytes(parts) + Hierarchy::bytes(num_nodes);
}

void partition(const PartitionJob& job, char* work, int32_t* part) {
    Load total;
    for (int64_t v = 0; v < job.num_nodes; ++v) total += node_load(job, v);
    Scratch scratch(job, work);
    Parts parts(scratch, total);
    Hierarchy levels(scratch, total, part);
    levels.with_items(levels.top(), [&](const auto& items) { place(scratch, items, parts, levels.part(levels.top())); });
    parts.allow(kWide);
    for (int level = levels.top(); level > 0; --level) {
        levels.with_items(level, [&](const auto& items) {
            for (int round = 0; round < kClusterRounds; ++round)
                if (refine(scratch, items, parts, levels.part(level)) * 100 < items.count) break;
        });
        levels.descend(level);
    }
    Balance balance(scratch, parts, part);
    const Nodes nodes{job, job.num_nodes};
    for (int round = 0; round < kNodeRounds; ++round) {
        const int64_t moved = refine(scratch, nodes, parts, part);
        if (round == 0) balance.relieve();  // no pass makes a part hold too much, so that once is enough
        if (moved * 200 < job.num_nodes) break;
    }
    balance.relieve();
    balance.fill_empty();
    balance.settle();
}
