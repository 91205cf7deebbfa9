#include "structure.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "chunks.hpp"

namespace {

// A stable counting sort of edges into CSR form, in blocks: block b's edges of a key follow those of block b - 1.
// each(b, visit) calls visit(edge, key, value) for every edge of block b, in order.
template <typename Each>
void counting_sort(int64_t num_keys, int blocks, const Each& each, int64_t* indptr, int32_t* values, int64_t* from) {
    std::vector<std::vector<int64_t>> next(blocks);
#pragma omp parallel for schedule(dynamic, 1) if (blocks > 1)
    for (int b = 0; b < blocks; ++b) {
        next[b].assign(num_keys, 0);
        each(b, [&](int64_t, int64_t key, int64_t) { ++next[b][key]; });
    }
    int64_t total = 0;
    indptr[0] = 0;
    for (int64_t k = 0; k < num_keys; ++k) {
        for (int b = 0; b < blocks; ++b) total += std::exchange(next[b][k], total);
        indptr[k + 1] = total;
    }
#pragma omp parallel for schedule(dynamic, 1) if (blocks > 1)
    for (int b = 0; b < blocks; ++b)
        each(b, [&](int64_t edge, int64_t key, int64_t value) {
            const int64_t slot = next[b][key]++;
            values[slot] = int32_t(value);
            if (from) from[slot] = edge;
        });
}

constexpr int64_t kSmall = kThreadedEdges;

// A few blocks for each thread, while their counters stay small beside the edges, else one.
int blocks_for(int64_t num_edges, int64_t num_keys) {
    if (num_edges < kSmall) return 1;
    const int64_t affordable = std::max<int64_t>(1, num_edges / std::max<int64_t>(1, num_keys));
    const int64_t threads = std::min<int64_t>({omp_get_max_threads(), 16, affordable});
    return int(std::clamp<int64_t>(affordable / 8, threads, 4 * threads));
}

}  // namespace

void build_csr(const int32_t* row, const int32_t* col, int64_t num_edges, int64_t num_rows, int64_t* indptr, int32_t* cols,
               int64_t* from) {
    const int blocks = blocks_for(num_edges, num_rows);
    const auto each = [&](int b, auto&& visit) {
        for (int64_t e = num_edges * b / blocks; e < num_edges * (b + 1) / blocks; ++e) visit(e, row[e], col[e]);
    };
    counting_sort(num_rows, blocks, each, indptr, cols, from);
}

void transpose_csr(const int64_t* indptr, const int32_t* indices, int64_t num_rows, int64_t num_cols, int64_t* t_indptr,
                   int32_t* t_indices, int64_t* from) {
    const int blocks = blocks_for(indptr[num_rows], num_cols);
    const auto each = [&](int b, auto&& visit) {
        for (int64_t r = num_rows * b / blocks; r < num_rows * (b + 1) / blocks; ++r)
            for (int64_t e = indptr[r]; e < indptr[r + 1]; ++e) visit(e, indices[e], r);
    };
    counting_sort(num_cols, blocks, each, t_indptr, t_indices, from);
}

void sort_rows(const int64_t* indptr, int32_t* indices, int64_t* from, int64_t num_rows) {
#pragma omp parallel if (indptr[num_rows] >= kSmall)
    {
        std::vector<std::pair<int32_t, int64_t>> row;
#pragma omp for schedule(dynamic, 256) nowait
        for (int64_t r = 0; r < num_rows; ++r) {
            const int64_t begin = indptr[r], end = indptr[r + 1];
            if (std::is_sorted(indices + begin, indices + end)) continue;
            if (!from) {
                std::sort(indices + begin, indices + end);
                continue;
            }
            row.clear();
            for (int64_t e = begin; e < end; ++e) row.emplace_back(indices[e], from[e]);
            std::stable_sort(row.begin(), row.end(), [](auto& a, auto& b) { return a.first < b.first; });
            for (int64_t e = begin; e < end; ++e) std::tie(indices[e], from[e]) = row[e - begin];
        }
    }
}

