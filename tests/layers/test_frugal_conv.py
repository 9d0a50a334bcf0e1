from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.layers.conftest import assert_close_with_gradients
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.layers.baselines.frugal_conv import FrugalConv2d, frugal_conv2d
from equiscale.layers.scaled.geometry import Padding

Tensors = tuple[Tensor, Tensor, Tensor]


def tensors(channels: int, dtype: torch.dtype = torch.float64) -> Tensors:
    """Input, weight and bias; behind a global max pooling the gradient counts as sparse."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    return draw(2, channels, 21, 19), draw(5, channels, 3, 3), draw(5)


def peaks(output: Tensor) -> Tensor:
    return output.flatten(2).max(2).values


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("padding", "dilation"), [(0, 1), (2, 1), (1, 2)])
def test_equals_conv2d(sparse: bool, channels: int, padding: int, dilation: int) -> None:
    x, weight, bias = inputs = tensors(channels)
    ours = frugal_conv2d(x, weight, bias, padding=padding, dilation=dilation)
    theirs = F.conv2d(x, weight, bias, padding=padding, dilation=dilation)
    if sparse:
        ours, theirs = peaks(ours), peaks(theirs)
    assert_close_with_gradients(ours, theirs, inputs)


def test_zeros_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense backward pass is not reached behind a global max pooling."""
    monkeypatch.setattr("equiscale.layers.baselines.frugal_conv._dense_gradients", None)
    inputs = tensors(3)
    peaks(frugal_conv2d(*inputs)).sum().backward()
    with pytest.raises(TypeError, match="not callable"):
        frugal_conv2d(*inputs).sum().backward()


def test_patches_are_gathered_in_chunks_for_each_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equiscale.layers.baselines.frugal_conv.CHUNK", 100)
    x, weight, bias = tensors(3)
    for inputs in ((x, weight, bias), (x, weight.detach()), (x.detach(), weight)):
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        ours, theirs = peaks(frugal_conv2d(*inputs)), peaks(F.conv2d(*inputs))
        assert_close_with_gradients(ours, theirs, wanted)


def test_second_derivatives() -> None:
    x, weight, _ = tensors(2)
    inputs = x[..., :5, :5].detach().requires_grad_(), weight
    assert torch.autograd.gradcheck(frugal_conv2d, inputs)
    assert torch.autograd.gradgradcheck(frugal_conv2d, inputs)


def test_autocast_computes_gradients_in_the_weights_precision() -> None:
    x, weight, bias = tensors(3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = frugal_conv2d(x, weight, bias)
    assert output.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(output.float().flatten(2).max(2).values.sum(), weight)
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize(
    ("padding", "training"), [("valid", True), ("same", True), ("same", False)]
)
def test_module_is_a_conv2d(padding: Padding, training: bool) -> None:
    ours = FrugalConv2d(3, 5, 7, padding=padding).train(training)
    theirs = nn.Conv2d(3, 5, 7, padding=padding)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 20, 17, generator=torch.Generator().manual_seed(1))
    for module in (ours, theirs):
        module(x).amax((2, 3)).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad)


def test_module_refuses_what_it_cannot_do() -> None:
    with pytest.raises(OptionError, match="odd, got 4"):
        FrugalConv2d(1, 1, 4)
    for padding in ("full", 1):
        with pytest.raises(OptionError, match="unknown padding"):
            FrugalConv2d(1, 1, 3, padding=padding)  # type: ignore[arg-type]
