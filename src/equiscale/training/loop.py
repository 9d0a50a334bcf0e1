"""The training loop: early stopping on the validation accuracy, best weights kept.

All randomness in an epoch depends on the seed and the number of the epoch only, so a run that
resumes from a checkpoint draws the same numbers as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from equiscale.core.errors import EquiscaleError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.seeding import derive_seed
from equiscale.core.spec import Scenario, Split
from equiscale.data.dataset import StirDataset, to_float
from equiscale.metrics.inference import BATCH_SIZE, evaluating
from equiscale.runs.record import History
from equiscale.training.augmentation import SIZE_RANGE, augment

SHUFFLE_SEED = 42
"""As the paper's release: the training set is shuffled once, with this seed, in every run."""

Weights = dict[str, Tensor]


class DivergedError(EquiscaleError):
    """The loss or the weights are no longer finite."""


class InterruptedRunError(EquiscaleError):
    """The run was asked to stop; it can resume from its last checkpoint."""


@dataclass(frozen=True)
class LabelledImages:
    """`[N, C, H, W]` images, `[N]` labels and, if known, `[N, 3]` boxes, on one device.

    uint8 images become float32 in [0, 1] batch by batch. A box is left, top and size of an object.
    `order` is the order of the batches' images; `size_range` is that of the dataset.
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor | None = None
    order: Tensor | None = None
    size_range: tuple[int, int] = SIZE_RANGE

    @classmethod
    def load(
        cls, dataset: StirDataset, split: Split, scenario: Scenario, device: torch.device
    ) -> LabelledImages:
        """Load the object sizes of a scenario from a split."""
        part = dataset.select(split, scenario)
        boxes = torch.cat([part.positions, part.object_sizes[:, None]], dim=1)
        largest = min(max(dataset.sizes), dataset.canvas)
        return cls(
            part.pixels.to(device),
            part.labels.to(device),
            boxes.to(device),
            size_range=(min(dataset.sizes), largest),
        )

    def permuted(self, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> LabelledImages:
        """Return the images in the given order, without copying them."""
        index = torch.from_numpy(order).to(self.labels.device)
        return replace(self, order=index if self.order is None else self.order[index])

    def batches(self, size: int) -> Iterator[LabelledImages]:
        """Yield batches of `size` images in order; the last one may be smaller."""
        for first in range(0, len(self.labels), size):
            last = first + size
            part = slice(first, last) if self.order is None else self.order[first:last]
            boxes = None if self.boxes is None else self.boxes[part]
            yield LabelledImages(to_float(self.images[part]), self.labels[part], boxes)


@dataclass(frozen=True)
class EpochTimings:
    """Seconds of each epoch, without and with validation."""

    train_seconds: tuple[float, ...] = ()
    epoch_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The state of a run after an epoch."""

    history: History
    timings: EpochTimings
    max_epochs: int
    patience: int

    @property
    def epoch(self) -> int:
        """The last finished epoch, from 1."""
        return len(self.history)

    @property
    def epochs_left(self) -> int:
        """Epochs until the run stops, unless the validation accuracy improves again."""
        until_stop = self.history.best_epoch + self.patience - self.epoch
        return max(0, min(until_stop, self.max_epochs - self.epoch))

    @property
    def seconds_left(self) -> float:
        """Estimated seconds for `epochs_left` epochs."""
        seconds = self.timings.epoch_seconds
        return self.epochs_left * sum(seconds) / len(seconds) if seconds else 0.0


