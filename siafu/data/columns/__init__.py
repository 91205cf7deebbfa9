"""Columns of a table as features: kinds found from the data or said in a schema, parsing, encoding.

Reading order: ``schema`` (the user's word on each column), ``parsing`` (from values as written to typed values),
``kinds`` (the kind of each column, found from its values), ``encoders`` (one class for each kind, with statistics of
training nodes), ``encode`` (all columns of a graph).
"""

from siafu.data.columns.encode import Encoder, encode_columns, encode_graph, fit_encoder
from siafu.data.columns.schema import (
    ColumnSchema,
    EdgeSchema,
    NodeSchema,
    TableSchema,
    read_schema,
    schema_to_toml,
)

__all__ = [
    "ColumnSchema",
    "EdgeSchema",
    "Encoder",
    "NodeSchema",
    "TableSchema",
    "encode_columns",
    "encode_graph",
    "fit_encoder",
    "read_schema",
    "schema_to_toml",
]
