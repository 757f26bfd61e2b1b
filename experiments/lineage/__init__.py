"""SeedPrint at birth: calibration, published tests, pairs of real checkpoints."""
