#include "sample.hpp"

#include <omp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "chunks.hpp"
#include "hash.hpp"
#include "places.hpp"

namespace {

constexpr int64_t kFew = 64;         // draws among which a linear search is quickest
constexpr int64_t kWords = 64;       // of bits in which draws are marked
constexpr int64_t kBatch = 1 << 14;  // edges that are drawn at a time, if rows are so short

// `count` of `degree` numbers, at most 64 kWords, without repetition, by Floyd's method; ascending. The bits of `words` are
// unset before and after.
inline void draw_words(uint64_t stream, int64_t degree, int64_t count, uint64_t* words, int64_t* out) {
    for (int64_t drawn = 0, top = degree - count; top < degree; ++drawn, ++top) {
        const int64_t pick = number(stream, drawn, top + 1);
        const int64_t again = -int64_t(words[pick >> 6] >> (pick & 63) & 1);
        const int64_t mark = pick ^ ((pick ^ top) & again);
        words[mark >> 6] |= uint64_t(1) << (mark & 63);
    }
    for (int64_t word = 0; word * 64 < degree; ++word) {
        for (uint64_t left = words[word]; left; left &= left - 1) *out++ = word * 64 + __builtin_ctzll(left);
        words[word] = 0;
    }
}

// The same of any degree.
void draw_distinct(uint64_t stream, int64_t degree, int64_t count, int64_t* out) {
    if (count > kFew) {
        std::vector<bool> taken(static_cast<size_t>(degree), false);
        for (int64_t drawn = 0, top = degree - count; top < degree; ++drawn, ++top) {
            const int64_t pick = number(stream, drawn, top + 1);
            taken[size_t(taken[size_t(pick)] ? top : pick)] = true;
        }
        for (int64_t i = 0; i < degree; ++i)
            if (taken[size_t(i)]) *out++ = i;
        return;
    }
    for (int64_t drawn = 0, top = degree - count; top < degree; ++drawn, ++top) {
        const int64_t pick = number(stream, drawn, top + 1);
        int64_t at = drawn;
        while (at > 0 && out[at - 1] > pick) --at;
        if (at > 0 && out[at - 1] == pick) {  // it is there: the largest number, which is not, takes its place
            out[drawn] = top;
            continue;
        }
        for (int64_t i = drawn; i > at; --i) out[i] = out[i - 1];
        out[at] = pick;
    }
}

}  // namespace

int32_t* read_many(const Draw& a, uint64_t stream, int64_t begin, int64_t degree, int32_t* out, int64_t* edge) {
    int64_t few[kFew];
    std::vector<int64_t> many(a.fanout > kFew ? size_t(a.fanout) : 0);
    int64_t* picks = many.empty() ? few : many.data();
    if (a.replace) {
        for (int64_t i = 0; i < a.fanout; ++i) picks[i] = number(stream, i, degree);
        std::sort(picks, picks + a.fanout);
    } else if (degree <= 64 * kWords) {
        uint64_t words[kWords] = {};
        draw_words(stream, degree, a.fanout, words, picks);
    } else {
        draw_distinct(stream, degree, a.fanout, picks);
    }
    for (int64_t i = 0; i < a.fanout; ++i) out[i] = a.indices[begin + picks[i]];
    for (int64_t i = 0; edge && i < a.fanout; ++i) edge[i] = begin + picks[i];
    return out + a.fanout;
}

void count_draws(const Draw& a, int64_t* out_indptr) {
    Team team;
#pragma omp parallel if (a.num_rows > kThreadedEdges)
    {
        Member member(team);
#pragma omp for schedule(dynamic, 1 << 12) nowait
        for (int64_t r = 0; r < a.num_rows; ++r) {
            if (r + kSoon < a.num_rows) __builtin_prefetch(a.indptr + a.rows[r + kSoon]);
            const int64_t degree = a.indptr[a.rows[r] + 1] - a.indptr[a.rows[r]];
            out_indptr[r + 1] = a.whole(degree) ? degree : a.fanout;
        }
    }
    out_indptr[0] = 0;
    for (int64_t r = 0; r < a.num_rows; ++r) out_indptr[r + 1] += out_indptr[r];
}

namespace {

// Draws for rows of one group, some at a time, so that what is drawn is used while it is in the cache.
class Drawer {
public:
    Drawer(const Draw& draw, DrawRows rows, const int64_t* out_indptr, int64_t* edge)
        : draw_(draw), rows_(rows), out_indptr_(out_indptr), edge_(edge) {}

    // Calls use(where they begin among all edges, columns, how many).
    template <typename Use>
    void each(int64_t group, int64_t first, int64_t last, const Use& use) {
        while (first < last) {
            const int64_t begin = out_indptr_[first];
            int64_t count = std::min(kRowsAtOnce, last - first);
            while (count > 1 && out_indptr_[first + count] - begin > kBatch) count /= 2;
            const int64_t edges = out_indptr_[first + count] - begin;
            if (int64_t(drawn_.size()) < edges + kBehind) drawn_.resize(size_t(edges + kBehind));
            rows_(draw_, first, count, uint64_t(draw_.key[group]), drawn_.data(), edge_ ? edge_ + begin : nullptr);
            use(begin, drawn_.data(), edges);
            first += count;
        }
    }

private:
    const Draw& draw_;
    DrawRows rows_;
    const int64_t* out_indptr_;
    int64_t* edge_;
    std::vector<int32_t> drawn_;
};

}  // namespace

