"""The training methods: a folder each. ``METHODS`` names them."""
