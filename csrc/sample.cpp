#include "sample.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace {

constexpr int64_t kFew = 64;     // draws among which a linear search is quickest
constexpr int64_t kWords = 64;   // of bits in which draws are marked
constexpr int64_t kAhead = 16;   // between a prefetch and its use
constexpr int64_t kChunk = 256;  // rows that a thread takes at a time
constexpr int64_t kBatch = 1024; // edges that are drawn before any of them is read

// The i-th number of a stream, scaled to [0, bound).
inline int64_t number(uint64_t stream, int64_t i, int64_t bound) {
    return int64_t((static_cast<unsigned __int128>(mixed(stream, i)) * uint64_t(bound)) >> 64);
}

// `count` of `degree` numbers below 64 without repetition, by Floyd's method, as the bits that are set.
inline uint64_t draw_bits(uint64_t stream, int64_t degree, int64_t count) {
    uint64_t taken = 0;
    for (int64_t drawn = 0, top = degree - count; top < degree; ++drawn, ++top) {
        const int64_t pick = number(stream, drawn, top + 1);
        const int64_t again = -int64_t(taken >> pick & 1);  // all ones where it is there: the top, which is not, takes its place
        taken |= uint64_t(1) << (pick ^ ((pick ^ top) & again));
    }
    return taken;
}

// The same of degrees up to 64 kWords; ascending. The bits of `words` are unset before and after.
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

// The edges that are drawn of rows that follow each other, read some at a time: by then they were fetched.
class Reader {
public:
    Reader(const Draw& draw, int32_t* source, int64_t* edge) : draw_(draw), source_(source), edge_(edge) {}

    // Where the next `count` edges are to be written; those before are read where there is no room.
    int64_t* room(int64_t count) {
        if (count_ + count > int64_t(edges_.size())) read(), edges_.resize(size_t(std::max(count, kBatch)));
        return edges_.data() + count_;
    }

    // So many were written, as places in a row that begins there.
    void add(int64_t count, int64_t begin) {
        int64_t* edges = edges_.data() + count_;
        int64_t line = -1;
        for (int64_t i = 0; i < count; ++i) {
            edges[i] += begin;
            if (edges[i] >> 4 != line) __builtin_prefetch(draw_.indices + edges[i]);
            line = edges[i] >> 4;
        }
        count_ += count;
    }

    // The next edges are written from here on.
    void start(int64_t out) { out_ = out; }

    void read() {
        int32_t* source = source_ + out_;
        if (draw_.name)
            for (int64_t i = 0; i < count_; ++i) source[i] = draw_.name[draw_.indices[edges_[size_t(i)]]];
        else
            for (int64_t i = 0; i < count_; ++i) source[i] = draw_.indices[edges_[size_t(i)]];
        if (edge_) std::copy(edges_.begin(), edges_.begin() + count_, edge_ + out_);
        out_ += count_, count_ = 0;
    }

private:
    const Draw& draw_;
    int32_t* source_;
    int64_t* edge_;
    std::vector<int64_t> edges_;
    int64_t count_ = 0, out_ = 0;
};

// Places of nodes by their numbers, for one group; it grows.
class Places {
public:
    explicit Places(int64_t known) {
        size_t slots = 1 << 10;
        while (slots < size_t(4 * known)) slots *= 2;
        slots_.assign(slots, {-1, 0});
    }

    void prefetch(int32_t node) const { __builtin_prefetch(&slots_[slot_of(node)]); }

    // The place of a node, which is the next one if it was not met before.
    int32_t meet(int32_t node) {
        size_t slot = slot_of(node);
        while (slots_[slot].node != node) {
            if (slots_[slot].node < 0) {
                slots_[slot] = {node, count_};
                if (size_t(2 * ++count_) > slots_.size()) grow();
                return count_ - 1;
            }
            slot = (slot + 1) & (slots_.size() - 1);
        }
        return slots_[slot].place;
    }

    int32_t count() const { return count_; }

private:
    struct Slot {
        int32_t node, place;
    };

    size_t slot_of(int32_t node) const { return (uint64_t(node) * 0x9E3779B97F4A7C15ull >> 20) & (slots_.size() - 1); }

    void grow() {
        std::vector<Slot> old(slots_.size() * 2, Slot{-1, 0});
        old.swap(slots_);
        for (const Slot& each : old) {
            if (each.node < 0) continue;
            size_t slot = slot_of(each.node);
            while (slots_[slot].node >= 0) slot = (slot + 1) & (slots_.size() - 1);
            slots_[slot] = each;
        }
    }

    std::vector<Slot> slots_;
    int32_t count_ = 0;
};

}  // namespace

void count_draws(const Draw& a, int64_t* out_indptr) {
#pragma omp parallel for schedule(static) if (a.num_rows > 1 << 12)
    for (int64_t r = 0; r < a.num_rows; ++r) {
        if (r + kAhead < a.num_rows) __builtin_prefetch(a.indptr + a.rows[r + kAhead]);
        const int64_t degree = a.indptr[a.rows[r] + 1] - a.indptr[a.rows[r]];
        out_indptr[r + 1] = a.fanout < 0 ? degree : a.replace && degree ? a.fanout : std::min(degree, a.fanout);
    }
    out_indptr[0] = 0;
    for (int64_t r = 0; r < a.num_rows; ++r) out_indptr[r + 1] += out_indptr[r];
}

