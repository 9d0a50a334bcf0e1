"""Load a dataset and select what a split of a scenario needs from it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from equiscale.core.errors import OptionError
from equiscale.core.spec import Scenario, Split, describe_sizes
from equiscale.data.catalog import locate_dataset
from equiscale.data.schema import StirArrays, read_arrays


class Item(NamedTuple):
    """One image with what is known about it; `torch.utils.data.DataLoader` batches each field."""

    image: Tensor
    label: int
    object_size: int
    position: Tensor


def to_float(pixels: Tensor) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`: uint8 to float32 in [0, 1]; other types stay as they are.

    Examples:
        >>> to_float(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[0., 1.]]]])
    """
    if pixels.dtype != torch.uint8:
        return pixels
    # A divisor on the device: CUDA would multiply by the rounded inverse of a number.
    return pixels.contiguous().float() / torch.tensor(255.0, device=pixels.device)


class Selection(Dataset[Item]):
    """The images of one split at the chosen object sizes, in file order.

    Order: object size as in the file (published: descending), then class, then instance.

    Args:
        arrays: The dataset's contents.
        split: Which part.
        sizes: Which object sizes; None means all.
    """

    def __init__(
        self, arrays: StirArrays, split: Split | str, sizes: Iterable[int] | None = None
    ) -> None:
        self.split = _checked_split(split)
        self.sizes = _checked_sizes(sizes, arrays.sizes)
        self._arrays = arrays
        self._part = list(Split).index(self.split)
        rows = [arrays.sizes.index(size) for size in self.sizes]
        adjacent = rows == list(range(rows[0], rows[-1] + 1))
        self._rows = slice(rows[0], rows[-1] + 1) if adjacent else rows

    @cached_property
    def pixels(self) -> Tensor:
        """All images, uint8 [N, C, H, W]; adjacent sizes are a view of the dataset's array."""
        canvas = self._arrays.canvas
        chosen = self._arrays.images[self._part][self._rows]
        pixels = chosen.reshape(-1, canvas, canvas, self._arrays.channels)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)

    @cached_property
    def images(self) -> Tensor:
        """All images, float32 [N, C, H, W] in [0, 1]: four times the memory of `pixels`."""
        return to_float(self.pixels)

    @cached_property
    def labels(self) -> Tensor:
        """Class indices, int64 [N]."""
        return torch.from_numpy(self._arrays.labels[self._part][self._rows].reshape(-1))

    @cached_property
    def object_sizes(self) -> Tensor:
        """Object sizes, int64 [N]."""
        return torch.from_numpy(self._arrays.object_sizes[self._part][self._rows].reshape(-1))

    @cached_property
    def positions(self) -> Tensor:
        """Left and top distances of the objects' boxes, int64 [N, 2]."""
        return torch.from_numpy(self._arrays.positions[self._part][self._rows].reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.sizes) * self._arrays.num_classes * self._arrays.num_instances

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of a selection of {len(self)}")
        return Item(
            image=to_float(self.pixels[index]),
            label=int(self.labels[index]),
            object_size=int(self.object_sizes[index]),
            position=self.positions[index],
        )


class StirDataset:
    """A dataset: the arrays of its file, and what its axes say.

    Args:
        name: How reports call it.
        arrays: Its validated contents.

    Attributes:
        class_names: One name per class.
        num_classes: Number of classes.
        num_instances: Number of instances per class, split and object size.
        channels: 1 for grey images, 3 for colour.
        canvas: Side of an image in pixels.
        sizes: Object sizes in file order.

    Examples:
        >>> dataset = load_dataset("emoji")
        >>> train = dataset.select(Split.TRAIN, Scenario.MID_TO_REST)
        >>> train.images.shape
        torch.Size([576, 1, 64, 64])
    """

    def __init__(self, name: str, arrays: StirArrays) -> None:
        self.name, self.arrays = name, arrays
        self.class_names = arrays.class_names
        self.num_classes, self.num_instances = arrays.num_classes, arrays.num_instances
        self.channels, self.canvas = arrays.channels, arrays.canvas
        self.sizes = arrays.sizes

    @property
    def content_hash(self) -> str:
        """SHA-256 of the arrays, their shapes and the class names."""
        return self.arrays.content_hash

    def select(
        self, split: Split | str, sizes: Iterable[int] | Scenario | str | None = None
    ) -> Selection:
        """Choose one split at some object sizes, without copying anything yet.

        Args:
            split: Which part.
            sizes: Object sizes, or the scenario that says which; None means all.
        """
        if isinstance(sizes, str):
            sizes = Scenario.named(sizes).sizes(split, self.sizes)
        return Selection(self.arrays, split, sizes)

    def __repr__(self) -> str:
        return (
            f"StirDataset({self.name!r}, classes={self.num_classes}, "
            f"instances={self.num_instances}, channels={self.channels}, canvas={self.canvas})"
        )


def load_dataset(
    name_or_path: str | Path, root: str | Path | None = None, download: bool = True
) -> StirDataset:
    """Load a dataset by its name or from a file.

    Args:
        name_or_path: A name of the catalog ("emoji"), the name of a dataset that was built into
            the cache directory, or the path of a file.
        root: Where named datasets are kept; None means `$EQUISCALE_DATA` or the platform's
            cache directory.
        download: Fetch a published dataset that is not there yet.

    Raises:
        DatasetFormatError: The file breaks the format.
        DatasetNotFoundError: It is not there and cannot be fetched; the message says what to do.
        UnknownNameError: Nothing has this name.
    """
    path = locate_dataset(name_or_path, root=root, download=download)
    return StirDataset(path.stem, read_arrays(path))


def _checked_split(split: Split | str) -> Split:
    try:
        return Split(split)
    except ValueError:
        raise OptionError(f"split {split!r}: choose train, valid or test") from None


def _checked_sizes(sizes: Iterable[int] | None, known: tuple[int, ...]) -> tuple[int, ...]:
    """Return the chosen sizes, each once, in file order."""
    if sizes is None:
        return known
    choices = f"choose some of {describe_sizes(known)}"
    try:
        chosen = set(sizes)
    except TypeError:
        raise OptionError(f"object sizes {sizes!r}: {choices}, as a list") from None
    if not chosen or not chosen <= set(known):
        wrong = sorted(chosen - set(known), key=repr) or "none"
        raise OptionError(f"object sizes {wrong}: {choices}")
    return tuple(size for size in known if size in chosen)
