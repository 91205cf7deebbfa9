#include "ascending.hpp"

#include <bit>

namespace {

int64_t bytes_of(uint64_t gap) { return (std::bit_width(gap | 1) + 6) / 7; }

// Where the bytes of a gap end; null where they would end behind `end`.
uint8_t* put(uint64_t gap, uint8_t* out, const uint8_t* end) {
    for (; gap >= 128; gap >>= 7) {
        if (out == end) return nullptr;
        *out++ = uint8_t(gap | 128);
    }
    if (out == end) return nullptr;
    *out++ = uint8_t(gap);
    return out;
}

template <typename Value>
int64_t count_bytes(int64_t count, const Value& value) {
    int64_t total = 0, before = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t now = value(i);
        total += bytes_of(uint64_t(now) - uint64_t(before));
        before = now;
    }
    return total;
}

template <typename Value>
bool pack(int64_t count, const Value& value, uint8_t* out, int64_t num_bytes) {
    const uint8_t* const end = out + num_bytes;
    int64_t before = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t now = value(i);
        out = put(uint64_t(now) - uint64_t(before), out, end);
        if (!out) return false;
        before = now;
    }
    return out == end;
}

// Calls visit(i, number) for each; whether the bytes hold count numbers, and no more, all below `limit`.
template <typename Visit>
bool unpack(const uint8_t* data, int64_t num_bytes, int64_t limit, int64_t count, const Visit& visit) {
    const uint8_t* const end = data + num_bytes;
    uint64_t now = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint64_t gap = 0;
        int shift = 0;
        do {
            if (data == end || shift > 56) return false;  // 63 bits are more than any pair has
            gap |= uint64_t(*data & 127) << shift;
            shift += 7;
        } while (*data++ & 128);
        now += gap;
        if (gap >= uint64_t(limit) || now >= uint64_t(limit)) return false;
        visit(i, int64_t(now));
    }
    return data == end;
}

}  // namespace

int64_t ascending_bytes(const int64_t* values, int64_t count) {
    return count_bytes(count, [&](int64_t i) { return values[i]; });
}

bool pack_ascending(const int64_t* values, int64_t count, uint8_t* out, int64_t num_bytes) {
    return pack(count, [&](int64_t i) { return values[i]; }, out, num_bytes);
}

bool unpack_ascending(const uint8_t* data, int64_t num_bytes, int64_t limit, int64_t* values, int64_t count) {
    return unpack(data, num_bytes, limit, count, [&](int64_t i, int64_t value) { values[i] = value; });
}

int64_t pairs_bytes(const int32_t* row, const int32_t* col, int64_t count, int64_t num_cols) {
    return count_bytes(count, [&](int64_t i) { return row[i] * num_cols + col[i]; });
}

bool pack_pairs(const int32_t* row, const int32_t* col, int64_t count, int64_t num_cols, uint8_t* out, int64_t num_bytes) {
    return pack(count, [&](int64_t i) { return row[i] * num_cols + col[i]; }, out, num_bytes);
}

bool unpack_pairs(const uint8_t* data, int64_t num_bytes, int64_t num_rows, int64_t num_cols, int32_t* row, int32_t* col,
                  int64_t count) {
    int64_t at = 0, begin = 0;  // the row, and the number of its first pair
    return unpack(data, num_bytes, num_rows * num_cols, count, [&](int64_t i, int64_t value) {
        if (value - begin >= num_cols) {
            at = value - begin < 2 * num_cols ? at + 1 : value / num_cols;
            begin = at * num_cols;
        }
        row[i] = int32_t(at);
        col[i] = int32_t(value - begin);
    });
}
