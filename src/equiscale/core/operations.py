"""The paper's formulas for the operations of a layer, per pair of channels."""

from __future__ import annotations


def standard_operations(input_size: int, kernel_size: int) -> int:
    """Return `2 k² (n − k + 1)²`: a valid convolution of an n×n input with a k×k kernel.

    Examples:
        >>> standard_operations(64, 7)
        329672
    """
    return 2 * kernel_size**2 * (input_size - kernel_size + 1) ** 2


def scaled_operations(input_size: int, kernel_size: int) -> int:
    """Return the sum of `standard_operations` over the kernel sizes k, k + 2, … up to n.

    Examples:
        >>> scaled_operations(64, 7)
        38418968
    """
    sizes = range(kernel_size, input_size + 1, 2)
    return sum(standard_operations(input_size, size) for size in sizes)
