// What is done to the graph itself: build, sort, deduplicate, transpose, relabel, and an order in which neighbours are near.
// Ids are int32, offsets int64. Every result is the same for any number of threads.
#pragma once

#include <cstdint>

// CSR by `row` of the edges (row[i], col[i]), stable: edges of a row stay in input order.
// indptr: (num_rows + 1), cols: (num_edges), from: (num_edges) input position of each edge, or null.
void build_csr(const int32_t* row, const int32_t* col, int64_t num_edges, int64_t num_rows, int64_t* indptr, int32_t* cols,
               int64_t* from);

// The CSR with rows and columns exchanged; within a row columns ascend. from: position of each edge in the input, or null.
void transpose_csr(const int64_t* indptr, const int32_t* indices, int64_t num_rows, int64_t num_cols, int64_t* t_indptr,
                   int32_t* t_indices, int64_t* from);

// Sorts each row's columns, carrying `from` along where it is not null. Stable.
void sort_rows(const int64_t* indptr, int32_t* indices, int64_t* from, int64_t num_rows);

// Drops repeated columns of sorted rows in place, keeping the first, and rewrites indptr; returns the edges left.
int64_t deduplicate_rows(int64_t* indptr, int32_t* indices, int64_t* from, int64_t num_rows);

// How many different columns each sorted row has.
void count_distinct(const int64_t* indptr, const int32_t* indices, int64_t num_rows, int64_t* out);

// A CSR with sorted rows, and where each edge came from or null.
struct SortedRows {
    const int64_t* indptr;
    const int32_t* indices;
    const int64_t* from;
};

// `old` with the edges of `add` put in and those of `drop` taken out; rows come out sorted. Of equal columns the first are taken
// out, and those put in stand last. out_indptr: (num_rows + 1), out_indices: as many as `old` and `add` less `drop`; from: where
// each edge came from, or null. Returns a row of `drop` that has an edge which `old` has not, or -1; then the result is of no use.
int64_t apply_delta(const SortedRows& old, const SortedRows& add, const SortedRows& drop, int64_t num_rows, int64_t* out_indptr,
                    int32_t* out_indices, int64_t* from);

// The places in `rows` of edges that `others` lacks, ascending; what stands several times there is had as often, the first being
// those it has. places: as many as `rows` has edges. Returns how many there are.
int64_t places_lacking(const SortedRows& rows, const SortedRows& others, int64_t num_rows, int64_t* places);

// The CSR of some rows, columns c renamed name[c], which must not be negative; rows come out sorted. out_indptr: (num_rows + 1),
// out_indices: as many as the rows hold. from: position of each edge in the input, or null.
void take_rows(const int64_t* indptr, const int32_t* indices, const int64_t* rows, int64_t num_rows, const int32_t* name,
               int64_t* out_indptr, int32_t* out_indices, int64_t* from);

// Sets mark[c] = 1 for every column c of some rows.
void mark_columns(const int64_t* indptr, const int32_t* indices, const int64_t* rows, int64_t num_rows, uint8_t* mark);

// What each row lacks of exactly one edge to itself: 1 where it has none; where it has some, the weight of the last less that
// of all. weight may be null (then 1).
void missing_loops(const int64_t* indptr, const int32_t* indices, const float* weight, int64_t num_rows, double* out);

// Where in each sorted row the columns from `column` on begin.
void split_rows(const int64_t* indptr, const int32_t* indices, int32_t column, int64_t num_rows, int64_t* ends);

// A node order in which communities, found by size-bounded label propagation, lie together.
// order: (n), order[i] is the node at place i. The CSR is read as it stands; it need not be symmetric.
void locality_order(const int64_t* indptr, const int32_t* indices, int64_t num_nodes, int64_t max_community, int rounds,
                    int64_t* order);
