"""What experiments of several chapters compute or train."""
