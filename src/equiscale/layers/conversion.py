"""Replace the convolutions of any network by scaled ones, weights kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar, cast

from torch import nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_positive
from equiscale.layers.scaled.conv import SConv2d
from equiscale.layers.scaled.geometry import Padding
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.method import Method
from equiscale.layers.scaled.pooling import PoolMode, check_pool_mode

SMALLEST_KERNEL = 3
"""Smaller kernels have no shape that could be enlarged."""

LayerChoice = Iterable[str] | Callable[[str, nn.Conv2d], bool]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ConversionError(OptionError):
    """A layer cannot be replaced by a scaled convolution; the message names it."""


def convert(
    model: ModuleT,
    pool: PoolMode = "pixel",
    *,
    layers: LayerChoice | None = None,
    num_scales: int | None = None,
    interpolation: Interpolation = "bicubic",
    method: Method = "auto",
    inplace: bool = False,
) -> ModuleT:
    """Replace `nn.Conv2d` layers by `SConv2d` with the same weights, shapes and output sizes.

    Each layer then applies its kernel at every size that fits its input and keeps the strongest
    response. With `num_scales=1` the network computes what it computed before. With more, outputs
    change: train or fine-tune after converting, and let batch normalisation see data again.

    `padding=0` becomes `"valid"`, padding by half an odd kernel becomes `"same"`, so that every
    output has the size it had; strides, groups and padding modes are kept.

    Args:
        model: Any network. Layers that occur twice stay one layer.
        pool: How each layer pools over scale, see `scale_pool`; not `"global"`.
        layers: Which layers: names or patterns such as `"layer1.*"`, or a function of name and
            layer. None takes every `nn.Conv2d` with a kernel of at least 3×3.
        num_scales: Number of kernel sizes k, k + 2, … of each layer. None takes as many as fit the
            layer's input.
        interpolation: How kernels are resampled.
        method: How it is computed, see `scaled_conv2d`.
        inplace: Change the model itself instead of a copy. Either way its parameters keep their
            names, so that `state_dict` fits before and after.

    Raises:
        ConversionError: A chosen layer is dilated, has a kernel that is not square, another
            padding, or is not a plain `nn.Conv2d`; or no layer was chosen.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 4, 1))
        >>> convert(model)
        Sequential(
          (0): SConv2d(3, 8, kernel_size=3, stride=(2, 2), padding='same', pool='pixel')
          (1): Conv2d(8, 4, kernel_size=(1, 1), stride=(1, 1))
        )
        >>> convert(model)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 4, 16, 16])
    """
    check_pool_mode(pool)
    if pool == "global":
        raise OptionError("pool='global' leaves no map for the next layer; convert by another pool")
    if num_scales is not None:
        check_positive(num_scales=num_scales)
    chosen = _choose(model, layers)

    def replace(name: str, conv: nn.Conv2d) -> SConv2d:
        size, padding = _check(name, conv)
        sizes = None if num_scales is None else range(size, size + 2 * num_scales, 2)
        scaled = SConv2d(
            conv.in_channels,
            conv.out_channels,
            size,
            kernel_sizes=sizes,
            stride=cast(tuple[int, int], conv.stride),
            padding=padding,
            padding_mode=conv.padding_mode if padding == "same" else "zeros",
            groups=conv.groups,
            bias=conv.bias is not None,
            interpolation=interpolation,
            pool=pool,
            method=method,
            device="meta",  # its parameters are those of the layer: nothing is drawn
        )
        scaled.weight = cast(nn.Parameter, conv.weight)
        scaled.bias = cast(nn.Parameter | None, conv.bias)
        return scaled.train(conv.training)

    for name in chosen:
        _check(name, cast(nn.Conv2d, model.get_submodule(name)))
    target = model if inplace else copy.deepcopy(model)
    found = {name: cast(nn.Conv2d, target.get_submodule(name)) for name in chosen}
    return _replace(target, {conv: replace(name, conv) for name, conv in found.items()})


def _choose(model: nn.Module, layers: LayerChoice | None) -> list[str]:
    """Return the names of the layers to replace; each layer once, whatever names it has."""
    convolutions = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    if layers is None:
        names = [n for n, conv in convolutions.items() if min(conv.kernel_size) >= SMALLEST_KERNEL]
    elif callable(layers):
        names = [n for n, conv in convolutions.items() if layers(n, conv)]
    else:
        names = _match([layers] if isinstance(layers, str) else list(layers), list(convolutions))
    if not names:
        known = ", ".join(
            f"{n or 'the model'} {tuple(c.kernel_size)}" for n, c in convolutions.items()
        )
        raise ConversionError(
            f"no layer of {type(model).__name__} was chosen; "
            f"its nn.Conv2d layers: {known or 'none'}"
        )
    return names


def _match(patterns: list[str], names: list[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConversionError(
                f"no nn.Conv2d layer is named {pattern!r}; there are: {', '.join(names) or 'none'}"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _check(name: str, conv: nn.Conv2d) -> tuple[int, Padding]:
    """Return side of the kernel and padding, or raise `ConversionError` with the layer's name."""
    problem = _problem(conv)
    if problem:
        raise ConversionError(
            f"layer {name or 'the model'!r}, {conv}, cannot be converted: {problem}; name the "
            "layers to convert with layers=[…], or choose them with layers=lambda name, conv: …"
        )
    size = conv.kernel_size[0]
    return size, "valid" if _paddings(conv) == (0, 0) else "same"


def _problem(conv: nn.Conv2d) -> str | None:
    """Return why a layer cannot be converted."""
    size = conv.kernel_size[0]
    if type(conv) is not nn.Conv2d:
        return f"{type(conv).__name__} is not a plain nn.Conv2d"
    if conv._forward_hooks or conv._forward_pre_hooks:
        return "it carries hooks, which would be lost"
    if conv.kernel_size != (size, size):
        return "its kernel is not square"
    if conv.dilation != (1, 1):
        return f"it is dilated by {conv.dilation}"
    if _paddings(conv) == (0, 0) or (size % 2 and _paddings(conv) == (size // 2, size // 2)):
        return None
    return f"its padding is {conv.padding}, where a scaled convolution has 0" + (
        f" or {size // 2}" if size % 2 else ""
    )


def _paddings(conv: nn.Conv2d) -> tuple[int, int]:
    """Return the padding down and across in pixels; -1 where its two sides differ."""
    if conv.padding == "valid":
        return 0, 0
    if conv.padding == "same":
        half = [size // 2 if size % 2 else -1 for size in conv.kernel_size]
        return half[0], half[1]
    return cast(tuple[int, int], conv.padding)


def _replace(model: ModuleT, replacements: dict[nn.Conv2d, SConv2d]) -> ModuleT:
    """Put the new layers wherever the old ones are."""
    if isinstance(model, nn.Conv2d):
        return cast(ModuleT, replacements[model])
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # a child may stand there twice
            if isinstance(child, nn.Conv2d) and child in replacements:
                setattr(parent, name, replacements[child])
    return model
