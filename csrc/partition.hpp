// Who owns which node: a partitioner that streams over the rows of the CSR again and again and holds a few numbers a node.
//
// Nodes gather into clusters of bounded size, clusters into larger ones; the largest are placed into parts one by one; then
// parts are refined from the largest clusters down to single nodes. No coarse graph is ever built: a cluster's edges are
// read from its members' rows. The CSR is read as it stands, need not be symmetric, and may lie in a mapped file.
// Node ids are int32, offsets int64. Every result is the same for any number of threads.
#pragma once

#include <cstdint>

struct PartitionJob {
    const int64_t* indptr;   // (n + 1)
    const int32_t* indices;  // (e)
    const uint8_t* train;    // (n), 1 for a training node; null: every node counts as one
    int64_t num_nodes;
    int64_t parts;  // at least 2, at most n
    uint64_t seed;
};

// The bytes of work space that a partition takes beside its result, for the number of threads in use now.
int64_t partition_bytes(int64_t num_nodes, int64_t parts);

// part: (n), the part of each node. work: partition_bytes() bytes, aligned to 16. Nothing else is allocated.
void partition(const PartitionJob& job, char* work, int32_t* part);

// What a partition is like; every array has a number a part.
struct PartitionCounts {
    int64_t* nodes;
    int64_t* edges;   // in-edges of its nodes
    int64_t* train;   // training nodes
    int64_t* inside;  // edges from its own nodes to its own nodes
    int64_t* halo;    // nodes of other parts that its edges come from, each once
};

int64_t quality_bytes(int64_t num_nodes, int64_t parts);
void partition_quality(const PartitionJob& job, const int32_t* part, char* work, const PartitionCounts& counts);
