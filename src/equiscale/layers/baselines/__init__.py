"""Layers of other methods that the paper, or this package, compares with."""
