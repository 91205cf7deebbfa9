"""The wire protocol that ranks, workers and sites share: frames, handshake, TLS, certificates, heartbeats.

It carries bytes and knows no tensor, no task and no training. ``frames``, ``handshake``, ``tls`` and ``socket_stream``
need only the standard library and xxhash, so that a serverless function can include them.
"""
