"""Sampled minibatches, several of them merged into one exchange."""
