"""Link prediction: negatives, scores over all pairs or sampled ones, and the memory of pairs."""
