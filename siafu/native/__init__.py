"""Kernels over rows and CSR arrays: the typed interface of the compiled core. No rank, no file, no clock.

Every kernel takes and returns tensors on the CPU and allocates its own output. A plain torch version of the same name
runs where the core was not compiled (``reference`` and the ``*_reference`` modules). Ids are int32, offsets int64.

Reading order: ``values`` (what kernels take and return), ``core`` (the compiled library), ``memory``, ``structure``
(CSR graphs), ``sparse`` (sums and maxima over neighbours), ``dense_rows``, ``products``, ``sparse_rows``,
``attention``, ``recurrent``, ``adam``, ``sampling``, ``pairs``, ``partition``, ``varint`` and ``splitmix``.
"""

from siafu.native import core
from siafu.native.adam import adam_moments, adam_move
from siafu.native.attention import (
    AttendBackward,
    AttendV2Backward,
    attend,
    attend_backward,
    attend_v2,
    attend_v2_backward,
)
from siafu.native.core import NOT_COMPILED, compiled, instruction_set
from siafu.native.dense_rows import argmax_rows, epilogue, epilogue_backward, gather
from siafu.native.memory import (
    arrays_reused,
    empty_rows,
    empty_steps,
    map_large_arrays,
    prefetch_rows,
    restore_readahead,
)
from siafu.native.pairs import count_ranks, distinct_rows, pair_rows, pair_rows_backward, pair_scores
from siafu.native.partition import assign_bytes, assign_parts, count_parts
from siafu.native.products import product, product_backward
from siafu.native.recurrent import lstm, lstm_backward
from siafu.native.sampling import local_rows, sample_and_relabel, sample_edges, scatter_rows, sort_rows_by_id
from siafu.native.sparse import segment_max, segment_max_backward, spmm
from siafu.native.sparse_rows import sparse_product, sparse_product_backward, sparse_sum
from siafu.native.sparse_values import SparseRows
from siafu.native.structure import (
    apply_delta,
    build_csr,
    count_distinct,
    deduplicate,
    edges_not_in,
    first_decrease,
    first_out_of_range,
    first_unsorted_row,
    locality_order,
    mark_columns,
    missing_loops,
    relabel,
    sort_rows,
    split_rows,
    take_rows,
    transpose,
)
from siafu.native.values import (
    MAX_HEADS,
    Attention,
    Csr,
    CsrPair,
    DistinctRows,
    Dropout,
    Epilogue,
    Factors,
    LstmInputs,
    LstmOutputs,
    PartCounts,
    RankCounts,
    RelabelledRows,
    SampledRows,
    Term,
)
from siafu.native.varint import pack_ascending, pack_pairs, unpack_ascending, unpack_pairs

__all__ = [
    "MAX_HEADS",
    "NOT_COMPILED",
    "AttendBackward",
    "AttendV2Backward",
    "Attention",
    "Csr",
    "CsrPair",
    "DistinctRows",
    "Dropout",
    "Epilogue",
    "Factors",
    "LstmInputs",
    "LstmOutputs",
    "PartCounts",
    "RankCounts",
    "RelabelledRows",
    "SampledRows",
    "SparseRows",
    "Term",
    "adam_moments",
    "adam_move",
    "apply_delta",
    "argmax_rows",
    "arrays_reused",
    "assign_bytes",
    "assign_parts",
    "attend",
    "attend_backward",
    "attend_v2",
    "attend_v2_backward",
    "build_csr",
    "compiled",
    "core",
    "count_distinct",
    "count_parts",
    "count_ranks",
    "deduplicate",
    "distinct_rows",
    "edges_not_in",
    "empty_rows",
    "empty_steps",
    "epilogue",
    "epilogue_backward",
    "first_decrease",
    "first_out_of_range",
    "first_unsorted_row",
    "gather",
    "instruction_set",
    "local_rows",
    "locality_order",
    "lstm",
    "lstm_backward",
    "map_large_arrays",
    "mark_columns",
    "missing_loops",
    "pack_ascending",
    "pack_pairs",
    "pair_rows",
    "pair_rows_backward",
    "pair_scores",
    "prefetch_rows",
    "product",
    "product_backward",
    "relabel",
    "restore_readahead",
    "sample_and_relabel",
    "sample_edges",
    "scatter_rows",
    "segment_max",
    "segment_max_backward",
    "sort_rows",
    "sort_rows_by_id",
    "sparse_product",
    "sparse_product_backward",
    "sparse_sum",
    "split_rows",
    "spmm",
    "take_rows",
    "transpose",
    "unpack_ascending",
    "unpack_pairs",
]
