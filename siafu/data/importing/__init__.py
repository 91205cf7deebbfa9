"""Import tables into a store, a batch at a time: memory does not grow with edges or features.

Reading order: ``graph`` (the steps of an import), ``dynamic`` (the same for events), ``inputs`` (the user's files),
``tables`` and ``numpy_files`` (reading files in batches), ``limits`` and ``page_headers`` (protection against files
that unpack to absurd sizes), ``text_ids`` and ``node_ids`` (from the user's ids to rows), ``edges``, ``events``,
``features``, ``labels``, ``nodes``, ``node_split``, ``ogb`` (the meaning of columns), ``node_columns`` and
``edge_columns`` (columns of any kind), ``plausibility`` (whether a file is what it was given as), ``node_masks`` (the
split), ``column_roles`` (a report of what was read as what), ``external_sort``, ``edge_sort`` and ``event_sort``
(sorting edges and events on disk), ``arrow_tables`` (tables in memory).
"""

from siafu.data.importing.dynamic import import_events
from siafu.data.importing.graph import import_graph
from siafu.data.importing.limits import Limits

__all__ = ["Limits", "import_events", "import_graph"]
