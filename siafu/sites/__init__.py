"""Federated training among organisations.

Each organisation runs ``siafu site serve``; ``siafu federate`` coordinates. An *attempt* is one try of a fixed group of
sites to train; when the group changes, it ends and another one begins. Reading order:

- commands: ``cli``; keys, certificates and trial federations: ``provisioning``;
- at a site: ``site_data`` (its graph), ``credentials`` (its key and trusted peers), ``service`` (the calls that it
  answers), ``site_attempt`` (one attempt, as a rank of the group), ``status``;
- at the coordinator: ``coordinator`` (:func:`~siafu.sites.coordinator.federate`), ``membership`` (checks that sites fit
  together), ``coordinator_attempt`` (one attempt, as the coordinator drives it);
- at both: ``file_transfer``, ``untrusted_text``.
"""
