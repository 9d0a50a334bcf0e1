"""Training: the loop, augmentation and checkpoints."""
