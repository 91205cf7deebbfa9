"""Transport among sites: organisations are ranks of one group, connected by gRPC over mutually authenticated TLS.

Reading order: ``config`` (settings of a site and of a federation), ``schema`` (messages of the coordinator), ``rpc``
(client and server; the only file that names gRPC), ``frame_stream`` (tensors as messages), ``site_inbox`` (limits on
received messages), ``policy`` (the data that may leave), ``ledger`` (the audit log of data that left), ``egress`` (the
guard that every sent message passes), ``site_transport`` (the transport of a Comm). Certificates are in ``siafu.wire``.
The service and the coordinator are in ``siafu.sites``.
"""
