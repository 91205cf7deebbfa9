"""The one wire protocol of ranks, workers and sites: frames, handshake, TLS, certificates, heartbeats.

It carries bytes and knows no tensor, no task and no training. ``frames``, ``handshake``, ``tls`` and ``stream`` need
the standard library and xxhash alone, so that a serverless function can carry them.
"""
