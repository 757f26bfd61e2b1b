"""SeedPrint at initialization: calibration, published tests, pairs of real checkpoints."""
