#include "sample.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace {

constexpr int64_t kFew = 64;  // draws among which a linear search is quickest

// The i-th number of a stream, scaled to [0, bound).
inline int64_t number(uint64_t stream, int64_t i, int64_t bound) {
    return int64_t((static_cast<unsigned __int128>(mixed(stream, i)) * uint64_t(bound)) >> 64);
}

// `count` of `degree` numbers without repetition, by Floyd's method; ascending.
void draw_distinct(uint64_t stream, int64_t degree, int64_t count, int64_t* out) {
    int64_t drawn = 0;
    std::vector<bool> taken;
    if (count > kFew) taken.assign(size_t(degree), false);
    for (int64_t top = degree - count; top < degree; ++top) {
        int64_t pick = number(stream, drawn, top + 1);
        const bool again = count > kFew ? bool(taken[size_t(pick)]) : std::find(out, out + drawn, pick) != out + drawn;
        if (again) pick = top;
        if (count > kFew) taken[size_t(pick)] = true;
        out[drawn++] = pick;
    }
    std::sort(out, out + count);
}

// Places of nodes by their ids, for one group.
class Places {
public:
    explicit Places(int64_t most) {
        size_t slots = 16;
        while (slots < size_t(2 * most)) slots *= 2;
        mask_ = slots - 1;
        ids_.assign(slots, -1);
        places_.resize(slots);
    }

    // The place of a node, which is `next` if it was not met before.
    std::pair<int32_t, bool> meet(int64_t id, int32_t next) {
        size_t slot = size_t(mixed(0, id)) & mask_;
        while (ids_[slot] != id) {
            if (ids_[slot] < 0) {
                ids_[slot] = id;
                places_[slot] = next;
                return {next, true};
            }
            slot = (slot + 1) & mask_;
        }
        return {places_[slot], false};
    }

private:
    size_t mask_;
    std::vector<int64_t> ids_;
    std::vector<int32_t> places_;
};

}  // namespace

void count_draws(const int64_t* indptr, const int64_t* rows, int64_t num_rows, int64_t fanout, bool replace, int64_t* out_indptr) {
    out_indptr[0] = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t degree = indptr[rows[r] + 1] - indptr[rows[r]];
        const int64_t count = fanout < 0 ? degree : replace && degree ? fanout : std::min(degree, fanout);
        out_indptr[r + 1] = out_indptr[r] + count;
    }
}

void draw_edges(const int64_t* indptr, const int64_t* rows, int64_t num_rows, const int64_t* key, const int64_t* id, int64_t fanout,
                bool replace, const int64_t* out_indptr, int64_t* out_edge) {
#pragma omp parallel for schedule(dynamic, 256) if (out_indptr[num_rows] > 1 << 12)
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t begin = indptr[rows[r]], degree = indptr[rows[r] + 1] - begin, count = out_indptr[r + 1] - out_indptr[r];
        int64_t* out = out_edge + out_indptr[r];
        const uint64_t stream = mixed(uint64_t(key[r]), id[r]);
        if (count == degree && !(replace && fanout >= 0)) {
            for (int64_t i = 0; i < degree; ++i) out[i] = i;
        } else if (replace) {
            for (int64_t i = 0; i < count; ++i) out[i] = number(stream, i, degree);
            std::sort(out, out + count);
        } else {
            draw_distinct(stream, degree, count, out);
        }
        for (int64_t i = 0; i < count; ++i) out[i] += begin;
    }
}

void first_met(const int64_t* known, const int64_t* known_ptr, const int64_t* met, const int64_t* met_ptr, int64_t groups, int32_t* place,
               int64_t* fresh, int64_t* num_fresh) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t num_known = known_ptr[g + 1] - known_ptr[g], begin = met_ptr[g];
        Places places(num_known + met_ptr[g + 1] - begin);
        for (int64_t i = 0; i < num_known; ++i) places.meet(known[known_ptr[g] + i], int32_t(i));
        int64_t count = 0;
        for (int64_t i = begin; i < met_ptr[g + 1]; ++i) {
            const auto [at, is_new] = places.meet(met[i], int32_t(num_known + count));
            place[i] = at;
            if (is_new) fresh[begin + count++] = met[i];
        }
        num_fresh[g] = count;
    }
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
