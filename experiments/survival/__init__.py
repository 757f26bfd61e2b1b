"""SeedPrint after training: the birth found in what became of it."""
