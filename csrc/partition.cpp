#include "partition.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "hash.hpp"
#include "sweep.hpp"
#include "tally.hpp"

namespace {

constexpr int64_t kSmall = 1 << 17;  // edges; fewer are not worth a second thread
constexpr int kMaxLevels = 8;
constexpr int kNodeRounds = 8, kClusterRounds = 4, kRefineClusters = 3, kRefineNodes = 10;
constexpr int64_t kPieces = 8;       // a cluster weighs at most so small a share of a part
constexpr int64_t kTop = 64;         // clusters a part that are few enough

// What is balanced.
struct Load {
    int64_t edges = 0;
    int32_t train = 0, nodes = 0;

    Load& operator+=(const Load& other) {
        edges += other.edges, train += other.train, nodes += other.nodes;
        return *this;
    }
    Load& operator-=(const Load& other) {
        edges -= other.edges, train -= other.train, nodes -= other.nodes;
        return *this;
    }
};

bool fits(const Load& there, const Load& more, const Load& bound) {
    return there.edges + more.edges <= bound.edges && there.train + more.train <= bound.train &&
           there.nodes + more.nodes <= bound.nodes;
}

// Hands out parts of one array, and takes back what was handed out last.
class Work {
public:
    explicit Work(char* begin) : next_(begin) {}
    template <typename T>
    T* take(int64_t count) {
        T* taken = reinterpret_cast<T*>(next_);
        next_ += bytes<T>(count);
        return taken;
    }
    template <typename T>
    static int64_t bytes(int64_t count) {
        return (int64_t(sizeof(T)) * count + 15) / 16 * 16;
    }
    char* mark() const { return next_; }
    void release(char* mark) { next_ = mark; }

private:
    char* next_;
};

Load node_load(const PartitionJob& job, int64_t v) {
    return {job.indptr[v + 1] - job.indptr[v], job.train ? int32_t(job.train[v] != 0) : 1, 1};
}

// Items of the lowest level: every node is one.
struct Nodes {
    const PartitionJob& job;
    int64_t count;

    Load load(int64_t i) const { return node_load(job, i); }

    // Calls visit(item) for the source of each edge into the item, those from itself left out.
    template <typename Touch, typename Visit>
    void each_source(int64_t i, const Touch& touch, const Visit& visit) const {
        const int64_t last = job.indptr[job.num_nodes];
        for (int64_t e = job.indptr[i]; e < job.indptr[i + 1]; ++e) {
            if (e + 24 < last) touch(job.indices[e + 24]);
            if (job.indices[e] != i) visit(job.indices[e]);
        }
    }
};

// Items of a higher level: clusters of nodes, whose edges are read from the rows of their members.
struct Clusters {
    const PartitionJob& job;
    int64_t count;
    const int32_t* of;      // (n) the item of each node
    const int32_t* member;  // (n) nodes by item
    const int32_t* start;   // (count + 1) where the members of each item begin
    const Load* loads;      // (count)

    Load load(int64_t i) const { return loads[i]; }

    template <typename Touch, typename Visit>
    void each_source(int64_t i, const Touch&, const Visit& visit) const {
        for (int32_t m = start[i]; m < start[i + 1]; ++m) {
            const int32_t v = member[m];
            if (m + 4 < start[i + 1]) {
                const int64_t ahead = job.indptr[member[m + 4]];
                __builtin_prefetch(&job.indices[ahead]);
            }
            for (int64_t e = job.indptr[v]; e < job.indptr[v + 1]; ++e) {
                const int32_t item = of[job.indices[e]];
                if (item != i) visit(item);
            }
        }
    }
};

struct Level {
    int64_t count;
    int32_t* to_next;  // (count) the item of the next level that each item belongs to; at last, its part
};

class Partitioner {
public:
    Partitioner(const PartitionJob& job, char* work, int32_t* part)
        : job_(job), work_(work), threads_(omp_get_max_threads()), threaded_(job.indptr[job.num_nodes] >= kSmall), part_(part) {
        picks_ = work_.take<int32_t>(kStreams * kStretch);
        tallies_ = work_.take<char>(threads_ * Tally::kBytes);
        for (int t = 0; t < threads_; ++t) Tally(tallies_ + t * Tally::kBytes).make_empty();
        ties_ = work_.take<int64_t>(threads_ * job.parts);
        std::fill(ties_, ties_ + threads_ * job.parts, 0);
        tied_ = work_.take<int32_t>(threads_ * job.parts);
        loads_ = work_.take<Load>(job.parts);
        fill_ = work_.take<double>(job.parts);
        set_caps();
    }

