// What a partitioner moves: nodes, or clusters of them. And the array that it takes its memory from.
#pragma once

#include <cstdint>

#include "partition.hpp"

namespace {

constexpr int64_t kSmall = 1 << 17;  // edges; fewer are not worth a second thread

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

}  // namespace
