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

// The square CSR with node order[i] renamed i; rows are sorted. out_indptr: (n + 1). from: as above, or null.
void relabel_csr(const int64_t* indptr, const int32_t* indices, const int64_t* order, int64_t num_nodes, int64_t* out_indptr,
                 int32_t* out_indices, int64_t* from);

// A node order in which communities, found by size-bounded label propagation, lie together.
// order: (n), order[i] is the node at place i. The CSR is read as it stands; it need not be symmetric.
void locality_order(const int64_t* indptr, const int32_t* indices, int64_t num_nodes, int64_t max_community, int rounds,
                    int64_t* order);
