"""The scaled convolution in the frequency domain, exact and fast."""
