"""SeedPrint after training: the initialization found in what became of it."""
