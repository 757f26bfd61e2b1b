"""Training data: documents encoded once into memory-mapped shards, read back as shuffled windows."""