    static int64_t bytes(int64_t n, int64_t parts) {
        const int64_t threads = omp_get_max_threads(), half = n / 2;
        const int64_t fixed = Work::bytes<int32_t>(kStreams * kStretch) + Work::bytes<char>(threads * Tally::kBytes) +
                              Work::bytes<int64_t>(threads * parts) + Work::bytes<int32_t>(threads * parts) +
                              Work::bytes<Load>(parts) + Work::bytes<double>(parts);
        const int64_t first = Work::bytes<Load>(n);
        const int64_t maps = 4 * n + 16 * kMaxLevels;  // each level has at most half the items of the one below
        const int64_t higher = 2 * Work::bytes<int32_t>(n) + Work::bytes<int32_t>(half + 1) + 2 * Work::bytes<Load>(half);
        return fixed + std::max(first, maps + higher);
    }

    void run() {
        coarsen();
        place();
        for (int level = top_; level > 0; --level) {
            refine_clusters(level);
            Level& below = levels_[level - 1];
            for (int64_t i = 0; i < below.count; ++i) below.to_next[i] = levels_[level].to_next[below.to_next[i]];
        }
        refine_nodes();
        fill_empty();
        settle();
    }

private:
    void set_caps() {
        for (int64_t v = 0; v < job_.num_nodes; ++v) total_ += node_load(job_, v);
        const auto cap = [&](int64_t total, int64_t percent) {
            return std::max(total * percent / 100 / job_.parts, (total + job_.parts - 1) / job_.parts);
        };
        cap_ = {cap(total_.edges, 105), int32_t(cap(total_.train, 110)), int32_t(cap(total_.nodes, 125))};
        bound_ = {std::max<int64_t>(1, total_.edges / job_.parts / kPieces), std::max<int32_t>(1, total_.train / job_.parts / kPieces),
                  std::max<int32_t>(1, total_.nodes / job_.parts / kPieces)};
    }

    Clusters clusters(int level, int32_t* of, Load* loads) {
        Clusters items{job_, levels_[level].count, of, nullptr, nullptr, loads};
        if (level == 1) items.of = levels_[0].to_next;
        else
            for (int64_t v = 0; v < job_.num_nodes; ++v) {
                int32_t item = levels_[0].to_next[v];
                for (int l = 1; l < level; ++l) item = levels_[l].to_next[item];
                of[v] = item;
            }
        return items;
    }

    // Sorts the nodes by item and adds up their loads.
    void group(Clusters& items, int32_t* member, int32_t* start, Load* loads) {
        std::fill(start, start + items.count + 1, 0);
        std::fill(loads, loads + items.count, Load{});
        for (int64_t v = 0; v < job_.num_nodes; ++v) loads[items.of[v]] += node_load(job_, v);
        int32_t at = 0;
        for (int64_t i = 0; i < items.count; ++i) start[i] = at, at += loads[i].nodes;
        for (int64_t v = 0; v < job_.num_nodes; ++v) member[start[items.of[v]]++] = int32_t(v);
        for (int64_t i = items.count; i > 0; --i) start[i] = start[i - 1];
        start[0] = 0;
        items.member = member, items.start = start, items.loads = loads;
    }

    // Label propagation: an item joins the cluster that most of its edges come from and that has room.
    template <typename Items>
    void gather(const Items& items, int rounds, int32_t* label, Load* load) {
        for (int64_t i = 0; i < items.count; ++i) label[i] = int32_t(i), load[i] = items.load(i);
        for (int round = 0; round < rounds; ++round) {
            const auto pick = [&](int64_t i, const Seen& seen, int thread) {
                Tally tally(tallies_ + thread * Tally::kBytes);
                const Load own = items.load(i);
                tally.expect(own.edges);
                items.each_source(i, [&](int32_t u) { __builtin_prefetch(&label[u]); }, [&](int32_t u) { tally.add(seen[u]); });
                const int32_t here = label[i];
                int32_t best = here, most = 0;
                uint64_t best_luck = 0;
                int32_t at_home = 0;
                tally.drain([&](int32_t key, int32_t count) {
                    if (key == here) { at_home = count; return; }
                    if (count < most || !fits(load[key], own, bound_)) return;
                    const uint64_t luck = mixed(job_.seed, key);
                    if (count > most || luck > best_luck) best = key, most = count, best_luck = luck;
                });
                return most > at_home ? best : here;
            };
            const auto carry_out = [&](int64_t i, int32_t to) {
                const Load own = items.load(i);
                if (!fits(load[to], own, bound_)) return 0;
                load[label[i]] -= own, load[to] += own;
                label[i] = to;
                return 1;
            };
            const int64_t moved = sweep(items.count, label, picks_, threaded_, pick, carry_out);
            if (debug_) std::fprintf(stderr, "  gather round %d: %ld of %ld moved\n", round, long(moved), long(items.count));
            if (moved * 50 < items.count) break;
        }
    }

