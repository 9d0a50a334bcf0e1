"""Training one model by a protocol: the loop, its augmentations, and its checkpoints."""
