"""Correct-and-smooth (https://arxiv.org/abs/2010.13993): a step after training that reads the training labels.

``config`` (settings), ``adjacency`` (the normalised adjacency, on one rank or many), ``propagation`` (the two steps).
"""
