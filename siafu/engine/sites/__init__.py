"""Sites: organisations that keep their nodes to themselves, as ranks of one group over mutually authenticated TLS.

Reading order: ``config`` (what a site and a federation say of themselves), ``certificates`` (keys and who is who),
``schema`` (the messages), ``rpc`` (the one file that names gRPC), ``frames`` (a tensor as messages), ``policy``,
``ledger`` and ``guard`` (what may leave, what has left), ``transport`` (what carries a Comm).
"""