    // Nodes that no edge comes into tell nothing: those left alone are gathered as they come.
    void gather_dust(int32_t* label, Load* load) {
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

    void coarsen() {
        char* mark = work_.mark();
        Load* load = work_.take<Load>(job_.num_nodes);
        gather(Nodes{job_, job_.num_nodes}, kNodeRounds, part_, load);
        gather_dust(part_, load);
        levels_[0] = {job_.num_nodes, part_};
        int64_t count = compact(part_, job_.num_nodes, reinterpret_cast<int32_t*>(load));
        work_.release(mark);
        while (top_ + 1 < kMaxLevels && count <= levels_[top_].count / 2 && count >= job_.parts) {
            levels_[++top_] = {count, work_.take<int32_t>(count)};
            if (debug_) std::fprintf(stderr, "level %d: %ld items\n", top_, long(count));
            if (count <= kTop * job_.parts) break;
            mark = work_.mark();
            int32_t* of = work_.take<int32_t>(job_.num_nodes);
            int32_t* member = work_.take<int32_t>(job_.num_nodes);
            int32_t* start = work_.take<int32_t>(count + 1);
            Load* loads = work_.take<Load>(count);
            Clusters items = clusters(top_, of, loads);
            group(items, member, start, loads);
            Load* joined = work_.take<Load>(count);
            gather(items, kClusterRounds, levels_[top_].to_next, joined);
            count = compact(levels_[top_].to_next, count, reinterpret_cast<int32_t*>(joined));
            work_.release(mark);
        }
        if (top_ == 0) std::iota(part_, part_ + job_.num_nodes, 0);
    }

    template <typename Do>
    void with_items(int level, const Do& act) {
        if (level == 0) return act(Nodes{job_, job_.num_nodes});
        char* mark = work_.mark();
        const int64_t count = levels_[level].count;
        int32_t* of = work_.take<int32_t>(job_.num_nodes);
        int32_t* member = work_.take<int32_t>(job_.num_nodes);
        int32_t* start = work_.take<int32_t>(count + 1);
        Load* loads = work_.take<Load>(count);
        Clusters items = clusters(level, of, loads);
        group(items, member, start, loads);
        act(items);
        work_.release(mark);
    }

    void set_fill(int64_t p) {
        const auto share = [](int64_t load, int64_t cap) { return cap ? double(load) / double(cap) : 0.0; };
        fill_[p] = std::max({share(loads_[p].edges, cap_.edges), share(loads_[p].train, cap_.train), share(loads_[p].nodes, cap_.nodes)});
    }

    void put(const Load& load, int32_t to) {
        loads_[to] += load;
        set_fill(to);
    }

    void take_away(const Load& load, int32_t from) {
        loads_[from] -= load;
        set_fill(from);
    }

    int32_t emptiest(const Load& load) const {
        int32_t best = -1, least = 0;
        for (int32_t p = 0; p < job_.parts; ++p) {
            if (fill_[p] < fill_[least]) least = p;
            if (fits(loads_[p], load, cap_) && (best < 0 || fill_[p] < fill_[best])) best = p;
        }
        return best < 0 ? least : best;
    }

    // Edges into an item from each part; visit(part, edges) is called for each part that there are any from.
    template <typename Items, typename PartOf, typename Visit>
    void each_tie(const Items& items, int64_t i, const PartOf& part_of, int thread, const Visit& visit) {
        int64_t* ties = ties_ + thread * job_.parts;
        int32_t* tied = tied_ + thread * job_.parts;
        int32_t count = 0;
        const int32_t* place = nullptr;
        if constexpr (std::is_same_v<PartOf, Seen>) place = part_of.place;
        items.each_source(i, [&](int32_t u) { if (place) __builtin_prefetch(&place[u]); }, [&](int32_t u) {
            const int32_t p = part_of[u];
            if (p < 0) return;
            if (ties[p]++ == 0) tied[count++] = p;
        });
        for (int32_t k = 0; k < count; ++k) {
            const int64_t edges = ties[tied[k]];
            ties[tied[k]] = 0;
            visit(tied[k], edges);
        }
    }

    // Places the items of the top level, the heaviest first, each into the part that most of its edges come from, weighed by
    // the room that is left there (Stanton and Kliot 2012).
    void place() {
        std::fill(loads_, loads_ + job_.parts, Load{});
        for (int64_t p = 0; p < job_.parts; ++p) set_fill(p);
        with_items(top_, [&](const auto& items) {
            int32_t* part = levels_[top_].to_next;
            char* mark = work_.mark();
            int32_t* order = work_.take<int32_t>(items.count);
            std::iota(order, order + items.count, 0);
            if (top_ > 0) std::sort(order, order + items.count, [&](int32_t a, int32_t b) {
                return std::pair(-items.load(a).edges, a) < std::pair(-items.load(b).edges, b);
            });
            std::fill(part, part + items.count, -1);
            for (int64_t k = 0; k < items.count; ++k) {
                const int32_t i = order[k];
                const Load load = items.load(i);
                int32_t best = -1;
                double most = 0;
                each_tie(items, i, part, 0, [&](int32_t p, int64_t edges) {
                    const double score = double(edges) * (1 - fill_[p]);
                    if (fits(loads_[p], load, cap_) && score > most) best = p, most = score;
                });
                part[i] = best < 0 ? emptiest(load) : best;
                put(load, part[i]);
            }
            work_.release(mark);
        });
    }

    bool over(int32_t p, const Load& load) const {
        return (load.edges && loads_[p].edges > cap_.edges) || (load.train && loads_[p].train > cap_.train) ||
               (load.nodes && loads_[p].nodes > cap_.nodes);
    }

    // Each item moves to the part that most of its edges come from and that has room. Returns how many moved.
    template <typename Items>
    int64_t refine(const Items& items, int32_t* part) {
        const auto pick = [&](int64_t i, const Seen& seen, int thread) {
            const Load load = items.load(i);
            const int32_t here = part[i];
            int64_t at_home = 0, most = 0;
            int32_t best = here;
            each_tie(items, i, seen, thread, [&](int32_t p, int64_t edges) {
                if (p == here) at_home = edges;
                else if (edges >= most && fits(loads_[p], load, cap_))
                    if (edges > most || fill_[p] < fill_[best]) best = p, most = edges;
            });
            return most > at_home || (most == at_home && fill_[best] < fill_[here]) ? best : here;
        };
        return sweep(items.count, part, picks_, threaded_, pick, [&](int64_t i, int32_t to) { return move(items, part, i, to); });
    }

    template <typename Items>
    int move(const Items& items, int32_t* part, int64_t i, int32_t to) {
        const Load load = items.load(i);
        if (!fits(loads_[to], load, cap_) || loads_[part[i]].nodes == load.nodes) return 0;
        take_away(load, part[i]), put(load, to);
        part[i] = to;
        return 1;
    }

    // Items of parts that hold too much leave for where the fewest edges are lost, at most `loss` each.
    template <typename Items>
    int64_t relieve(const Items& items, int32_t* part, int64_t loss) {
        const auto pick = [&](int64_t i, const Seen& seen, int thread) {
            const Load load = items.load(i);
            const int32_t here = part[i];
            if (!over(here, load)) return here;
            int64_t at_home = 0, most = -1;
            int32_t best = here;
            each_tie(items, i, seen, thread, [&](int32_t p, int64_t edges) {
                if (p == here) at_home = edges;
                else if (edges > most && fits(loads_[p], load, cap_)) best = p, most = edges;
            });
            if (most < 0) {
                const int32_t p = emptiest(load);
                if (p != here && fits(loads_[p], load, cap_)) best = p, most = 0;
            }
            return at_home - most <= loss ? best : here;
        };
        return sweep(items.count, part, picks_, threaded_, pick, [&](int64_t i, int32_t to) {
            return over(part[i], items.load(i)) ? move(items, part, i, to) : 0;
        });
    }

    bool any_over() const {
        for (int64_t p = 0; p < job_.parts; ++p)
            if (over(int32_t(p), {1, 1, 1})) return true;
        return false;
    }

    // The node of a part that a move should take: the heaviest of those that weigh more than `least` and less than `below`.
    int64_t find(int32_t p, bool train, int64_t least, int64_t below) const {
        int64_t found = -1, most = least;
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            if (part_[v] != p) continue;
            const Load load = node_load(job_, v);
            if (bool(load.train) == train && load.edges > most && load.edges < below) found = v, most = load.edges;
        }
        return found;
    }

