// The different rows of a table.
#pragma once

#include <cstdint>

// Numbers the different rows by where they occur first; rows are equal if all their bits are. x: (num_rows, width),
// hash: (num_rows) room, slot: (num_slots) room, a power of two above num_rows, group: (num_rows) the number of each row,
// first: (num_rows) of which the first are the rows that occur first. Returns how many rows are different.
int64_t distinct_rows(const float* x, int64_t num_rows, int64_t width, uint64_t* hash, int32_t* slot, int64_t num_slots,
                      int32_t* group, int32_t* first);
