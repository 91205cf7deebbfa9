// Counts by key in a small hash table that is emptied in the time it took to fill.
#pragma once

#include <bit>
#include <algorithm>
#include <cstdint>

namespace {

class Tally {
public:
    struct Slot {
        int32_t key, count;
    };
    static constexpr int kBits = 14;
    static constexpr int32_t kKeys = 1 << (kBits - 1);  // a table half full; keys beyond that are not counted
    static constexpr int64_t kBytes = (sizeof(Slot) << kBits) + sizeof(int32_t) * kKeys;

    explicit Tally(char* work) : slots_(reinterpret_cast<Slot*>(work)), used_(reinterpret_cast<int32_t*>(slots_ + (1 << kBits))) {}

    void make_empty() { std::fill(slots_, slots_ + (1 << kBits), Slot{-1, 0}); }

    // Sizes the table for so many additions, so that small ones stay in the cache. It must be empty.
    void expect(int64_t additions) {
        const int bits = std::min<int>(kBits, std::bit_width(uint64_t(additions)) + 1);
        shift_ = 32 - bits, mask_ = (1u << bits) - 1, num_used_ = 0;
    }

    void add(int32_t key) {
        uint32_t at = (uint32_t(key) * 0x9E3779B9u) >> shift_;
        while (slots_[at].key != key) {
            if (slots_[at].key < 0) {
                if (num_used_ == kKeys) return;
                slots_[at] = {key, 0};
                used_[num_used_++] = int32_t(at);
                break;
            }
            at = (at + 1) & mask_;
        }
        ++slots_[at].count;
    }

    // Calls visit(key, count) for each key in the order of their first additions, and empties the table.
    template <typename Visit>
    void drain(const Visit& visit) {
        for (int32_t i = 0; i < num_used_; ++i) {
            Slot& slot = slots_[used_[i]];
            visit(slot.key, slot.count);
            slot = {-1, 0};
        }
        num_used_ = 0;
    }

private:
    Slot* slots_;
    int32_t* used_;
    uint32_t shift_ = 0, mask_ = 0;
    int32_t num_used_ = 0;
};

}  // namespace
