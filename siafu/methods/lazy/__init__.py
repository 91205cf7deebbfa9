"""Lazy message passing: one exchange of rows a layer, not one an epoch.

After RETEXO (https://arxiv.org/abs/2302.13053). ``config`` has the settings, ``stage`` what a recipe is made of,
``reading`` what a stage reads and how that is exchanged, ``updates`` how weights are averaged, ``trainer`` trains;
``frugal`` is a recipe of its own, of ``ridge``, ``hops``, ``smooth`` and ``refit``. Clients that
come and go: ``clients`` and ``frugal_clients``, with what they know of each other, ``known``, and what they do apart,
``local`` and ``stacked``.
"""
