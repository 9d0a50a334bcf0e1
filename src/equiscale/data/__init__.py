"""Dataset files: their format, the catalog of the known ones, and loading them for training."""
