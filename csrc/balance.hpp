// Parts that hold too much are relieved: in passes over the nodes, as few edges lost as can be; what is left, node by node.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parts.hpp"

namespace {

class Balance {
public:
    Balance(Scratch& scratch, Parts& parts, int32_t* part)
        : scratch_(scratch), job_(scratch.job), parts_(parts), nodes_{job_, job_.num_nodes}, part_(part) {}

    // Nodes leave for where few of their edges are lost; what may be lost rises from pass to pass.
    void relieve() {
        for (int64_t loss = 0; loss <= kMaxLoss && parts_.any_over(); loss = 2 * loss + 1)
            leave([&](int32_t p, const Load& load) { return parts_.over(p, load); },
                  [&](int32_t p, const Load& load) { return parts_.room(p, load); }, [&](const Load&) { return loss; });
        for (int round = 0; round < kRounds && parts_.any_over(); ++round) relieve_in_turn();
    }

    // Parts that got nothing get a node of those that have several.
    void fill_empty() {
        int32_t p = 0;
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            while (p < parts_.count && parts_.loads[p].nodes) ++p;
            if (p == parts_.count) return;
            if (parts_.loads[part_[v]].nodes > 1) send(v, p);
        }
    }

    // Node by node, and by exchange of two, each step a look at all nodes: what passes leave where nodes are few or one is
    // very heavy. It ends with training nodes within their cap, and with edges at most a node's above the mean.
    void settle() {
        const int64_t steps = std::clamp<int64_t>((int64_t(1) << 28) / job_.num_nodes, 16, 1 << 20);
        for (int64_t step = 0; step < steps; ++step)
            if (!settle_train() && !settle_edges()) return;
    }

private:
    static constexpr int64_t kMaxLoss = 1 << 20;
    static constexpr int kRounds = 4;

    // Where parts with room for training nodes are full of edges, and the other way round: first training nodes are evened
    // out by those with few edges, whatever edges that brings, then edges by nodes with many.
    void relieve_in_turn() {
        const Load& cap = parts_.cap;
        const Load* loads = parts_.loads;
        for (int64_t loss = 0; loss <= kMaxLoss; loss = 2 * loss + 1)
            leave([&](int32_t p, const Load& load) { return load.train && loads[p].train > cap.train; },
                  [&](int32_t p, const Load&) { return loads[p].train < cap.train; }, [&](const Load&) { return loss; });
        const auto room = [&](int32_t p, const Load& load) {
            return loads[p].edges + load.edges <= cap.edges && loads[p].train + load.train <= cap.train;
        };
        for (int64_t eighths = 1; eighths <= 8; eighths *= 2)
            leave([&](int32_t p, const Load& load) { return load.edges && loads[p].edges > cap.edges; }, room,
                  [&](const Load& load) { return load.edges * eighths / (load.edges > 8 ? 8 : 16); });
    }

    // One pass in which nodes that must leave their part go to where there is room, if that loses no more than it may.
    template <typename Must, typename Room, typename Loss>
    void leave(const Must& must, const Room& room, const Loss& max_loss) {
        bool any = false;
        for (int32_t p = 0; p < parts_.count; ++p) any |= must(p, Load{1, 1, 1});
        if (!any) return;
        const auto pick = [&](int64_t v, const Seen& seen, int thread) {
            const Load load = nodes_.load(v);
            const int32_t here = part_[v];
            if (!must(here, load)) return here;
            int64_t at_home = 0, most = -1;
            int32_t best = here;
            scratch_.each_tie(nodes_, v, seen, thread, [&](int32_t p, int64_t edges) {
                if (p == here) at_home = edges;
                else if (edges > most && room(p, load)) best = p, most = edges;
            });
            if (most < 0)  // there is no edge from a part with room: any that has some
                for (int32_t p = 0; p < parts_.count; ++p)
                    if (p != here && room(p, load) && (most < 0 || parts_.fill[p] < parts_.fill[best])) best = p, most = 0;
            return at_home - most <= max_loss(load) ? best : here;
        };
        sweep(nodes_.count, part_, scratch_.picks, scratch_.threaded, pick, [&](int64_t v, int32_t to) {
            const Load load = nodes_.load(v);
            if (!must(part_[v], load) || !room(to, load) || parts_.loads[part_[v]].nodes == 1) return 0;
            send(v, to);
            return 1;
        });
    }

    bool settle_train() {
        const Load* loads = parts_.loads;
        int32_t from = 0, to = -1;
        for (int32_t p = 0; p < parts_.count; ++p) {
            if (loads[p].train > loads[from].train) from = p;
            if (loads[p].train < parts_.cap.train && (to < 0 || loads[p].edges < loads[to].edges)) to = p;
        }
        if (loads[from].train <= parts_.cap.train) return false;
        send(lightest(from), to);
        return true;
    }

    bool settle_edges() {
        const Load* loads = parts_.loads;
        int32_t from = 0, to = 0;
        for (int32_t p = 0; p < parts_.count; ++p) {
            if (loads[p].edges > loads[from].edges) from = p;
            if (loads[p].edges < loads[to].edges) to = p;
        }
        const int64_t gap = loads[from].edges - loads[to].edges;
        if (loads[from].edges <= parts_.cap.edges) return false;
        int64_t v = heaviest(from, false, 0, gap);
        if (v < 0 && loads[to].train < parts_.cap.train) v = heaviest(from, true, 0, gap);
        if (v < 0) return exchange(from, to, gap);
        send(v, to);
        return true;
    }

    bool exchange(int32_t from, int32_t to, int64_t gap) {
        const int64_t light = lightest(to);
        if (light < 0) return false;
        const int64_t edges = nodes_.load(light).edges, heavy = heaviest(from, true, edges, edges + gap);
        if (heavy < 0) return false;
        send(light, from), send(heavy, to);
        return true;
    }

    // The training node of a part with the fewest edges, or -1.
    int64_t lightest(int32_t p) const {
        int64_t found = -1;
        for (int64_t v = 0; v < job_.num_nodes; ++v)
            if (part_[v] == p && nodes_.load(v).train && (found < 0 || nodes_.load(v).edges < nodes_.load(found).edges)) found = v;
        return found;
    }

    // The node of a part with the most edges, more than one bound and fewer than another, or -1.
    int64_t heaviest(int32_t p, bool train, int64_t above, int64_t below) const {
        int64_t found = -1, most = above;
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            if (part_[v] != p) continue;
            const Load load = nodes_.load(v);
            if (bool(load.train) == train && load.edges > most && load.edges < below) found = v, most = load.edges;
        }
        return found;
    }

    void send(int64_t v, int32_t to) {
        parts_.move(nodes_.load(v), part_[v], to);
        part_[v] = to;
    }

    Scratch& scratch_;
    const PartitionJob& job_;
    Parts& parts_;
    Nodes nodes_;
    int32_t* part_;
};

}  // namespace
