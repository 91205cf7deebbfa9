"""Search over recipes and models: ``siafu.tune``.

The files in the order of a search: ``problem`` (data, fixed settings and space), ``folder`` (the files of a search),
``loop`` (its trials), ``attempt`` (one of them), ``study`` (sampling and early stopping), ``journal`` (its storage).
``space`` is the table of searched settings, ``space_file`` reads one of the user's own.
"""

from siafu.tuning.search import Search, tune
from siafu.tuning.trial import Trial

__all__ = ["Search", "Trial", "tune"]
