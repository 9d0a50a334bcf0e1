"""Layers of other methods, for comparison."""
