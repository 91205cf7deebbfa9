// Large arrays that are used again. A fresh array of 100 MB costs 25,000 page faults in small pages, which takes longer than
// computing what goes into it; one that is handed out again costs none.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

constexpr int64_t kPage = 4096, kLargePage = int64_t(1) << 21;

// Tells the system how an array that is mapped from a file is about to be read. By rows here and there: it reads those
// rows alone, all of them at once, where it would else read megabytes around each as it is come to. Of many rows those that
// are in memory are found out first, which costs less than telling of them; rows that lie on most of the pages are told of
// as the whole array.
inline void expect_rows(const char* data, int64_t row_bytes, int64_t num_rows, const int64_t* index, int64_t count) {
    const uintptr_t page = kPage, first = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~(page - 1);
    const uintptr_t last = reinterpret_cast<uintptr_t>(data) + uintptr_t(row_bytes * num_rows);
    if (last <= first) return;
    const auto need = [](uintptr_t from, uintptr_t to) {
        if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_WILLNEED);
    };
    const uintptr_t pages = (last - first + page - 1) / page, rows = uintptr_t(count);
    madvise(reinterpret_cast<void*>(first), last - first, MADV_RANDOM);
    if (rows >= pages / 2) return need(first, last);
    std::vector<unsigned char> here;
    if (rows > 1024 && rows >= pages / 64) {
        here.resize(pages);
        if (mincore(reinterpret_cast<void*>(first), last - first, here.data())) here.clear();
    }
    const auto in_memory = [&](uintptr_t from, uintptr_t to) {
        if (here.empty() || from < first) return false;
        for (; from < to; from += page)
            if (!(here[(from - first) / page] & 1)) return false;
        return true;
    };
    uintptr_t begin = 0, end = 0;  // rows near each other are told of at once
    for (int64_t i = 0; i < count; ++i) {
        const uintptr_t row = reinterpret_cast<uintptr_t>(data + index[i] * row_bytes);
        const uintptr_t from = row & ~(page - 1), to = (row + uintptr_t(row_bytes) + page - 1) & ~(page - 1);
        if (in_memory(from, to)) continue;
        if (from >= begin && from <= end && end) {
            end = to > end ? to : end;
            continue;
        }
        need(begin, end);
        begin = from, end = to;
    }
    need(begin, end);
}

// In order: the system reads ahead.
inline void expect_all(const char* data, int64_t num_bytes) {
    const uintptr_t page = kPage, first = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~(page - 1);
    const uintptr_t last = reinterpret_cast<uintptr_t>(data) + uintptr_t(num_bytes);
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_NORMAL);
}

// Arrays in large pages. While somebody wants them kept they lie side by side in one range of addresses: an array takes the smallest
// gap that it fits into, and one that is given back leaves a gap, which becomes one with those beside it. So arrays of all sizes share
// memory, and what is there hardly exceeds what was in use at once. Else each is mapped by itself, and freed.
class Pool {
public:
    void* take(int64_t num_bytes) {
        const int64_t size = (num_bytes + kPage - 1) / kPage * kPage;
        const std::lock_guard lock(mutex_);
        char* data = keepers_ ? within(size) : nullptr;
        if (!data) data = map(size);
        used_[data] = size;
        return data;
    }

    void give_back(void* given) {
        const std::lock_guard lock(mutex_);
        const auto found = used_.find(static_cast<char*>(given));
        const auto [data, size] = *found;
        used_.erase(found);
        if (data < begin_ || data >= top_) {
            munmap(data, size_t(size));
            return;
        }
        in_use_ -= size;
        if (!keepers_) let_go({size, data});
        leave(joined({size, data}));
    }

    void keep(bool on) {
        const std::lock_guard lock(mutex_);
        keepers_ += on ? 1 : -1;
        if (keepers_) return;
        for (const Gap& gap : gaps_) let_go(gap);
        most_ = in_use_;
    }

private:
    using Gap = std::pair<int64_t, char*>;