int64_t deduplicate_rows(int64_t* indptr, int32_t* indices, int64_t* from, int64_t num_rows) {
    int64_t out = 0, begin = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t end = indptr[r + 1], first = out;
        for (int64_t e = begin; e < end; ++e) {
            if (out > first && indices[out - 1] == indices[e]) continue;
            indices[out] = indices[e];
            if (from) from[out] = from[e];
            ++out;
        }
        begin = end;
        indptr[r + 1] = out;
    }
    return out;
}

void count_distinct(const int64_t* indptr, const int32_t* indices, int64_t num_rows, int64_t* out) {
#pragma omp parallel for schedule(dynamic, 1024) if (indptr[num_rows] >= kSmall)
    for (int64_t r = 0; r < num_rows; ++r) {
        int64_t count = indptr[r] < indptr[r + 1];
        for (int64_t e = indptr[r] + 1; e < indptr[r + 1]; ++e) count += indices[e] != indices[e - 1];
        out[r] = count;
    }
}

namespace {

// Merges one row of a delta into out[slot:end]; whether every edge to drop was there.
bool merge_row(const SortedRows& old, const SortedRows& add, const SortedRows& drop, int64_t row, int64_t slot, int64_t end,
               int32_t* out, int64_t* from) {
    int64_t a = add.indptr[row], d = drop.indptr[row];
    const int64_t a_end = add.indptr[row + 1], d_end = drop.indptr[row + 1];
    const auto put = [&](const SortedRows& rows, int64_t e) {
        if (slot == end) return false;  // something was not dropped
        out[slot] = rows.indices[e];
        if (from) from[slot] = rows.from[e];
        ++slot;
        return true;
    };
    for (int64_t e = old.indptr[row]; e < old.indptr[row + 1]; ++e) {
        const int32_t col = old.indices[e];
        if (d < d_end && drop.indices[d] == col) {
            ++d;
            continue;
        }
        for (; a < a_end && add.indices[a] < col; ++a)
            if (!put(add, a)) return false;
        if (!put(old, e)) return false;
    }
    for (; a < a_end; ++a)
        if (!put(add, a)) return false;
    return d == d_end;
}

}  // namespace

int64_t apply_delta(const SortedRows& old, const SortedRows& add, const SortedRows& drop, int64_t num_rows, int64_t* out_indptr,
                    int32_t* out_indices, int64_t* from) {
    const int64_t total = old.indptr[num_rows] + add.indptr[num_rows] - drop.indptr[num_rows];
    std::atomic<int64_t> missing(-1);
#pragma omp parallel for schedule(dynamic, 1 << 13) if (total >= kSmall)
    for (int64_t r = 0; r <= num_rows; ++r) {
        out_indptr[r] = old.indptr[r] + add.indptr[r] - drop.indptr[r];
        if (r < num_rows && drop.indptr[r + 1] - drop.indptr[r] > old.indptr[r + 1] - old.indptr[r]) missing = r;
    }
    if (missing >= 0) return missing;  // offsets could descend
    constexpr int64_t kRows = 1024;
#pragma omp parallel for schedule(dynamic, 1) if (total >= kSmall)
    for (int64_t first = 0; first < num_rows; first += kRows) {
        const int64_t last = std::min(first + kRows, num_rows);
        int64_t begun = first;  // rows from here on are as they were, and not yet copied
        const auto copy_to = [&](int64_t row) {
            const int64_t at = old.indptr[begun], count = old.indptr[row] - at, slot = out_indptr[begun];
            std::copy_n(old.indices + at, count, out_indices + slot);
            if (from) std::copy_n(old.from + at, count, from + slot);
        };
        for (int64_t r = first; r < last; ++r) {
            if (add.indptr[r] == add.indptr[r + 1] && drop.indptr[r] == drop.indptr[r + 1]) continue;
            copy_to(r);
            begun = r + 1;
            if (!merge_row(old, add, drop, r, out_indptr[r], out_indptr[r + 1], out_indices, from)) missing = r;
        }
        copy_to(last);
    }
    return missing;
}

int64_t places_lacking(const SortedRows& rows, const SortedRows& others, int64_t num_rows, int64_t* places) {
    int64_t count = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
        int64_t o = others.indptr[r];
        const int64_t end = others.indptr[r + 1];
        for (int64_t e = rows.indptr[r]; e < rows.indptr[r + 1]; ++e) {
            while (o < end && others.indices[o] < rows.indices[e]) ++o;
            if (o < end && others.indices[o] == rows.indices[e]) ++o;
            else places[count++] = e;
        }
    }
    return count;
}

