// Tables of the nodes that a group has met, each with its place in the order of meeting.
#pragma once

#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kSoon = 16;  // nodes between a prefetch and its use

// Places of nodes by their numbers, for one group; it grows.
class Places {
public:
    explicit Places(int64_t known) {
        size_t slots = 1 << 10;
        while (slots < size_t(4 * known)) slots *= 2;
        slots_.assign(slots, {-1, 0});
    }

    // The places of some met nodes, in the order of meeting; returns where those end that were not met before. `met` and `out` may
    // be the same.
    int32_t* meet(const int32_t* met, int64_t num_met, int32_t* out, int32_t* fresh) {
        for (int64_t i = 0; i < num_met; ++i) {
            if (i + kSoon < num_met) __builtin_prefetch(&slots_[slot_of(met[i + kSoon])]);
            const int32_t node = met[i], before = count_;
            out[i] = place_of(node);
            *fresh = node, fresh += count_ > before;
        }
        return fresh;
    }

    void know(const int32_t* nodes, int64_t count) {
        for (int64_t i = 0; i < count; ++i) place_of(nodes[i]);
    }

private:
    struct Slot {
        int32_t node, place;
    };

    // The place of a node, which is the next one if it was not met before.
    int32_t place_of(int32_t node) {
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

// Places of nodes by their numbers in one array, for few nodes; it is made ready again by forgetting what was met.
class Directory {
public:
    explicit Directory(int64_t num_nodes) : places_(size_t(num_nodes), -1) {}

    // See Places. Without a branch, which nobody could foresee; what is counted stays in registers.
    int32_t* meet(const int32_t* met, int64_t num_met, int32_t* out, int32_t* fresh) {
        int32_t *places = places_.data(), count = count_;
        for (int64_t i = 0; i < num_met; ++i) {
            if (i + kSoon < num_met) __builtin_prefetch(places + met[i + kSoon]);
            const int32_t node = met[i], known = places[node], is_new = -int32_t(known < 0), place = (count & is_new) | (known & ~is_new);
            places[node] = out[i] = place;
            *fresh = node, fresh -= is_new, count -= is_new;
        }
        count_ = count;
        return fresh;
    }

    void know(const int32_t* nodes, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
            if (places_[size_t(nodes[i])] < 0) places_[size_t(nodes[i])] = count_++;
    }

    void forget(const int32_t* nodes, int64_t count) {
        for (int64_t i = 0; i < count; ++i) places_[size_t(nodes[i])] = -1;
        count_ = 0;
    }

private:
    std::vector<int32_t> places_;
    int32_t count_ = 0;
};

}  // namespace
