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

// Arrays in large pages. While somebody wants them kept, one that is given back waits for the next of about its size;
// else it is freed. Where sizes come and go, in many a size (`loose`), one that waits is cut for a smaller one, neighbours that
// wait become one, and those that wait make room for one that finds none: what is there then is never more than what was in use
// at once.
class Pool {
public:
    void* take(int64_t num_bytes) {
        const int64_t size = (num_bytes + kPage - 1) / kPage * kPage;
        const std::lock_guard lock(mutex_);
        const auto found = free_.lower_bound({size, nullptr});
        const bool fits = found != free_.end() && (loose_ || found->first <= size + size / 4);
        auto [got, data] = fits ? *found : Piece{size, nullptr};
        if (fits) forget(*found);
        if (fits && loose_ && got > size) wait({got - size, data + size}), got = size;
        in_use_ += got, most_ = std::max(most_, in_use_);
        for (int64_t over; loose_ && !free_.empty() && (over = in_use_ + waiting_ - most_) > 0;)
            let_go(*free_.rbegin(), std::min(over, free_.rbegin()->first));
        if (!data) data = map(size);
        used_[data] = got;
        return data;
    }

    void give_back(void* given) {
        const std::lock_guard lock(mutex_);
        const auto found = used_.find(static_cast<char*>(given));
        const auto [data, size] = *found;
        used_.erase(found);
        in_use_ -= size;
        if (!keepers_) munmap(data, size_t(size));
        else wait(loose_ ? joined({size, data}) : Piece{size, data});
    }

    void keep(bool on, bool loose) {
        const std::lock_guard lock(mutex_);
        keepers_ += on ? 1 : -1;
        if (loose) loose_ += on ? 1 : -1;
        if (keepers_) return;
        while (!free_.empty()) let_go(*free_.begin(), free_.begin()->first);
        most_ = in_use_;
    }

private:
    using Piece = std::pair<int64_t, char*>;

    void wait(Piece piece) {
        free_.insert(piece);
        places_[piece.second] = piece.first;
        waiting_ += piece.first;
    }

    void forget(Piece piece) {
        free_.erase(piece);
        places_.erase(piece.second);
        waiting_ -= piece.first;
    }

    // Lets go of so much of a piece that waits, at its end.
    void let_go(Piece piece, int64_t size) {
        forget(piece);
        munmap(piece.second + piece.first - size, size_t(size));
        if (piece.first > size) wait({piece.first - size, piece.second});
    }

    // A piece with those beside it that wait.
    Piece joined(Piece piece) {
        const auto after = places_.find(piece.second + piece.first);
        if (after != places_.end()) {
            const Piece other{after->second, after->first};
            forget(other);
            piece.first += other.first;
        }
        const auto next = places_.lower_bound(piece.second);
        if (next == places_.begin()) return piece;
        const Piece other{std::prev(next)->second, std::prev(next)->first};
        if (other.second + other.first != piece.second) return piece;
        forget(other);
        return {other.first + piece.first, other.second};
    }

    // Aligned to large pages: what is too much at either end is given back at once.
    static char* map(int64_t size) {
        void* raw = mmap(nullptr, size_t(size + kLargePage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) throw std::bad_alloc();
        const uintptr_t begin = reinterpret_cast<uintptr_t>(raw);
        const uintptr_t first = (begin + kLargePage - 1) & ~uintptr_t(kLargePage - 1);
        if (first > begin) munmap(raw, first - begin);
        if (begin + kLargePage > first) munmap(reinterpret_cast<void*>(first + size), begin + kLargePage - first);
        madvise(reinterpret_cast<void*>(first), size_t(size), MADV_HUGEPAGE);
        return reinterpret_cast<char*>(first);
    }

    std::mutex mutex_;
    std::set<Piece> free_;             // those that wait, by size
    std::map<char*, int64_t> places_;  // the same, by place
    std::map<char*, int64_t> used_;
    int64_t in_use_ = 0, waiting_ = 0, most_ = 0;  // bytes handed out, those that wait, and the most ever handed out
    int keepers_ = 0, loose_ = 0;
};
