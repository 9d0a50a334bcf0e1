"""Replace the convolutions of any network by scaled convolutions with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar, cast

from torch import nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_positive
from equiscale.layers.scaled.conv import SConv2d
from equiscale.layers.scaled.geometry import Padding, Pair
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.method import Method
from equiscale.layers.scaled.pooling import PoolMode, check_pool_mode

SMALLEST_KERNEL = 3
"""Smaller kernels have no shape to enlarge."""

LayerChoice = Iterable[str] | Callable[[str, nn.Conv2d], bool]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ConversionError(OptionError):
    """A layer cannot be replaced by a scaled convolution; the message names it."""


def convert(
    model: ModuleT,
    pool: PoolMode = "pixel",
    *,
    num_scales: int | None = None,
    layers: LayerChoice | None = None,
    interpolation: Interpolation = "bicubic",
    method: Method = "auto",
    inplace: bool = False,
) -> ModuleT:
    """Replace `nn.Conv2d` layers by `SConv2d` with the same arguments and weights.

    Each layer then applies its kernel at `num_scales` sizes and keeps the strongest response.
    Outputs keep their sizes. With `num_scales=1` the network computes what it computed before. With
    more, outputs change: fine-tune after converting, and let batch normalisation see data again.

    Args:
        model: Any network. A layer that is used twice stays one layer.
        pool: How each layer pools over scale, see `scale_pool`; not `"global"`.
        num_scales: Number of kernel sizes k, k + 2, … of each layer. Required: time and memory grow
            with it. 4 is a good start.
        layers: Which layers: names or patterns such as `"layer1.*"`, or a function of name and
            layer. None takes every `nn.Conv2d` with a kernel of at least 3×3.
        interpolation: How kernels are resampled.
        method: How the layers compute, see `scaled_conv2d`.
        inplace: Change the model itself instead of a copy. Parameters keep their names either way,
            so a `state_dict` fits before and after.

    Raises:
        ConversionError: A chosen layer is dilated, has a kernel that is not square, or is not a
            plain `nn.Conv2d`; or no layer was chosen.
        OptionError: `num_scales` is missing, or an option does not exist.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 4, 1))
        >>> scaled = convert(model, num_scales=3)
        >>> scaled[0].kernel_sizes
        (3, 5, 7)
        >>> scaled(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 4, 16, 16])
    """
    check_pool_mode(pool)
    if pool == "global":
        raise OptionError("pool='global' leaves no map for the next layer; use another pool")
    if num_scales is None:
        raise OptionError(
            "convert() needs num_scales, the number of kernel sizes k, k + 2, … of each layer: "
            "time and memory grow with it, and all sizes that fit a 224×224 image would be 111 "
            "for a 3×3 kernel; start with num_scales=4"
        )
    check_positive(num_scales=num_scales)
    chosen = _choose(model, layers)

    def replace(conv: nn.Conv2d) -> SConv2d:
        scaled = SConv2d(
            conv.in_channels,
            conv.out_channels,
            cast(Pair, conv.kernel_size),
            cast(Pair, conv.stride),
            cast("Padding | Pair", conv.padding),
            groups=conv.groups,
            bias=conv.bias is not None,
            padding_mode=conv.padding_mode,
            device="meta",  # the parameters of the layer replace its own: nothing is drawn
            pool=pool,
            num_scales=num_scales,
            interpolation=interpolation,
            method=method,
        )
        scaled.weight = cast(nn.Parameter, conv.weight)
        scaled.bias = cast(nn.Parameter | None, conv.bias)
        return scaled.train(conv.training)

    for name in chosen:
        _check(name, cast(nn.Conv2d, model.get_submodule(name)))
    target = model if inplace else copy.deepcopy(model)
    found = [cast(nn.Conv2d, target.get_submodule(name)) for name in chosen]
    return _replace(target, {conv: replace(conv) for conv in found})


def _choose(model: nn.Module, layers: LayerChoice | None) -> list[str]:
    """Return the names of the layers to replace; a layer with several names counts once."""
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


def _check(name: str, conv: nn.Conv2d) -> None:
    """Raise `ConversionError` with the name of a layer that cannot be converted."""
    problems = {
        f"{type(conv).__name__} is not a plain nn.Conv2d": type(conv) is not nn.Conv2d,
        "it carries hooks, which would be lost": conv._forward_hooks or conv._forward_pre_hooks,
        "its kernel is not square": conv.kernel_size[0] != conv.kernel_size[1],
        f"it is dilated by {conv.dilation}": conv.dilation != (1, 1),
    }
    for problem, applies in problems.items():
        if applies:
            raise ConversionError(
                f"layer {name or 'the model'!r}, {conv}, cannot be converted: {problem}; name the "
                "layers to convert with layers=[…], or choose them with layers=lambda name, conv: …"
            )


def _replace(model: ModuleT, replacements: dict[nn.Conv2d, SConv2d]) -> ModuleT:
    """Put the new layers in place of the old ones."""
    if isinstance(model, nn.Conv2d):
        return cast(ModuleT, replacements[model])
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # children() would skip a second use
            if isinstance(child, nn.Conv2d) and child in replacements:
                setattr(parent, name, replacements[child])
    return model
