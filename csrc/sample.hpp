// Neighbour sampling: which in-edges of a node are drawn depends on a key and the node's own id alone, never on threads, on ranks
// or on what else is drawn.
#pragma once

#include <cstdint>

constexpr int64_t kRowsAtOnce = 256;  // rows that are drawn at a time
constexpr int64_t kMarkWords = 4;  // of 64 bits, in which edges of a row are marked
constexpr int64_t kBehind = 64;    // numbers behind what is drawn that are written over

// Nodes whose in-edges are to be drawn, group after group; all nodes of a group share a key.
struct Draw {
    const int64_t* indptr;      // of all rows
    const int32_t* indices;
    int64_t num_edges;          // of all rows
    const int32_t* name;        // of a column in what is drawn; or null: its number
    const int64_t* id;          // of a row, which the draw is keyed by; or null: its number
    const int32_t* rows;        // (num_rows), which of them are asked
    int64_t num_rows;
    const int64_t* group_ptr;   // (groups + 1), where the rows of each group begin
    const int64_t* key;         // (groups)
    int64_t groups;
    int64_t fanout;             // edges a row; negative: all
    bool replace;               // never where all are drawn

    // Whether all edges of a row that has so many are drawn.
    [[gnu::always_inline]] bool whole(int64_t degree) const { return fanout < 0 || !degree || (!replace && degree <= fanout); }
};

// Draws for at most kRowsAtOnce rows of one group, from `first` on: the columns, with kBehind numbers of room behind them, and
// the places of the edges where `edge` is not null. Returns how many. There is one for each instruction set.
using DrawRows = int64_t (*)(const Draw& draw, int64_t first, int64_t count, uint64_t key, int32_t* out, int64_t* edge);

// The same of one row that has very many edges or is drawn from with replacement; returns where they end.
int32_t* read_many(const Draw& draw, uint64_t stream, int64_t begin, int64_t degree, int32_t* out, int64_t* edge);

// How many edges each row gives: all it has, at most `fanout` of them, or with replacement `fanout` wherever it has any; added up.
void count_draws(const Draw& draw, int64_t* out_indptr);

// The names of the sources that are drawn, in the order of their edges, and the places of the edges where `edge` is not null.
void draw_edges(const Draw& draw, DrawRows rows, const int64_t* out_indptr, int32_t* source, int64_t* edge);

// Both at once, of nodes that have no other names and of groups in which none is twice: draws, and places what was drawn among
// the group's nodes and then those met first; see first_met. num_nodes: of the graph.
void draw_met(const Draw& draw, DrawRows rows, const int64_t* out_indptr, int64_t num_nodes, int32_t* place, int64_t* edge,
              int32_t* fresh, int64_t* num_fresh);

// For each of several groups: nodes that are known, in order, and nodes that are met, with repetitions. place: for each met node its
// place among known ones and then those met first, in the order of meeting; fresh: (num met), those met first, group by group at the
// place where the group's met nodes begin; num_fresh: (groups).
void first_met(const int32_t* known, const int64_t* known_ptr, const int32_t* met, const int64_t* met_ptr, int64_t groups, int32_t* place,
               int32_t* fresh, int64_t* num_fresh);

// Copies the values of row i, from[i] to from[i + 1], to where those of row rows[i] begin.
void spread_rows(const int64_t* from, const int32_t* values, const int64_t* rows, int64_t num_rows, const int64_t* to, int32_t* out);

// Sorts each row's columns by their ids, carrying `from` along where it is not null: an order that no renaming of columns changes.
void sort_rows_by_id(const int64_t* indptr, int32_t* indices, int64_t* from, const int64_t* id, int64_t num_rows);
