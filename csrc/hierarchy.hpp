// Nodes in clusters, clusters in larger ones, found by label propagation of bounded size: an item joins the cluster that most
// of its edges come from and that has room (Raghavan et al. 2007; Meyerhenke, Sanders, Schulz 2014).
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "hash.hpp"
#include "scratch.hpp"

namespace {

class Hierarchy {
public:
    // part: (n), holds the cluster of each node from now on.
    Hierarchy(Scratch& scratch, const Load& total, int32_t* part) : scratch_(scratch), job_(scratch.job), total_(total) {
        levels_[0] = {job_.num_nodes, part};
        char* mark = scratch_.work.mark();
        Load* load = scratch_.work.take<Load>(job_.num_nodes);
        set_bound(0);
        gather(Nodes{job_, job_.num_nodes}, kNodeRounds, part, load);
        gather_dust(part, load);
        int64_t count = compact(part, job_.num_nodes, reinterpret_cast<int32_t*>(load));
        scratch_.work.release(mark);
        while (top_ + 1 < kMaxLevels && count <= levels_[top_].count / 2 && count >= job_.parts) {
            levels_[++top_] = {count, scratch_.work.take<int32_t>(count)};
            if (count <= kFew * job_.parts) return;
            with_items(top_, [&](const auto& items) {
                set_bound(std::min(top_, 2));
                Load* joined = scratch_.work.take<Load>(count);
                gather(items, kClusterRounds, levels_[top_].to_next, joined);
                count = compact(levels_[top_].to_next, count, reinterpret_cast<int32_t*>(joined));
            });
        }
    }

    // Each level has at most half the items of the one below, so that the places of all of them are one a node.
    static int64_t bytes(int64_t n) {
        const int64_t half = n / 2;
        const int64_t places = 4 * n + 16 * kMaxLevels;
        const int64_t items = 2 * Work::bytes<int32_t>(n) + Work::bytes<int32_t>(half + 1) + Work::bytes<Load>(half);
        return std::max(Work::bytes<Load>(n), places + items + Work::bytes<Load>(half));
    }

    int top() const { return top_; }

    // The part of each item of a level, once they are placed; of the lowest level, of each node.
    int32_t* part(int level) { return levels_[level].to_next; }

    // Gives the items of the level below the parts of those they belong to.
    void descend(int level) {
        const Level& below = levels_[level - 1];
        for (int64_t i = 0; i < below.count; ++i) below.to_next[i] = levels_[level].to_next[below.to_next[i]];
    }

    // Calls act with the items of a level. What act takes of the work space is taken back.
    template <typename Act>
    void with_items(int level, const Act& act) {
        if (level == 0) return act(Nodes{job_, job_.num_nodes});
        char* mark = scratch_.work.mark();
        act(clusters(level));
        scratch_.work.release(mark);
    }

private:
    static constexpr int kMaxLevels = 8, kNodeRounds = 8, kClusterRounds = 4;
    static constexpr int64_t kPieces[] = {128, 32, 8};  // clusters a part at least: of nodes, of clusters, of clusters of those
    static constexpr int64_t kNodes = 256;              // that a cluster may have, though clusters be fewer, down to the last number
    static constexpr int64_t kFew = 24;                 // clusters a part; fewer are not gathered any further

    struct Level {
        int64_t count;
        int32_t* to_next;  // (count) the item of the next level that each item belongs to; at the top, its part
    };

    void set_bound(int level) {
        const int64_t pieces = std::clamp(job_.num_nodes / job_.parts / kNodes, kPieces[2], kPieces[level]);
        const auto share = [&](int64_t total) { return std::max<int64_t>(1, total / job_.parts / pieces); };
        bound_ = {share(total_.edges), int32_t(share(total_.train)), int32_t(share(total_.nodes))};
    }

