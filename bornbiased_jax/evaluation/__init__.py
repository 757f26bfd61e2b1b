"""Measure one checkpoint: perplexity, n-gram baselines, parity with transformers, generation, the sink report."""
