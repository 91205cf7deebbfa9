"""Sites: organisations that keep their nodes to themselves, as ranks of one group over mutually authenticated TLS.

Reading order: ``config`` (settings of a site and of a federation), ``schema`` (messages of the coordinator), ``rpc``
(the one file that names gRPC), ``frames`` (a tensor as messages), ``inbox`` (what is taken in), ``policy``, ``ledger``
and ``guard`` (what may leave, what has left), ``transport`` (what carries a Comm). Keys are in ``siafu.wire``.
"""
