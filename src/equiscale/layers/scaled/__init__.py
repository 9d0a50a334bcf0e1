"""The scaled convolution of the paper: one learned kernel at every size, then pooled over scale."""