void draw_edges(const Draw& a, const int64_t* out_indptr, int32_t* source, int64_t* edge) {
    const int64_t chunks = (a.num_rows + kChunk - 1) / kChunk;
#pragma omp parallel if (out_indptr[a.num_rows] > 1 << 12)
    {
        Reader reader(a, source, edge);
        uint64_t words[kWords] = {};
#pragma omp for schedule(dynamic, 4)
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t first = chunk * kChunk, last = std::min(first + kChunk, a.num_rows);
            int64_t group = std::upper_bound(a.group_ptr, a.group_ptr + a.groups + 1, first) - a.group_ptr - 1;
            reader.start(out_indptr[first]);
            for (int64_t r = first; r < last; ++r) {
                while (r >= a.group_ptr[group + 1]) ++group;
                if (r + kAhead < last) __builtin_prefetch(a.indptr + a.rows[r + kAhead]);
                const int64_t row = a.rows[r], begin = a.indptr[row], degree = a.indptr[row + 1] - begin;
                const int64_t count = out_indptr[r + 1] - out_indptr[r];
                const uint64_t stream = mixed(uint64_t(a.key[group]), a.id ? a.id[row] : row);
                int64_t* picks = reader.room(count);
                if (a.replace && a.fanout >= 0) {
                    for (int64_t i = 0; i < count; ++i) picks[i] = number(stream, i, degree);
                    std::sort(picks, picks + count);
                } else if (count == degree) {
                    for (int64_t i = 0; i < count; ++i) picks[i] = i;
                } else if (degree <= 64) {
                    uint64_t left = draw_bits(stream, degree, count);
                    for (int64_t i = 0; i < count; ++i, left &= left - 1) picks[i] = __builtin_ctzll(left);
                } else if (degree <= 64 * kWords) {
                    draw_words(stream, degree, count, words, picks);
                } else {
                    draw_distinct(stream, degree, count, picks);
                }
                reader.add(count, begin);
            }
            reader.read();
        }
    }
}

namespace {

// Places of nodes by their numbers in one array, for few nodes; it is made ready again by forgetting what was met.
class Directory {
public:
    explicit Directory(int64_t num_nodes) : places_(size_t(num_nodes), -1) {}

    void prefetch(int32_t node) const { __builtin_prefetch(&places_[size_t(node)]); }
    int32_t meet(int32_t node) {  // without a branch, which nobody could foresee
        int32_t& place = places_[size_t(node)];
        const int32_t fresh = -int32_t(place < 0), found = (count_ & fresh) | (place & ~fresh);
        place = found, count_ -= fresh;
        return found;
    }
    int32_t count() const { return count_; }
    void forget(const int32_t* nodes, int64_t count) {
        for (int64_t i = 0; i < count; ++i) places_[size_t(nodes[i])] = -1;
        count_ = 0;
    }

private:
    std::vector<int32_t> places_;
    int32_t count_ = 0;
};

// The places of one group's met nodes; returns how many are new.
template <typename P>
int64_t meet_all(P& places, const int32_t* known, int64_t num_known, const int32_t* met, int64_t num_met, int32_t* place, int32_t* fresh) {
    for (int64_t i = 0; i < num_known; ++i) places.meet(known[i]);
    int32_t* next = fresh;
    for (int64_t i = 0; i < num_met; ++i) {
        if (i + kAhead < num_met) places.prefetch(met[i + kAhead]);
        const int32_t before = places.count();
        place[i] = places.meet(met[i]);
        *next = met[i];
        next += places.count() > before;
    }
    return next - fresh;
}

}  // namespace

void first_met(const int32_t* known, const int64_t* known_ptr, const int32_t* met, const int64_t* met_ptr, int64_t groups, int32_t* place,
               int32_t* fresh, int64_t* num_fresh) {
    const int64_t num_known = known_ptr[groups], num_met = met_ptr[groups];
    int32_t last = -1;
    for (int64_t i = 0; i < num_known; ++i) last = std::max(last, known[i]);
#pragma omp parallel for schedule(static) reduction(max : last) if (num_met > 1 << 16)
    for (int64_t i = 0; i < num_met; ++i) last = std::max(last, met[i]);
    const bool few = int64_t(last) < 2 * (num_known + num_met) / std::max<int64_t>(1, groups);
#pragma omp parallel if (groups > 1)
    {
        Directory directory(few ? int64_t(last) + 1 : 0);
#pragma omp for schedule(dynamic, 1)
        for (int64_t g = 0; g < groups; ++g) {
            const int32_t *its = known + known_ptr[g], *seen = met + met_ptr[g];
            const int64_t num_its = known_ptr[g + 1] - known_ptr[g], num_seen = met_ptr[g + 1] - met_ptr[g];
            int32_t *to = place + met_ptr[g], *first = fresh + met_ptr[g];
            if (few) {
                num_fresh[g] = meet_all(directory, its, num_its, seen, num_seen, to, first);
                directory.forget(its, num_its), directory.forget(first, num_fresh[g]);
            } else {
                Places places(num_its);
                num_fresh[g] = meet_all(places, its, num_its, seen, num_seen, to, first);
            }
        }
    }
}

void spread_rows(const int64_t* from, const int32_t* values, const int64_t* rows, int64_t num_rows, const int64_t* to, int32_t* out) {
#pragma omp parallel for schedule(static) if (from[num_rows] > 1 << 14)
    for (int64_t i = 0; i < num_rows; ++i) std::copy(values + from[i], values + from[i + 1], out + to[rows[i]]);
}

void sort_rows_by_id(const int64_t* indptr, int32_t* indices, int64_t* from, const int64_t* id, int64_t num_rows) {
#pragma omp parallel
    {
        std::vector<std::pair<int64_t, int64_t>> order;  // id of the column, place in the row
        std::vector<int32_t> cols;
        std::vector<int64_t> origin;
#pragma omp for schedule(dynamic, 256)
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