    // A place in the range, in a gap or after all others; null where the range is full.
    char* within(int64_t size) {
        if (!begin_) reserve();
        Gap gap{0, top_};
        if (const auto found = gaps_.lower_bound({size, nullptr}); found != gaps_.end()) forget(gap = *found);
        else if (!gaps_.empty()) forget(gap = last_gap());
        if (gap.first < size && !grow(gap.second + size)) {
            if (gap.first) leave(gap);
            return nullptr;
        }
        if (gap.first > size) leave({gap.first - size, gap.second + size});
        in_use_ += size, most_ = std::max(most_, in_use_);
        return gap.second;
    }

    // The gap at the end of the range, or one of no size.
    Gap last_gap() const {
        const auto last = std::prev(places_.end());
        return last->first + last->second == top_ ? Gap{last->second, last->first} : Gap{0, top_};
    }

    // Makes the range end there, if it can. Gaps, none of which was large enough, then make room in memory.
    bool grow(char* end) {
        if (end > limit_ || mprotect(top_, size_t(end - top_), PROT_READ | PROT_WRITE)) return false;
        madvise(top_, size_t(end - top_), MADV_HUGEPAGE);
        top_ = end;
        int64_t over = top_ - begin_ - (most_ + most_ / kSlack);
        for (auto gap = gaps_.rbegin(); gap != gaps_.rend() && over > 0; over -= (gap++)->first) let_go(*gap);
        return true;
    }

    // Addresses for twice the machine's memory, or as many as there may be; they take none of it yet.
    void reserve() {
        int64_t size = 2 * int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
        for (; size >= kLargePage; size /= 2) {
            void* raw = mmap(nullptr, size_t(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (raw == MAP_FAILED) continue;
            begin_ = top_ = large_page(raw), limit_ = static_cast<char*>(raw) + size;
            return;
        }
        throw std::bad_alloc();
    }

    void leave(Gap gap) {
        gaps_.insert(gap);
        places_[gap.second] = gap.first;
    }

    void forget(Gap gap) {
        if (!gap.first) return;
        gaps_.erase(gap);
        places_.erase(gap.second);
    }

    // The memory of a gap; its addresses stay.
    static void let_go(Gap gap) { madvise(gap.second, size_t(gap.first), MADV_DONTNEED); }

    // A gap with those beside it.
    Gap joined(Gap gap) {
        const auto after = places_.find(gap.second + gap.first);
        if (after != places_.end()) {
            const Gap other{after->second, after->first};
            forget(other);
            gap.first += other.first;
        }
        const auto next = places_.lower_bound(gap.second);
        if (next == places_.begin()) return gap;
        const Gap other{std::prev(next)->second, std::prev(next)->first};
        if (other.second + other.first != gap.second) return gap;
        forget(other);
        return {other.first + gap.first, other.second};
    }

    static char* large_page(void* at) {
        return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) + kLargePage - 1) & ~uintptr_t(kLargePage - 1));
    }

    // Aligned to large pages: what is too much at either end is given back at once.
    static char* map(int64_t size) {
        void* raw = mmap(nullptr, size_t(size + kLargePage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) throw std::bad_alloc();
        char *begin = static_cast<char*>(raw), *first = large_page(raw);
        if (first > begin) munmap(begin, size_t(first - begin));
        if (begin + kLargePage > first) munmap(first + size, size_t(begin + kLargePage - first));
        madvise(first, size_t(size), MADV_HUGEPAGE);
        return first;
    }

    static constexpr int64_t kSlack = 8;  // the range may exceed what was in use at once by so large a part

    std::mutex mutex_;
    char *begin_ = nullptr, *top_ = nullptr, *limit_ = nullptr;  // of the range: arrays lie below top_
    std::set<Gap> gaps_;               // by size
    std::map<char*, int64_t> places_;  // the same, by place
    std::map<char*, int64_t> used_;
    int64_t in_use_ = 0, most_ = 0;  // bytes of the range that are handed out, and the most ever
    int keepers_ = 0;
};
