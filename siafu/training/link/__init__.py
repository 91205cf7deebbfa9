"""Tasks on pairs of nodes: negatives, scores over all pairs or sampled ones, what is remembered of pairs."""
