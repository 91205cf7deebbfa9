"""Launchers of ranks: threads of one process, processes under torch's elastic agent, a user's own launcher, Ray.

A launcher gives each rank a Comm and follows the rank to its end; it knows no training. Reading order: ``local``
(threads), ``elastic`` (``join`` in a rank, ``launch`` in the process that starts ranks), ``recovery`` (restarts after a
loss), ``ray``. They use ``rank_environment`` (rank and rendezvous address from environment variables), ``failures``
(error reports of ranks), ``rank_supervisor`` (follows one group of rank processes), ``memory_monitor`` (memory curves
and OOM kills), ``network_addresses``, ``secret``, and ``die_with_parent`` (no rank outlives its launcher).

Nothing is imported here, since ``elastic`` imports torch's distributed package and ``ray`` imports Ray.
"""
