// Ascending numbers and pairs as bytes: each is kept as its distance from the one before, seven bits a byte, the lowest first; the
// top bit says that more follow. Pairs are numbers row * num_cols + col.
#pragma once

#include <cstdint>

// The bytes that ascending numbers, none negative, take.
int64_t ascending_bytes(const int64_t* values, int64_t count);
// Whether they take just as many bytes as there is room for.
bool pack_ascending(const int64_t* values, int64_t count, uint8_t* out, int64_t num_bytes);

// Fills count numbers; whether the bytes hold that many, and no more, all below `limit`.
bool unpack_ascending(const uint8_t* data, int64_t num_bytes, int64_t limit, int64_t* values, int64_t count);

// The same of pairs that ascend by row and then by column.
int64_t pairs_bytes(const int32_t* row, const int32_t* col, int64_t count, int64_t num_cols);
bool pack_pairs(const int32_t* row, const int32_t* col, int64_t count, int64_t num_cols, uint8_t* out, int64_t num_bytes);
bool unpack_pairs(const uint8_t* data, int64_t num_bytes, int64_t num_rows, int64_t num_cols, int32_t* row, int32_t* col,
                  int64_t count);
