// Threads of a parallel region beside another process that computes: they keep to cores of their own, and give way while they
// wait for each other.
//
// Where another process keeps a core busy, the system tends to put two threads of a team onto one of the other cores, and to
// leave the busy process alone on its core. So a thread that finds another one of its team on its core moves to the core that has
// none. Then that thread gets half a core or so, and takes fewer chunks than the others.
//
// At the end of a region all wait for the thread that has lost its core. OpenMP's own barriers spin without giving way, then
// sleep. So threads wait here first: they spin, then yield, and reach OpenMP's barrier together.
#pragma once

#include <omp.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr int kCoresKnown = 64;     // threads of a team that keep to cores of their own
constexpr int64_t kPauses = 2000;   // rounds of some nanoseconds before the first yield
constexpr int64_t kYields = 20000;  // before a thread sleeps between looks: tens of milliseconds

struct alignas(64) Team {
    std::atomic<int64_t> arrived{0};
    std::atomic<int> core[kCoresKnown] = {};  // of each thread, counted from 1; 0 is not known
};

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// One thread of the team, made at the beginning of a parallel region and destroyed at its end, where it waits for the others.
class Member {
public:
    explicit Member(Team& team) : team_(team), threads_(omp_get_num_threads()) {
        if (threads_ > 1 && threads_ <= kCoresKnown) keep_apart(omp_get_thread_num());
    }
    Member(const Member&) = delete;
    ~Member() { wait(); }

    // Returns when each thread has called this as often as this one.
    void wait() {
        if (threads_ == 1) return;
        all_ += threads_;
        team_.arrived.fetch_add(1, std::memory_order_acq_rel);
        for (int64_t looks = 0; team_.arrived.load(std::memory_order_acquire) < all_; ++looks) {
            if (looks < kPauses) pause();
            else if (looks < kPauses + kYields) sched_yield();
            else sleep();
        }
    }

private:
    // Moves to a core that no other thread is on, if one is on this core, and threads are to use all cores that they may.
    void keep_apart(int thread) {
#if defined(__linux__)
        const int here = sched_getcpu() + 1;
        bool shared = false;
        for (int t = 0; t < threads_; ++t) shared |= t != thread && team_.core[t].load(std::memory_order_relaxed) == here;
        if (shared) move_away();
        team_.core[thread].store(shared ? sched_getcpu() + 1 : here, std::memory_order_relaxed);
#endif
    }

#if defined(__linux__)
    void move_away() const {
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) > threads_) return;
        cpu_set_t left = allowed;
        for (int t = 0; t < threads_; ++t)
            if (const int core = team_.core[t].load(std::memory_order_relaxed)) CPU_CLR(size_t(core - 1), &left);
        if (CPU_COUNT(&left) == 0 || sched_setaffinity(0, sizeof left, &left)) return;
        sched_setaffinity(0, sizeof allowed, &allowed);  // where it goes later is left to the system
    }
#endif

    static void sleep() {
        const timespec a_while{0, 100'000};
        nanosleep(&a_while, nullptr);
    }

    Team& team_;
    const int threads_;
    int64_t all_ = 0;
};

}  // namespace
