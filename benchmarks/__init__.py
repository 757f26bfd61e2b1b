"""Speed as ratios against a named peer in one run, and as a share of the machine's measured matmul rate."""
