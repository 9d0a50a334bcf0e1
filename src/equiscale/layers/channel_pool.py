"""Scale channels: which of them take part in a training step, and how their answers are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.registry import unknown_name_message
from equiscale.layers.precision import autocast_is_on, single

ChannelPool = Literal["vote", "mixture", "mean", "max", "logsumexp"]
CHANNEL_POOLS: tuple[ChannelPool, ...] = get_args(ChannelPool)


def pool_channels(logits: Tensor, mode: ChannelPool, kept: Tensor | None = None) -> Tensor:
    """`[N, S, num_classes] -> [N, num_classes]`: one answer of all scale channels.

    `logsumexp` is that of the mean, so that channels that agree give what one of them gives. Half
    precision is pooled in float32.

    Args:
        logits: What each channel says.
        mode: `"mean"`, `"max"` or `"logsumexp"` of the logits; or `"mixture"`, the logarithm of the
            mean of the channels' probabilities: a channel that is unsure says little, and none
            can outvote the others by the mere height of its logits; or `"vote"`, the same with
            weights: a channel that hesitates between n classes (n is its perplexity) has the n-th
            part of a vote. Both need two classes at least, of which one is right.
        kept: `[N, S]`, which channels count; all by default, and at least one.

    Examples:
        >>> pool_channels(torch.tensor([[[0.0, 2.0], [1.0, 0.0]]]), "mean")
        tensor([[0.5000, 1.0000]])
        >>> sure, unsure = [4.0, 0.0], [0.0, 0.1]
        >>> pool_channels(torch.tensor([[sure, unsure]]), "mixture").exp()
        tensor([[0.7285, 0.2715]])
        >>> pool_channels(torch.tensor([[sure, unsure]]), "vote").exp()
        tensor([[0.8026, 0.1974]])
    """
    check_channel_pool(mode)
    if mode in ("vote", "mixture") and logits.shape[2] == 1:
        raise ShapeError(
            "one logit per image has no probabilities to mix: give the classifier one logit per "
            'class, or pool the logits, pool="mean"'
        )
    pooled = _pool(single(logits), mode, kept)
    return pooled if autocast_is_on(logits) else pooled.to(logits.dtype)


def _pool(logits: Tensor, mode: ChannelPool, kept: Tensor | None) -> Tensor:
    if mode == "mixture":
        return _pool(logits.log_softmax(dim=2), "logsumexp", kept)
    if kept is None:
        kept = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if mode == "vote":
        return _vote(logits.log_softmax(dim=2), kept)
    count, dropped = kept.sum(dim=1, keepdim=True), ~kept[:, :, None]
    if mode == "mean":
        return logits.masked_fill(dropped, 0).sum(dim=1) / count
    logits = logits.masked_fill(dropped, -math.inf)
    if mode == "max":
        return logits.max(dim=1).values
    return logits.logsumexp(dim=1) - count.to(logits.dtype).log()


def _vote(log_probabilities: Tensor, kept: Tensor) -> Tensor:
    """Mix probabilities, each channel weighted by the inverse of its perplexity."""
    finite = log_probabilities.clamp_min(torch.finfo(log_probabilities.dtype).min)
    negative_entropy = (log_probabilities.exp() * finite).sum(dim=2)
    log_weight = negative_entropy.masked_fill(~kept, -math.inf).log_softmax(dim=1)
    return (log_probabilities + log_weight[:, :, None]).logsumexp(dim=1)


def check_channel_pool(mode: str) -> None:
    """Raise `OptionError` unless `mode` names a way to pool scale channels."""
    if mode not in CHANNEL_POOLS:
        raise OptionError(unknown_name_message("pool", mode, CHANNEL_POOLS))


def check_dropout(dropout: object) -> None:
    """Raise `OptionError` unless the probability is a number from 0 to below 1."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise OptionError(f"dropout must be a number from 0 to below 1, got {dropout!r}")


def draw_channels(num_samples: int, num_channels: int, dropout: float) -> Tensor:
    """Return `[N, S]`: which channels see which sample; each is dropped with this probability.

    Where all were dropped, the one that came closest to being kept is. The numbers come from
    torch's global generator on the CPU, which a training loop seeds; as many are drawn whatever
    comes out.
    """
    chances = torch.rand(num_samples, num_channels)
    return (chances >= dropout) | (chances == chances.max(dim=1, keepdim=True).values)


def spread_channels(logits: Sequence[Tensor], kept: Tensor) -> Tensor:
    """`S × [N_s, num_classes], [N, S] -> [N, S, num_classes]`: zeros where nothing was kept."""
    whole = logits[0].new_zeros(*kept.shape, logits[0].shape[1])
    for channel, values in enumerate(logits):
        whole[kept[:, channel], channel] = values
    return whole


class SharedBatchNorm(nn.Module):
    """`S × [N, C, H_s, W_s] -> S × [N, C, H_s, W_s]`: batch normalisation common to all channels.

    Mean and variance are taken over all scale channels together, so that all of them are normalised
    by the same numbers. Every sample in every channel counts the same, however many pixels it has.

    Args:
        num_features: Number C of features.
        momentum: Share of a new batch in the running statistics, which evaluation uses.
        eps: Added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """`S × [N, C, H_s, W_s] -> S × [N, C, H_s, W_s]`."""
        mean, variance = self.running_mean, self.running_var
        if self.training and any(map(len, maps)):
            mean, variance = self._measure(maps)
        factor = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * factor
        return [(one * factor[:, None, None] + shift[:, None, None]).to(one.dtype) for one in maps]

    def _measure(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean and variance `[C]` of a batch, and keep them."""
        count = sum(map(len, maps))
        exact = [single(one) for one in maps]
        mean = torch.stack([one.mean((2, 3)).sum(0) for one in exact]).sum(0) / count
        square = torch.stack([one.square().mean((2, 3)).sum(0) for one in exact]).sum(0) / count
        variance = (square - mean**2).clamp_min(0)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var), self.momentum)
        return mean, variance
