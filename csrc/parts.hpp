// The parts while they fill: what each holds, and what it may hold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scratch.hpp"

namespace {

// What a part may hold, in per cent of the mean.
struct Percent {
    int64_t edges, train, nodes;
};
constexpr Percent kTight{102, 104, 115}, kWide{105, 110, 125};

struct Parts {
    int64_t count;
    Load total, cap;
    Load* loads;   // (count)
    double* fill;  // (count) the largest share of what it may hold

    Parts(Scratch& scratch, const Load& all)
        : count(scratch.job.parts), total(all), loads(scratch.work.take<Load>(count)), fill(scratch.work.take<double>(count)) {
        std::fill(loads, loads + count, Load{});
        allow(kTight);
    }

    static int64_t bytes(int64_t count) { return Work::bytes<Load>(count) + Work::bytes<double>(count); }

    void allow(const Percent& percent) {
        const auto most = [&](int64_t all, int64_t share) { return std::max(all * share / 100 / count, (all + count - 1) / count); };
        cap = {most(total.edges, percent.edges), int32_t(most(total.train, percent.train)), int32_t(most(total.nodes, percent.nodes))};
        for (int64_t p = 0; p < count; ++p) set_fill(p);
    }

    bool room(int32_t p, const Load& load) const { return fits(loads[p], load, cap); }

    // Whether a part holds too much of what there is in a load.
    bool over(int32_t p, const Load& load) const {
        return (load.edges && loads[p].edges > cap.edges) || (load.train && loads[p].train > cap.train) ||
               (load.nodes && loads[p].nodes > cap.nodes);
    }

    bool any_over() const {
        for (int32_t p = 0; p < count; ++p)
            if (over(p, {1, 1, 1})) return true;
        return false;
    }

    // The least filled part with room; the least filled of all where there is none.
    int32_t emptiest(const Load& load) const {
        int32_t best = -1, least = 0;
        for (int32_t p = 0; p < count; ++p) {
            if (fill[p] < fill[least]) least = p;
            if (room(p, load) && (best < 0 || fill[p] < fill[best])) best = p;
        }
        return best < 0 ? least : best;
    }

    void put(const Load& load, int32_t to) {
        loads[to] += load;
        set_fill(to);
    }

    void move(const Load& load, int32_t from, int32_t to) {
        loads[from] -= load;
        set_fill(from);
        put(load, to);
    }

private:
    void set_fill(int64_t p) {
        const auto share = [](int64_t load, int64_t most) { return most ? double(load) / double(most) : 0.0; };
        fill[p] = std::max({share(loads[p].edges, cap.edges), share(loads[p].train, cap.train), share(loads[p].nodes, cap.nodes)});
    }
};

}  // namespace