    int64_t find_lightest(int32_t p, bool train) const {
        int64_t found = -1;
        for (int64_t v = 0; v < job_.num_nodes; ++v)
            if (part_[v] == p && bool(node_load(job_, v).train) == train &&
                (found < 0 || node_load(job_, v).edges < node_load(job_, found).edges))
                found = v;
        return found;
    }

    void send(int64_t v, int32_t to) {
        const Load load = node_load(job_, v);
        take_away(load, part_[v]), put(load, to);
        part_[v] = to;
    }

    // Parts that got nothing get a node of those that have several.
    void fill_empty() {
        int32_t p = 0;
        for (int64_t v = 0; v < job_.num_nodes; ++v) {
            while (p < job_.parts && loads_[p].nodes) ++p;
            if (p == job_.parts) return;
            if (loads_[part_[v]].nodes > 1) send(v, p);
        }
    }

    // What streaming left out of balance, node by node and by exchange of two. Where a single node is not the reason, edges
    // end at most a node's above the mean, and training nodes within their cap. Each step is a look at all nodes.
    void settle() {
        const int64_t steps = std::clamp<int64_t>((int64_t(1) << 28) / job_.num_nodes, 16, 1 << 20);
        for (int64_t step = 0; step < steps; ++step)
            if (!settle_train() && !settle_edges()) return;
    }

