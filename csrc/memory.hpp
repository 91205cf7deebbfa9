// Large arrays that are used again. A fresh array of 100 MB costs 25,000 page faults in small pages, which takes longer than
// computing what goes into it; one that is handed out again costs none.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
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

// Arrays in large pages. While somebody wants them kept they lie side by side in one range of addresses: an array takes the first gap
// that it fits into, and one that is given back leaves a gap, which becomes one with those beside it. So arrays of all sizes share
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
        leave(data, size);
        if (!keepers_) let_all_go();
    }

    // Has arrays kept until it is told otherwise as often; whether that makes sense.
    bool keep(bool on) {
        const std::lock_guard lock(mutex_);
        if (!on && !keepers_) return false;
        keepers_ += on ? 1 : -1;
        if (keepers_) return true;
        let_all_go();
        most_ = in_use_;
        return true;
    }

private:
    struct Gap {
        int64_t size, here;  // bytes, and how many of them may be in memory
    };

    // A place in the range, in a gap or after all others; null where the range is full.
    char* within(int64_t size) {
        if (!begin_ && !reserve()) return nullptr;
        auto found = std::find_if(gaps_.begin(), gaps_.end(), [size](const auto& each) { return each.second.size >= size; });
        if (found == gaps_.end()) {
            const bool at_end = !gaps_.empty() && std::prev(found)->first + std::prev(found)->second.size == top_;
            char* data = at_end ? std::prev(found)->first : top_;
            if (!grow(data + size)) return nullptr;
            found = at_end ? std::prev(found) : gaps_.emplace(data, Gap{}).first;
            found->second.size = size;
        }
        const auto [data, gap] = *found;
        gaps_.erase(found);
        const Gap rest{gap.size - size, std::min(gap.here, gap.size - size)};
        if (rest.size) gaps_[data + size] = rest;
        waiting_ += rest.here - gap.here;
        in_use_ += size, most_ = std::max(most_, in_use_);
        make_room();
        return data;
    }

    // Gaps, the largest first, give back what is too much.
    void make_room() {
        const auto more = [](const auto& a, const auto& b) { return a.second.here < b.second.here; };
        while (waiting_ && in_use_ + waiting_ > most_ + most_ / kSlack) let_go(*std::max_element(gaps_.begin(), gaps_.end(), more));
    }

    // Makes the range end there, if it can.
    bool grow(char* end) {
        if (end > limit_ || mprotect(top_, size_t(end - top_), PROT_READ | PROT_WRITE)) return false;
        madvise(top_, size_t(end - top_), MADV_HUGEPAGE);
        top_ = end;
        return true;
    }

    // Addresses for twice the machine's memory, or half of those that the process may have; they take no memory yet.
    bool reserve() {
        int64_t size = 2 * int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
        rlimit most{};
        if (!getrlimit(RLIMIT_AS, &most) && most.rlim_cur != RLIM_INFINITY) size = std::min(size, int64_t(most.rlim_cur / 2));
        const auto mapped = [&] { return mmap(nullptr, size_t(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
        void* raw = mapped();
        for (; raw == MAP_FAILED && size > kLargePage; raw = mapped()) size /= 2;
        if (raw == MAP_FAILED) return false;
        begin_ = top_ = large_page(raw), limit_ = static_cast<char*>(raw) + size;
        return true;
    }

    // Makes a gap, one with those beside it.
    void leave(char* data, int64_t size) {
        waiting_ += size;
        auto gap = gaps_.emplace(data, Gap{size, size}).first;
        if (const auto next = std::next(gap); next != gaps_.end() && data + size == next->first) join(gap, next);
        if (gap == gaps_.begin()) return;
        if (const auto before = std::prev(gap); before->first + before->second.size == data) join(before, gap);
    }

    void join(std::map<char*, Gap>::iterator one, std::map<char*, Gap>::iterator next) {
        one->second.size += next->second.size, one->second.here += next->second.here;
        gaps_.erase(next);
    }

    // The memory of a gap; its addresses stay.
    void let_go(std::pair<char* const, Gap>& each) {
        auto& [data, gap] = each;
        madvise(data, size_t(gap.size), MADV_DONTNEED);
        waiting_ -= gap.here, gap.here = 0;
    }

    void let_all_go() {
        for (auto& each : gaps_)
            if (each.second.here) let_go(each);
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

    static constexpr int64_t kSlack = 8;  // what is there may exceed what was in use at once by so large a part

    std::mutex mutex_;
    char *begin_ = nullptr, *top_ = nullptr, *limit_ = nullptr;  // of the range: arrays lie below top_
    std::map<char*, Gap> gaps_;                                  // by where they begin
    std::map<char*, int64_t> used_;
    int64_t in_use_ = 0, most_ = 0, waiting_ = 0;  // bytes of the range that are handed out, the most ever, those of gaps that may be here
    int keepers_ = 0;
};