void draw_edges(const Draw& a, DrawRows rows, const int64_t* out_indptr, int32_t* source, int64_t* edge) {
    const int64_t chunks = (a.num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const auto name = [&](int64_t begin, const int32_t* drawn, int64_t count) {
        if (!a.name) std::copy(drawn, drawn + count, source + begin);
        else for (int64_t i = 0; i < count; ++i) source[begin + i] = a.name[drawn[i]];
    };
    Team team;
#pragma omp parallel if (out_indptr[a.num_rows] > kThreadedEdges / 2)
    {
        Member member(team);
        Drawer drawer(a, rows, out_indptr, edge);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            int64_t first = chunk * kRowsAtOnce;
            const int64_t last = std::min(first + kRowsAtOnce, a.num_rows);
            int64_t group = std::upper_bound(a.group_ptr, a.group_ptr + a.groups + 1, first) - a.group_ptr - 1;
            for (; first < last; first = a.group_ptr[++group]) drawer.each(group, first, std::min(last, a.group_ptr[group + 1]), name);
        }
    }
}

namespace {

// Nodes below `num_nodes` that groups know, and how many they will meet in all.
struct Groups {
    const int32_t* known;
    const int64_t* known_ptr;
    int64_t groups, num_nodes, num_met;
    int64_t* num_fresh;

    // For each group meet(group, a table that has its nodes) returns where the new ones begin and end.
    template <typename Meet>
    void each(const Meet& meet) const {
        const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(groups, omp_get_max_threads()));
        const bool few = num_nodes < 4 * (known_ptr[groups] + num_met) / threads;  // each makes an array of all nodes, once
        Team team;
#pragma omp parallel if (groups > 1)
        {
            Member member(team);
            Directory directory(few ? num_nodes : 0);
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t g = 0; g < groups; ++g) {
                const int32_t* its = known + known_ptr[g];
                const int64_t num_its = known_ptr[g + 1] - known_ptr[g];
                const auto met_by = [&](auto& places) {
                    places.know(its, num_its);
                    return meet(g, places);
                };
                if (few) {
                    const auto [first, last] = met_by(directory);
                    directory.forget(its, num_its), directory.forget(first, last - first);
                    num_fresh[g] = last - first;
                } else {
                    Places places(num_its);
                    const auto [first, last] = met_by(places);
                    num_fresh[g] = last - first;
                }
            }
        }
    }
};

}  // namespace

void first_met(const int32_t* known, const int64_t* known_ptr, const int32_t* met, const int64_t* met_ptr, int64_t groups, int32_t* place,
               int32_t* fresh, int64_t* num_fresh) {
    const int64_t num_known = known_ptr[groups], num_met = met_ptr[groups];
    int32_t last = -1;
    for (int64_t i = 0; i < num_known; ++i) last = std::max(last, known[i]);
#pragma omp parallel for schedule(dynamic, kChunkNumbers) reduction(max : last) if (num_met > kThreadedNumbers)
    for (int64_t i = 0; i < num_met; ++i) last = std::max(last, met[i]);
    Groups{known, known_ptr, groups, int64_t(last) + 1, num_met, num_fresh}.each([&](int64_t g, auto& places) {
        int32_t* first = fresh + met_ptr[g];
        return std::pair(first, places.meet(met + met_ptr[g], met_ptr[g + 1] - met_ptr[g], place + met_ptr[g], first));
    });
}

void draw_met(const Draw& a, DrawRows rows, const int64_t* out_indptr, int64_t num_nodes, int32_t* place, int64_t* edge, int32_t* fresh,
              int64_t* num_fresh) {
    const Groups groups{a.rows, a.group_ptr, a.groups, num_nodes, out_indptr[a.num_rows], num_fresh};
    const bool apart = a.groups < omp_get_max_threads();  // more threads can draw than place
    if (apart) draw_edges(a, rows, out_indptr, place, edge);
    groups.each([&](int64_t g, auto& places) {
        const int64_t from = a.group_ptr[g], to = a.group_ptr[g + 1], begin = out_indptr[from];
        int32_t *first = fresh + begin, *last = first;
        if (apart) return std::pair(first, places.meet(place + begin, out_indptr[to] - begin, place + begin, first));
        Drawer(a, rows, out_indptr, edge).each(g, from, to, [&](int64_t at, const int32_t* drawn, int64_t count) {
            last = places.meet(drawn, count, place + at, last);
        });
        return std::pair(first, last);
    });
}

void spread_rows(const int64_t* from, const int32_t* values, const int64_t* rows, int64_t num_rows, const int64_t* to, int32_t* out) {
    Team team;
#pragma omp parallel if (from[num_rows] > kThreadedNumbers)
    {
        Member member(team);
#pragma omp for schedule(dynamic, chunk_of(num_rows, from[num_rows])) nowait
        for (int64_t i = 0; i < num_rows; ++i) std::copy(values + from[i], values + from[i + 1], out + to[rows[i]]);
    }
}

void sort_rows_by_id(const int64_t* indptr, int32_t* indices, int64_t* from, const int64_t* id, int64_t num_rows) {
    Team team;
#pragma omp parallel if (indptr[num_rows] > kThreadedEdges / 4)
    {
        Member member(team);
        std::vector<std::pair<int64_t, int64_t>> order;  // id of the column, place in the row
        std::vector<int32_t> cols;
        std::vector<int64_t> origin;
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t r = 0; r < num_rows; ++r) {
            const int64_t begin = indptr[r], end = indptr[r + 1];
            order.clear();
            for (int64_t e = begin; e < end; ++e) order.emplace_back(id[indices[e]], e);
            if (std::is_sorted(order.begin(), order.end())) continue;
            std::sort(order.begin(), order.end());
            cols.assign(indices + begin, indices + end);
            if (from) origin.assign(from + begin, from + end);
            for (int64_t i = 0; i < end - begin; ++i) {
                indices[begin + i] = cols[size_t(order[size_t(i)].second - begin)];
                if (from) from[begin + i] = origin[size_t(order[size_t(i)].second - begin)];
            }
        }
    }
}