    bool settle_train() {
        int32_t from = 0, to = -1;
        for (int32_t p = 0; p < job_.parts; ++p) {
            if (loads_[p].train > loads_[from].train) from = p;
            if (loads_[p].train < cap_.train && (to < 0 || loads_[p].edges < loads_[to].edges)) to = p;
        }
        if (loads_[from].train <= cap_.train) return false;
        send(find_lightest(from, true), to);
        return true;
    }

    bool settle_edges() {
        int32_t from = 0, to = 0;
        for (int32_t p = 0; p < job_.parts; ++p) {
            if (loads_[p].edges > loads_[from].edges) from = p;
            if (loads_[p].edges < loads_[to].edges) to = p;
        }
        const int64_t gap = loads_[from].edges - loads_[to].edges;
        if (loads_[from].edges <= cap_.edges || gap <= 1) return false;
        int64_t v = find(from, false, 0, gap);
        if (v < 0 && loads_[to].train < cap_.train) v = find(from, true, 0, gap);
        if (v >= 0) return send(v, to), true;
        const int64_t light = find_lightest(to, true);
        if (light < 0) return false;
        const int64_t least = node_load(job_, light).edges;
        v = find(from, true, least, least + gap);
        if (v < 0) return false;
        send(light, from), send(v, to);
        return true;
    }

    void refine_clusters(int level) {
        with_items(level, [&](const auto& items) {
            for (int round = 0; round < kRefineClusters; ++round) {
                const int64_t moved = refine(items, levels_[level].to_next);
                if (debug_) std::fprintf(stderr, "  refine level %d round %d: %ld of %ld\n", level, round, long(moved), long(items.count));
                if (moved * 100 < items.count) break;
            }
        });
    }

    void refine_nodes() {
        const Nodes nodes{job_, job_.num_nodes};
        for (int round = 0; round < kRefineNodes; ++round) {
            const int64_t moved = refine(nodes, part_);
            if (debug_) std::fprintf(stderr, "  refine nodes round %d: %ld over %d\n", round, long(moved), any_over());
            if (any_over()) for (int64_t loss = 0; loss < (1 << 20) && any_over(); loss = 2 * loss + 1) relieve(nodes, part_, loss);
            if (moved * 200 < job_.num_nodes) break;
        }
    }

    const PartitionJob& job_;
    Work work_;
    int threads_;
    bool threaded_;
    bool debug_ = std::getenv("SIAFU_DEBUG") != nullptr;
    int32_t* part_;
    int32_t* picks_;
    char* tallies_;
    int64_t* ties_;
    int32_t* tied_;
    Load* loads_;  // of each part
    double* fill_;
    Load total_, cap_, bound_;
    Level levels_[kMaxLevels];
    int top_ = 0;
};

}  // namespace

int64_t partition_bytes(int64_t num_nodes, int64_t parts) { return Partitioner::bytes(num_nodes, parts); }

void partition(const PartitionJob& job, char* work, int32_t* part) { Partitioner(job, work, part).run(); }

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
