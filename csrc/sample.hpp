// Neighbour sampling: which in-edges of a node are drawn depends on a key and the node's own id alone, never on threads, on ranks
// or on what else is drawn. Ids are 64 bits, places among few nodes int32.
#pragma once

#include <cstdint>

// How many edges each row gives: all it has, at most `fanout` of them, or with replacement `fanout` wherever it has any.
// fanout < 0: all. out_indptr: (num_rows + 1).
void count_draws(const int64_t* indptr, const int64_t* rows, int64_t num_rows, int64_t fanout, bool replace, int64_t* out_indptr);

// The places of the edges drawn, ascending within a row: (out_indptr[num_rows]). key: (num_rows), of the draw; id: (num_rows), of the
// node.
void draw_edges(const int64_t* indptr, const int64_t* rows, int64_t num_rows, const int64_t* key, const int64_t* id, int64_t fanout,
                bool replace, const int64_t* out_indptr, int64_t* out_edge);

// For each of several groups: nodes that are known, in order, and nodes that are met, with repetitions. place: for each met node its
// place among known ones and then those met first, in the order of meeting; fresh: (num met), those met first, group by group at the
// place where the group's met nodes begin; num_fresh: (groups).
void first_met(const int64_t* known, const int64_t* known_ptr, const int64_t* met, const int64_t* met_ptr, int64_t groups, int32_t* place,
               int64_t* fresh, int64_t* num_fresh);

// Sorts each row's columns by their ids, carrying `from` along where it is not null: an order that no renaming of columns changes.
void sort_rows_by_id(const int64_t* indptr, int32_t* indices, int64_t* from, const int64_t* id, int64_t num_rows);