void take_rows(const int64_t* indptr, const int32_t* indices, const int64_t* rows, int64_t num_rows, const int32_t* name,
               int64_t* out_indptr, int32_t* out_indices, int64_t* from) {
    out_indptr[0] = 0;
    for (int64_t i = 0; i < num_rows; ++i) out_indptr[i + 1] = out_indptr[i] + indptr[rows[i] + 1] - indptr[rows[i]];
#pragma omp parallel for schedule(dynamic, 256) if (out_indptr[num_rows] >= kSmall)
    for (int64_t i = 0; i < num_rows; ++i) {
        int64_t slot = out_indptr[i];
        for (int64_t e = indptr[rows[i]]; e < indptr[rows[i] + 1]; ++e, ++slot) {
            out_indices[slot] = name[indices[e]];
            if (from) from[slot] = e;
        }
    }
    sort_rows(out_indptr, out_indices, from, num_rows);
}

void mark_columns(const int64_t* indptr, const int32_t* indices, const int64_t* rows, int64_t num_rows, uint8_t* mark) {
#pragma omp parallel for schedule(dynamic, 256) if (num_rows > 1 << 12)
    for (int64_t i = 0; i < num_rows; ++i)
        for (int64_t e = indptr[rows[i]]; e < indptr[rows[i] + 1]; ++e) {
            const std::atomic_ref<uint8_t> at(mark[indices[e]]);
            if (!at.load(std::memory_order_relaxed)) at.store(1, std::memory_order_relaxed);
        }
}

void missing_loops(const int64_t* indptr, const int32_t* indices, const float* weight, int64_t num_rows, double* out) {
#pragma omp parallel for schedule(dynamic, 1024) if (indptr[num_rows] > kThreadedNumbers)
    for (int64_t r = 0; r < num_rows; ++r) {
        double all = 0, last = 1;
        for (int64_t e = indptr[r]; e < indptr[r + 1]; ++e)
            if (indices[e] == r) all += last = weight ? weight[e] : 1;
        out[r] = last - all;
    }
}

void split_rows(const int64_t* indptr, const int32_t* indices, int32_t column, int64_t num_rows, int64_t* ends) {
#pragma omp parallel for schedule(dynamic, 1024) if (num_rows > 1 << 12)
    for (int64_t r = 0; r < num_rows; ++r)
        ends[r] = std::lower_bound(indices + indptr[r], indices + indptr[r + 1], column) - indices;
}

void locality_order(const int64_t* indptr, const int32_t* indices, int64_t num_nodes, int64_t max_community, int rounds,
                    int64_t* order) {
    std::vector<int32_t> label(num_nodes), size(num_nodes, 1), votes(num_nodes, 0), seen;
    std::iota(label.begin(), label.end(), 0);
    for (int round = 0; round < rounds; ++round) {
        int64_t moved = 0;
        for (int64_t v = 0; v < num_nodes; ++v) {
            const int32_t own = label[v];
            seen.clear();
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
                if (e + 16 < indptr[num_nodes]) __builtin_prefetch(&label[indices[e + 16]]);
                if (indices[e] == v) continue;
                const int32_t l = label[indices[e]];
                if (votes[l]++ == 0) seen.push_back(l);
            }
            int32_t best = own, most = votes[own];
            for (const int32_t l : seen)
                if ((votes[l] > most || (votes[l] == most && l < best && best != own)) && (l == own || size[l] < max_community))
                    best = l, most = votes[l];
            for (const int32_t l : seen) votes[l] = 0;
            if (best == own) continue;
            --size[own], ++size[best], label[v] = best;
            ++moved;
        }
        if (moved * 100 < num_nodes) break;
    }
    // Communities in the order of their first member, members in their given order.
    std::vector<int32_t> first(num_nodes, -1);
    std::vector<int64_t> start(1, 0);
    for (int64_t v = 0; v < num_nodes; ++v)
        if (first[label[v]] < 0) {
            first[label[v]] = int32_t(start.size() - 1);
            start.push_back(start.back() + size[label[v]]);
        }
    for (int64_t v = 0; v < num_nodes; ++v) order[start[first[label[v]]]++] = v;
}
