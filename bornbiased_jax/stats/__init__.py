"""Statistics that every room uses: tails in log space, ranks, rank correlations, permutations, intervals."""