class Trainer:
    """One run: the model, trained in place, its optimiser, the history and the best weights."""

    def __init__(
        self, model: nn.Module, protocol: TrainingProtocol, learning_rate: float, seed: int
    ) -> None:
        self.model = model
        self.protocol = protocol
        self.seed = seed
        self.optimizer = _create_optimizer(model, protocol, learning_rate)
        self.average = _create_average(model, protocol.ema)
        self.best_weights: Weights = {}
        self.history = History()
        self.timings = EpochTimings()

    @property
    def progress(self) -> Progress:
        """The state of the run."""
        return Progress(
            self.history, self.timings, self.protocol.max_epochs, self.protocol.patience
        )

    @property
    def validated(self) -> nn.Module:
        """What is validated and kept: the model, or the average of its weights."""
        return self.model if self.average is None else self.average.module

    @property
    def is_finished(self) -> bool:
        """Whether the run has used up its patience or its epochs."""
        return bool(self.history) and self.progress.epochs_left == 0

    def train(
        self,
        train_set: LabelledImages,
        valid_set: LabelledImages,
        on_epoch: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Weights:
        """Train until finished, load the best weights into the model and return them.

        The training set is in the order of the dataset file, and shuffled here. If `should_stop`,
        called before each step, returns True, `InterruptedRunError` is raised.
        """
        shuffled = train_set.permuted(_permutation(SHUFFLE_SEED, len(train_set.labels)))
        with _reproducible(self.model):
            while not self.is_finished:
                self.run_epoch(shuffled, valid_set, should_stop)
                on_epoch(self.progress)
        self.model.load_state_dict(self.best_weights)
        return self.best_weights

    def run_epoch(
        self,
        train_set: LabelledImages,
        valid_set: LabelledImages,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train for one epoch, validate, and keep the weights if they are the best so far."""
        started = time.perf_counter()
        loss = self._train_epoch(train_set, should_stop)
        trained = time.perf_counter()
        accuracy, valid_loss = validate(self.validated, valid_set)
        tie_breaker = valid_loss if self.protocol.break_ties else None
        self.history = self.history.extended(loss, accuracy, tie_breaker)
        if self.history.best_epoch == len(self.history):
            self.best_weights = copy_weights(self.validated)
        ended = time.perf_counter()
        self.timings = EpochTimings(
            (*self.timings.train_seconds, trained - started),
            (*self.timings.epoch_seconds, ended - started),
        )

    def _train_epoch(self, train_set: LabelledImages, should_stop: Callable[[], bool]) -> float:
        """Train for one epoch and return the mean loss of its images."""
        epoch = len(self.history) + 1
        generator = self._seed_epoch(epoch)
        if self.protocol.reshuffle:
            seed = derive_seed(f"seed {self.seed}", f"shuffle {epoch}") % 2**32
            train_set = train_set.permuted(_permutation(seed, len(train_set.labels)))
        self.model.train()
        losses = []
        for batch in train_set.batches(self.protocol.batch_size):
            if should_stop():
                raise InterruptedRunError(f"stopped in epoch {epoch}")
            kind = self.protocol.augmentation
            images = augment(batch.images, kind, generator, batch.boxes, train_set.size_range)
            losses.append(self._step(images, batch.labels) * len(batch.labels))
        loss = torch.stack(losses).sum().item() / len(train_set.labels)
        self._check_finite(loss, epoch)
        return loss

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        """`[n, C, H, W], [n] -> []`: make one step and return the loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        return loss.detach()

    def _seed_epoch(self, epoch: int) -> torch.Generator:
        """Seed torch, for dropout, and return the generator of the augmentations."""
        key = f"seed {self.seed}"
        torch.manual_seed(derive_seed(key, f"model {epoch}"))
        return torch.Generator().manual_seed(derive_seed(key, f"augmentation {epoch}"))

    def _check_finite(self, loss: float, epoch: int) -> None:
        finite = np.isfinite(loss) and all(
            bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()
        )
        if not finite:
            raise DivergedError(
                f"training diverged in epoch {epoch}: the loss is {loss:g} or a weight is not "
                "finite; try a smaller learning rate"
            )


@torch.inference_mode()
def validate(model: nn.Module, part: LabelledImages) -> tuple[float, float]:
    """Return the accuracy and the mean cross-entropy of a model on labelled images."""
    with evaluating(model):
        logits = torch.cat([model(batch.images) for batch in part.batches(BATCH_SIZE)])
    hits = int((logits.argmax(dim=1) == part.labels).sum())
    return hits / len(part.labels), F.cross_entropy(logits, part.labels).item()


def seed_weights(seed: int) -> None:
    """Seed torch's global generator before the initial weights of a run are drawn.

    Runs with one seed start from the same weights, at any learning rate.
    """
    torch.manual_seed(derive_seed(f"seed {seed}", "weights"))


def copy_weights(model: nn.Module) -> Weights:
    """Return a copy of a model's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _create_optimizer(
    model: nn.Module, protocol: TrainingProtocol, learning_rate: float
) -> torch.optim.Optimizer:
    if protocol.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    optimizers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return optimizers[protocol.optimizer](model.parameters(), lr=learning_rate)


def _create_average(model: nn.Module, decay: float) -> AveragedModel | None:
    """Return a running average of a model's weights and buffers."""
    if not decay:
        return None

    def update(average: Tensor, new: Tensor, steps: Tensor | int) -> Tensor:
        if not average.is_floating_point():
            return new
        step = int(steps)  # the first weights are soon forgotten
        return torch.lerp(average, new, 1 - min(decay, (1 + step) / (10 + step)))

    return AveragedModel(model, avg_fn=update, use_buffers=True)


def _permutation(seed: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    legacy = np.random.RandomState(seed)
    return legacy.permutation(length).astype(np.int64)


@contextlib.contextmanager
def _reproducible(model: nn.Module) -> Iterator[None]:
    """Use deterministic cuDNN algorithms; on exit, restore torch's random generators."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with torch.random.fork_rng(devices=sorted(devices)), flags:
        yield
