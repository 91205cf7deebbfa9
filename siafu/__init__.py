"""Train graph neural networks on ordinary CPU machines."""
__version__ = "0.1.0"
