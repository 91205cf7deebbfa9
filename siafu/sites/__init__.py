"""Organisations that train together: what runs at each of them, and what coordinates them.

Reading order: ``holdings`` (what a site has), ``attempt`` (one try of a group to train), ``pieces`` (files over the
wire), ``site`` (what a site answers), ``status``, ``roll`` (who is there, and who goes on), ``followup`` (an attempt as
the coordinator sees it), ``federation`` (the coordinator), ``trial`` (keys, and a federation to try), ``cli``.
"""
