"""Read other people's tables into a store, a batch at a time: memory does not grow with edges or features.

Reading order: ``graph`` (what is done in which order), ``dynamic`` (the same for events), ``inputs`` (which file
holds what), ``tables`` and ``arrays`` (how files are read), ``limits`` and ``page_headers`` (how much they may claim,
and do), ``id_text`` and ``ids`` (from the user's ids to rows), ``edges``, ``events``, ``features``, ``labels``,
``split``, ``ogb`` (what they mean), ``columns`` (what was read as what), ``spool``, ``edge_spool`` and
``event_spool`` (how edges and events are sorted on disk).
"""

from siafu.data.importing.dynamic import import_events
from siafu.data.importing.graph import import_graph
from siafu.data.importing.limits import Limits

__all__ = ["Limits", "import_events", "import_graph"]
