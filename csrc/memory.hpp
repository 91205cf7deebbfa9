// Large arrays that are used again. A fresh array of 100 MB costs 25,000 page faults in small pages, which takes longer than
// computing what goes into it; one that is handed out again costs none.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
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

// Arrays in large pages. While somebody wants them kept, one that is given back waits for the next of about its size;
// else it is freed. Where sizes come and go, in many a size (`loose`), those that wait make room for one that finds none of
// its size: what is there then is never more than what was in use at once.
class Pool {
public:
    void* take(int64_t num_bytes) {
        const int64_t size = (num_bytes + kPage - 1) / kPage * kPage;
        const std::lock_guard lock(mutex_);
        const auto found = free_.lower_bound(size);
        const bool fits = found != free_.end() && found->first <= size + size / (loose_ ? 8 : 4);
        const int64_t got = fits ? found->first : size;
        in_use_ += got, most_ = std::max(most_, in_use_);
        void* data = fits ? found->second : nullptr;
        if (fits) waiting_ -= got, free_.erase(found);
        while (loose_ && !free_.empty() && in_use_ + waiting_ > most_) let_go(std::prev(free_.end()));
        if (!data) data = map(size);
        used_[data] = got;
        return data;
    }

    void give_back(void* data) {
        const std::lock_guard lock(mutex_);
        const auto found = used_.find(data);
        in_use_ -= found->second;
        if (keepers_) free_.emplace(found->second, data), waiting_ += found->second;
        else munmap(data, size_t(found->second));
        used_.erase(found);
    }

    void keep(bool on, bool loose) {
        const std::lock_guard lock(mutex_);
        keepers_ += on ? 1 : -1;
        if (loose) loose_ += on ? 1 : -1;
        if (keepers_) return;
        while (!free_.empty()) let_go(free_.begin());
        most_ = in_use_;
    }

private:
    using Free = std::multimap<int64_t, void*>;

    void let_go(Free::iterator which) {
        munmap(which->second, size_t(which->first));
        waiting_ -= which->first;
        free_.erase(which);
    }

    // Aligned to large pages: what is too much at either end is given back at once.
    static void* map(int64_t size) {
        void* raw = mmap(nullptr, size_t(size + kLargePage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) throw std::bad_alloc();
        const uintptr_t begin = reinterpret_cast<uintptr_t>(raw);
        const uintptr_t first = (begin + kLargePage - 1) & ~uintptr_t(kLargePage - 1);
        if (first > begin) munmap(raw, first - begin);
        if (begin + kLargePage > first) munmap(reinterpret_cast<void*>(first + size), begin + kLargePage - first);
        madvise(reinterpret_cast<void*>(first), size_t(size), MADV_HUGEPAGE);
        return reinterpret_cast<void*>(first);
    }

    std::mutex mutex_;
    Free free_;                      // by size
    std::map<void*, int64_t> used_;  // their sizes
    int64_t in_use_ = 0, waiting_ = 0, most_ = 0;  // bytes handed out, those that wait, and the most ever handed out
    int keepers_ = 0, loose_ = 0;
};
