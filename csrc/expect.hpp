// Refuses arguments of a kernel that do not fit each other, before anything is read or written: a ValueError in Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "check.hpp"

struct Expect {
    const char* kernel;

    [[noreturn]] void refuse(const char* what, int64_t found, const std::string& expected) const {
        throw std::invalid_argument(std::string(kernel) + ": " + what + " is " + std::to_string(found) + "; expected " + expected);
    }

    void same(const char* what, int64_t found, int64_t wanted) const {
        if (found != wanted) refuse(what, found, std::to_string(wanted));
    }

    void between(const char* what, int64_t found, int64_t least, int64_t most) const {
        if (found < least || found > most) refuse(what, found, std::to_string(least) + " to " + std::to_string(most));
    }

    // Rows that a kernel works on.
    void span(int64_t first, int64_t end, int64_t num_rows) const {
        between("the end of rows", end, 0, num_rows);
        between("the first of rows", first, 0, end);
    }

    // The offsets of rows that a kernel works on lie within the indices. Offsets between them are trusted.
    void offsets(int64_t first, int64_t last, int64_t num_indices) const {
        between("the last offset", last, 0, num_indices);
        between("the first offset", first, 0, last);
    }

    // Offsets of all rows, from 0 to the number of indices; those between them are trusted. Returns the number of rows.
    int64_t rows_of(const int64_t* indptr, int64_t length, int64_t num_indices) const {
        between("the length of offsets", length, 1, kMost);
        same("the first offset", indptr[0], 0);
        same("the last offset", indptr[length - 1], num_indices);
        return length - 1;
    }

    // Offsets that never fall, from 0 to `total`, each of them looked at.
    void ascending(const char* what, const int64_t* offsets, int64_t length, int64_t total) const {
        between(what, length, 1, kMost);
        same(what, offsets[0], 0);
        const int64_t fall = first_fall(offsets, length);
        if (fall >= 0) refuse(what, offsets[fall + 1], std::to_string(offsets[fall]) + " or more");
        same(what, offsets[length - 1], total);
    }

    // Every number of an array is at least 0 and less than a limit.
    template <typename Index>
    void within(const char* what, const Index* values, int64_t count, int64_t limit) const {
        const int64_t place = first_outside(values, count, limit);
        if (place < 0) return;
        throw std::out_of_range(std::string(kernel) + ": " + what + "[" + std::to_string(place) + "] is " +
                                std::to_string(values[place]) + "; expected 0 to " + std::to_string(limit - 1));
    }

    static constexpr int64_t kMost = int64_t(1) << 46;  // entries of an array: more than any machine has room for
};
