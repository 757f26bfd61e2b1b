"""What two checkpoints share beside their weights: tokens by number or by string, and logits."""
