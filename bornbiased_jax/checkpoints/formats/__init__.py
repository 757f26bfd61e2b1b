"""Formats of stored models, a module each: from a path to a configuration and tensors that are read when asked for."""