    template <typename Items>
    void gather(const Items& items, int rounds, int32_t* label, Load* load) {
        for (int64_t i = 0; i < items.count; ++i) label[i] = int32_t(i), load[i] = items.load(i);
        const auto pick = [&](int64_t i, const Seen& seen, int thread) { return favourite(items, i, seen, thread, load); };
        const auto carry_out = [&](int64_t i, int32_t to) {
            const Load own = items.load(i);
            if (!fits(load[to], own, bound_)) return 0;
            load[label[i]] -= own, load[to] += own;
            label[i] = to;
            return 1;
        };
        for (int round = 0; round < rounds; ++round)
            if (sweep(items.count, label, scratch_.picks, scratch_.threaded, pick, carry_out) * 50 < items.count) break;
    }

    // The cluster that most edges come from, of those with room and its own, which it leaves for a better one only.
    template <typename Items>
    int32_t favourite(const Items& items, int64_t i, const Seen& seen, int thread, const Load* load) const {
        const Load own = items.load(i);
        const int32_t here = seen.place[i];
        Tally tally = scratch_.tally(thread);
        tally.expect(own.edges);
        items.each_source(i, [&](int32_t u) { __builtin_prefetch(&seen.place[u]); }, [&](int32_t u) { tally.add(seen[u]); });
        int32_t best = here, most = 0, at_home = 0;
        uint64_t best_luck = 0;
        tally.drain([&](int32_t label, int32_t count) {
            if (label == here) at_home = count;
            if (label == here || count < most || !fits(load[label], own, bound_)) return;
            const uint64_t luck = mixed(job_.seed, label);
            if (count > most || luck > best_luck) best = label, most = count, best_luck = luck;
        });
        return most > at_home ? best : here;
    }

    // Nodes that no edge comes into tell nothing: those left alone are gathered as they come.
    void gather_dust(int32_t* label, Load* load) const {
        const int32_t room = std::max(1, bound_.nodes / 8);
        int32_t dust = -1;
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            if (job_.indptr[v] != job_.indptr[v + 1] || label[v] != v || load[v].nodes > 1) continue;
            if (dust < 0 || load[dust].nodes >= room || !fits(load[dust], load[v], bound_)) {
                dust = int32_t(v);
                continue;
            }
            load[dust] += load[v], load[v] = {};
            label[v] = dust;
        }
    }

    // Renames labels to 0, 1, ... in the order of their first items; returns how many there are.
    static int64_t compact(int32_t* label, int64_t count, int32_t* name) {
        std::fill(name, name + count, -1);
        int32_t next = 0;
        for (int64_t i = 0; i < count; ++i) {
            int32_t& named = name[label[i]];
            if (named < 0) named = next++;
            label[i] = named;
        }
        return next;
    }

    // Sorts the nodes by the item of a level that they belong to, and adds up their loads.
    Clusters clusters(int level) {
        const int64_t count = levels_[level].count;
        int32_t* of = scratch_.work.take<int32_t>(job_.num_nodes);
        int32_t* member = scratch_.work.take<int32_t>(job_.num_nodes);
        int32_t* start = scratch_.work.take<int32_t>(count + 1);
        Load* loads = scratch_.work.take<Load>(count);
        std::fill(loads, loads + count, Load{});
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            of[v] = levels_[0].to_next[v];
            for (int l = 1; l < level; ++l) of[v] = levels_[l].to_next[of[v]];
            loads[of[v]] += node_load(job_, v);
        }
        start[0] = 0;
        for (int64_t i = 0; i < count; ++i) start[i + 1] = start[i] + loads[i].nodes;
        for (int64_t v = job_.num_nodes - 1; v >= 0; --v) member[--start[of[v] + 1]] = int32_t(v);
        for (int64_t i = 0; i < count; ++i) start[i] = start[i + 1];
        start[count] = int32_t(job_.num_nodes);
        return {job_, count, of, member, start, loads};
    }

    Scratch& scratch_;
    const PartitionJob& job_;
    Load total_, bound_;
    Level levels_[kMaxLevels];
    int top_ = 0;
};

}  // namespace
