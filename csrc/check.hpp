// Whether arrays that come from outside are what kernels take them for: one pass, by all threads.
#pragma once

#include <cstdint>

// The first place after which a value is smaller; -1 where values never fall.
int64_t first_fall(const int64_t* values, int64_t count);

// The first place of a value that is negative or not below the limit; -1 where there is none.
int64_t first_outside(const int32_t* values, int64_t count, int64_t limit);
int64_t first_outside(const int64_t* values, int64_t count, int64_t limit);

// The first row whose columns do not ascend; -1 where those of all rows do.
int64_t first_unsorted(const int64_t* indptr, const int32_t* indices, int64_t num_rows);
