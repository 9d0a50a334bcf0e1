"""Search of an image for its object, over place and size, with a trained classifier."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_positive
from equiscale.layers.channels import RescaledViews, check_logits
from equiscale.layers.precision import single
from equiscale.layers.wrapping import Wrapper

WINDOWS = (1.0, 5 / 7, 3 / 7)
"""Sides of the windows that are classified, relative to the feature map."""

NEAR = 0.5
CLOSE = (0.5, 0.2)
"""Side of the views of the second look, and range of those of the third, relative to the image."""

TILES = ((0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))
"""Centres of the views of the second look of a network without feature maps."""

LEADS = tuple(2 ** (step / 2) for step in range(21))
COPIES = (0.25, 0.35, 0.5)
"""What `calibrate` chooses from, and the sizes of the copies of images that it looks at."""

POOLS: dict[str, Callable[..., Tensor]] = {"mean": F.avg_pool2d, "max": F.max_pool2d}
"""Ways of global pooling that can pool windows too."""

TOLERANCE = 0.01
_BATCH = 16
_ROUNDING = 0.01  # of a sum of probabilities in half precision

_log = logging.getLogger(__name__)

Function = Callable[[Tensor], Tensor]


class ObjectSearch(Wrapper):
    """`[N, C, H, W] -> [N, K]`: a trained classifier that searches its image for the object.

    A classifier that was trained on large objects overlooks small ones. This wrapper looks closer,
    with the weights as they are:

    1. It runs the network on the image, and classifies windows of the feature map besides the
       whole map.
    2. Where the features are strongest, it cuts out a view of half the image's side and enlarges
       it to the size of the image. The strongest place in that view gets closer views, which
       differ in size. Their windows are classified too.
    3. A class is as probable as in the window where it is most probable. To protect objects that
       fill the image, the odds in all windows but the whole image are divided by `lead`: one of
       many windows is easily sure by chance.

    All views have the size of the image, or `size`, so networks for images of one size work too.
    A network without feature maps, such as a vision transformer, or without global average or
    maximum pooling classifies whole views. Its second look is at up to five tiles, and the closer
    views are around the tile with the largest logit.

    The output is log-probabilities. The checkpoint is that of the backbone: see `Wrapper`.

    Args:
        backbone: A trained classifier, in eval mode, that returns logits or probabilities.
        budget: Number of views per image, which is the cost in forward passes. Networks that
            classify whole views need at least 8, and gain little.
        features: `[N, C, H, W] -> [N, D, h, w]`, the feature map. By default, the backbone's
            `forward_features`, which the networks of timm have.
        head: `[N, D, h, w] -> [N, K]`, average pooling and classifier. By default, the backbone's
            `forward_head`, which may pool maxima instead. Copies of the search need modules or
            methods of the backbone here: other functions keep to the weights of the original.
        lead: By how much the odds of a class must be better in a window than in the whole image,
            at least 1. By default, the number of windows of a view; `calibrate` fits it.
        sure: Skip further views of an image once a class has this probability; None never does,
            nor does an exported search.
        size: Side of the views, for images that are larger than the network's input; they are
            resized to squares. By default, views are as large as the image.

    Raises:
        OptionError: An option does not exist or has no meaning.
        ShapeError: In a call: the images are not `[N, C, H, W]`, or the backbone returns no logits.

    Examples:
        >>> features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.ReLU())
        >>> head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> network = nn.Sequential(features, head)
        >>> search = ObjectSearch(network, budget=4, features=features, head=head)
        >>> search(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        backbone: nn.Module,
        budget: int = 4,
        *,
        features: Function | None = None,
        head: Function | None = None,
        lead: float | None = None,
        sure: float | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(backbone)
        check_positive(budget=budget, **({} if size is None else {"size": size}))
        if (features is None) != (head is None):
            raise OptionError("features and head belong together: give both or neither")
        if sure is not None and not (isinstance(sure, (int, float)) and 0 < sure <= 1):
            raise OptionError(f"sure must be a probability above 0 or None, got {sure!r}")
        if lead is not None and not (isinstance(lead, (int, float)) and 1 <= lead < math.inf):
            raise OptionError(f"lead must be a number of at least 1 or None, got {lead!r}")
        self.budget, self.lead, self.sure, self.size = budget, lead, sure, size
        # Kept from nn.Module: modules among them would be in the checkpoint twice.
        self.functions = None if features is None or head is None else (features, head)
        self.pooling = "mean" if self.functions else _find_pooling(self.backbone)

    def extra_repr(self) -> str:
        """Show the options, and how windows of the feature map are pooled, if they are."""
        options = f"budget={self.budget}, lead={self.lead}, sure={self.sure}, size={self.size}"
        return f"{options}, window_pooling={self.pooling}"

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, K]`, log-probabilities."""
        if x.ndim != 4 or not x.is_floating_point():
            raise ShapeError(
                "the search needs images [N, C, H, W] of floating-point numbers, got "
                f"{list(x.shape)} of {x.dtype}"
            )
        found, _ = self._search(x, self.lead, self.sure)
        if found.shape[1] < 2:
            raise ShapeError("the search compares at least two classes, got one logit per image")
        return found.log_softmax(dim=1)

    @torch.no_grad()
    def calibrate(
        self, images: Tensor, labels: Tensor | None = None, tolerance: float = TOLERANCE
    ) -> float:
        """Fit `lead` to a few images whose objects fill them, and return it.

        With a larger lead, fewer answers about such objects change, and fewer small objects are
        found. The chosen lead is the largest one that costs at most `tolerance` of the accuracy on
        reduced copies of the images.

        Args:
            images: `[N, C, H, W]`, as the network takes them; some dozens are enough.
            labels: `[N]`, their classes; by default, what the backbone answers about whole images.
            tolerance: Accuracy on small objects that may be lost.
        """
        if not len(images) or (labels is not None and labels.shape != images.shape[:1]):
            raise ShapeError(f"calibrate needs images, and labels [{len(images)}] if any")
        if not tolerance >= 0:
            raise OptionError(f"tolerance must be at least 0, got {tolerance!r}")
        copies = RescaledViews(COPIES).eval()(images).values()
        parts = [self._search(some, 1.0, None) for copy in copies for some in copy.split(_BATCH)]
        found, whole = (torch.cat(part) for part in zip(*parts, strict=True))
        if labels is None:
            labels = self._look_at_all(images)[0][:, -1].argmax(dim=1)
        right = labels.repeat(len(COPIES))
        answers = [_weigh(whole, found, lead).argmax(dim=1) for lead in LEADS]
        accuracies = torch.stack([(answer == right).double().mean() for answer in answers])
        good = accuracies >= accuracies.max() - tolerance
        self.lead = max(itertools.compress(LEADS, good.tolist()))
        return self.lead

    def _search(self, x: Tensor, lead: float | None, sure: float | None) -> tuple[Tensor, Tensor]:
        """`[N, C, H, W] -> [N, K], [N, K]`: the logarithm of the largest probability of each class.

        The first is that of all windows and views, the second that of the image as a whole.
        """
        windows, places = self._look_at_all(x)
        found, whole = windows.amax(dim=1), windows[:, -1]
        odds = windows.shape[1] if lead is None else lead
        if self.budget > 1:
            if places.shape[1] > 1:
                centres = _strongest(places)
            else:  # one answer per view says nothing about places in it
                centres = x.new_tensor(TILES[: self.budget - 1]).expand(x.shape[0], -1, 2)
            unsure = _unsure(_weigh(whole, found, odds), sure)
            found, places = self._look_again(x, found, centres, (NEAR,), unsure)
            close = self.budget - 1 - centres.shape[1]
            if close > 0:
                largest, smallest = CLOSE
                steps = [(step + 0.5) / close for step in range(close)]
                sides = [largest * (smallest / largest) ** step for step in steps]
                unsure = _unsure(_weigh(whole, found, odds), sure)
                found, _ = self._look_again(x, found, _strongest(places), sides, unsure)
        return _weigh(whole, found, odds), whole

    def _look_again(
        self,
        x: Tensor,
        found: Tensor,
        centres: Tensor,
        sides: Sequence[float],
        unsure: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """`_look` at all images, or those with these indices, and add what is found."""
        if unsure is None:
            windows, places = self._look(x, centres, sides)
            return torch.maximum(found, windows.amax(dim=1)), places
        if not unsure.numel():
            return found, x.new_zeros(x.shape[0], 1, 3)
        windows, some = self._look(x[unsure], centres[unsure], sides)
        more = torch.maximum(found[unsure], windows.amax(dim=1))
        places = some.new_zeros(x.shape[0], *some.shape[1:]).index_put((unsure,), some)
        return found.index_put((unsure,), more), places

    def _look_at_all(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`_look` at the whole images."""
        return self._look(x, x.new_full((x.shape[0], 1, 2), 0.5), (1.0,))

    def _look(self, x: Tensor, centres: Tensor, sides: Sequence[float]) -> tuple[Tensor, Tensor]:
        """`[N, C, H, W], [N, P, 2] -> [N, M, K], [N, Q, 3]`: classify views by centre and side.

        Returns:
            The logarithms of the probabilities of the classes in all windows of all views, the last
            of which is a whole view; and for places in the views their strength and coordinates
            in the image.
        """
        size = x.shape[2:] if self.size is None else torch.Size((self.size, self.size))
        squares = [
            (centre.sub(side / 2).clamp(0.0, 1 - side), side)
            for side in sides
            for centre in centres.unbind(1)
        ]
        maps, logits = self._run(torch.cat([_cut(x, *square, size) for square in squares]))
        windows = log_probabilities(single(logits)).unflatten(0, (len(squares), -1))
        strengths, inside = _strengths(maps, logits)
        per_view = strengths.unflatten(0, (len(squares), -1)).unbind()
        found = [
            torch.cat([strength[:, :, None].to(x), corner[:, None] + side * inside], dim=2)
            for strength, (corner, side) in zip(per_view, squares, strict=True)
        ]
        return windows.transpose(0, 1).flatten(1, 2), torch.cat(found, dim=1)

    def _run(self, views: Tensor) -> tuple[Tensor | None, Tensor]:
        """`[M, C, h, w] ->` feature maps, if there are any, and logits `[M, windows, K]`."""
        network: Any = self.backbone
        if self.functions is not None:
            features, head = self.functions
        elif self.pooling is not None:
            features, head = network.forward_features, network.forward_head
        else:
            logits = network(views)
            check_logits(logits, views)
            return None, logits[:, None]
        maps = features(views)
        if maps.ndim != 4:
            return None, head(maps)[:, None]
        windows = _windows(maps, POOLS[self.pooling or "mean"])
        logits = head(windows.flatten(0, 1)[:, :, None, None])
        check_logits(logits, windows.flatten(0, 1))
        return maps, logits.unflatten(0, (-1, windows.shape[1]))


def log_probabilities(answers: Tensor) -> Tensor:
    """`[…, K] -> […, K]`, of logits or probabilities: rows of at least 0 each that sum to 1."""
    total = answers.sum(dim=-1, keepdim=True)
    given = (answers >= 0).all(dim=-1, keepdim=True) & ((total - 1).abs() < _ROUNDING)
    logarithms = answers.clamp_min(torch.finfo(answers.dtype).tiny).log()
    return torch.where(given, logarithms, answers.log_softmax(dim=-1))


def _weigh(whole: Tensor, found: Tensor, lead: float) -> Tensor:
    """Return the larger log-probabilities, after the odds of what was found are divided."""
    return torch.maximum(whole, found - torch.log(found.exp() - lead * found.expm1()))


def _unsure(evidence: Tensor, sure: float | None) -> Tensor | None:
    """Return the indices of the images in which no class is probable enough; None means all."""
    if sure is None or torch.compiler.is_exporting():
        return None
    return (evidence.amax(dim=1) < math.log(sure)).nonzero()[:, 0]


def _find_pooling(network: Any) -> str | None:  # noqa: ANN401 - timm's methods
    """Return how `forward_head` pools a feature map, a name of `POOLS`, or None."""
    if not all(hasattr(network, name) for name in ("forward_features", "forward_head")):
        return None
    was_training = network.training
    network.eval()
    try:
        found = (_pooling_of(network, channels) for channels in _possible_channels(network))
        pooling = next((name for name in found if name is not None), None)
    finally:
        network.train(was_training)
    if pooling is None:
        _log.warning(
            "%s has no feature map that its forward_head pools, so ObjectSearch classifies whole "
            "views, which needs a budget of 8; features= and head= name such a map",
            type(network).__name__,
        )
    return pooling


@torch.no_grad()
def _pooling_of(network: Any, channels: int) -> str | None:  # noqa: ANN401 - timm's methods
    """Return how `forward_head` pools a map with so many channels, or None if it takes none."""
    maps = torch.rand(1, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    maps = maps.to(next(network.parameters(), maps))
    try:
        whole = network.forward_head(maps)
        answers = {name: network.forward_head(pool(maps, 4)) for name, pool in POOLS.items()}
    except Exception:  # other people's code, given maps it may not know
        return None
    same = (n for n, logits in answers.items() if torch.allclose(logits, whole, 0.01, 1e-3))
    return next(same, None)


def _possible_channels(network: Any) -> list[int]:  # noqa: ANN401 - timm's attribute
    """Return what may be the channels of the feature map: timm's attribute, inputs of layers."""
    named = getattr(network, "num_features", None)
    layers: list[int] = [
        m.in_features if isinstance(m, nn.Linear) else m.in_channels
        for m in network.modules()
        if isinstance(m, (nn.Linear, nn.Conv2d))
    ]
    first = [named] if isinstance(named, int) else []
    return list(dict.fromkeys([*first, *reversed(layers)]))


def _windows(maps: Tensor, pool: Callable[..., Tensor]) -> Tensor:
    """`[M, D, h, w] -> [M, windows, D]`: pool windows of several sizes at all places."""
    sizes = {tuple(max(1, round(side * part)) for side in maps.shape[2:]) for part in WINDOWS}
    pooled = [pool(maps, size, stride=1).flatten(2) for size in sorted(sizes)]
    return torch.cat(pooled, dim=2).transpose(1, 2)


def _strengths(maps: Tensor | None, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return places to look at: strength `[M, P]`, and centres `[P, 2]` as shares of the view.

    Feature maps are strong where there is an object: the norm of their mean over 2×2 cells finds
    small objects more often than the classifier's confidence or its largest logit.
    """
    if maps is None:
        return logits.amax(dim=2), logits.new_full((1, 2), 0.5)
    sides = [min(2, side) for side in maps.shape[2:]]
    norms = F.avg_pool2d(single(maps), sides, stride=1).norm(dim=1)
    rows, columns = (
        (torch.arange(count, device=maps.device) + side / 2) / length
        for count, side, length in zip(norms.shape[1:], sides, maps.shape[2:], strict=True)
    )
    return norms.flatten(1), torch.cartesian_prod(rows, columns).to(maps)


def _strongest(places: Tensor) -> Tensor:
    """`[N, P, 3] -> [N, 1, 2]`: the coordinates of the strongest place."""
    best = places[:, :, 0].argmax(dim=1)[:, None, None]
    return places[:, :, 1:].gather(1, best.expand(-1, 1, 2))


def _cut(x: Tensor, corner: Tensor, side: float, size: torch.Size) -> Tensor:
    """`[N, C, H, W], [N, 2] -> [N, C, *size]`: resize the squares at these corners.

    Corners and side are shares of the image.
    """
    x = _shrink(x, [math.ceil(length / side) for length in size])
    if side == 1 and x.shape[2:] == size:
        return x
    scale = side * torch.eye(2, dtype=x.dtype, device=x.device).expand(x.shape[0], 2, 2)
    shift = 2 * corner.flip(1) + side - 1
    theta = single(torch.cat([scale, shift[:, :, None]], dim=2))
    grid = F.affine_grid(theta, [*x.shape[:2], *size], align_corners=False).to(x.dtype)
    return F.grid_sample(x, grid, "bicubic", padding_mode="border", align_corners=False)


def _shrink(x: Tensor, size: list[int]) -> Tensor:
    """Resize images that are larger than this, with antialiasing."""
    smaller = [min(pair) for pair in zip(size, x.shape[2:], strict=True)]
    if smaller == list(x.shape[2:]):
        return x
    return F.interpolate(x, smaller, mode="bicubic", antialias=True)
