"""Load a dataset and select what a split of a scenario needs from it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from equiscale.core.errors import OptionError
from equiscale.core.spec import CANVAS, OBJECT_SIZES, Split
from equiscale.data.catalog import locate_dataset
from equiscale.data.schema import StirArrays, read_arrays

_SPLITS = tuple(Split)


class Item(NamedTuple):
    """One image with what is known about it; `torch.utils.data.DataLoader` batches each field."""

    image: Tensor
    label: int
    object_size: int
    position: Tensor


class Selection(Dataset[Item]):
    """The images of one split at the chosen object sizes, in file order.

    Order: object size descending, then class, then instance. It holds no copy of the dataset:
    `images` converts the chosen ones on first use, and an item is converted when it is asked for.

    Args:
        arrays: The dataset's contents.
        split: Which part.
        sizes: Which object sizes; None means all.
    """

    def __init__(
        self, arrays: StirArrays, split: Split | str, sizes: Iterable[int] | None = None
    ) -> None:
        self.split = _checked_split(split)
        self.sizes = _checked_sizes(sizes)
        self._arrays = arrays
        self._split_index = _SPLITS.index(self.split)
        self._rows = [OBJECT_SIZES.index(size) for size in self.sizes]

    @cached_property
    def images(self) -> Tensor:
        """All images, float32 [N, C, 64, 64] in [0, 1]."""
        source = self._arrays.images[self._split_index]
        per_size = self._arrays.num_classes * self._arrays.num_instances
        out = np.empty(
            (len(self._rows), per_size, self._arrays.channels, CANVAS, CANVAS), np.float32
        )
        for target, row in zip(out, self._rows, strict=True):
            pixels = source[row].reshape(per_size, CANVAS, CANVAS, -1)
            np.divide(pixels.transpose(0, 3, 1, 2), np.float32(255), out=target)
        return torch.from_numpy(out.reshape(-1, *out.shape[2:]))

    @cached_property
    def labels(self) -> Tensor:
        """Class indices, int64 [N]."""
        return torch.from_numpy(self._arrays.labels[self._split_index][self._rows].reshape(-1))

    @cached_property
    def object_sizes(self) -> Tensor:
        """Object sizes, int64 [N]."""
        chosen = self._arrays.object_sizes[self._split_index][self._rows]
        return torch.from_numpy(chosen.reshape(-1))

    @cached_property
    def positions(self) -> Tensor:
        """Left and top distances of the objects' boxes, int64 [N, 2]."""
        chosen = self._arrays.positions[self._split_index][self._rows]
        return torch.from_numpy(chosen.reshape(-1, 2))

    def __len__(self) -> int:
        return len(self._rows) * self._arrays.num_classes * self._arrays.num_instances

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of a selection of {len(self)}")
        index %= len(self)
        return Item(
            image=self._convert(index),
            label=int(self.labels[index]),
            object_size=int(self.object_sizes[index]),
            position=self.positions[index],
        )

    def _convert(self, index: int) -> Tensor:
        """Return one image as float32 [C, 64, 64]."""
        row, within = divmod(index, self._arrays.num_classes * self._arrays.num_instances)
        label, instance = divmod(within, self._arrays.num_instances)
        pixels = self._arrays.images[self._split_index, self._rows[row], label, instance]
        image = pixels.reshape(CANVAS, CANVAS, -1).transpose(2, 0, 1)
        return torch.from_numpy(np.divide(image, np.float32(255), dtype=np.float32, order="C"))


class StirDataset:
    """A dataset in memory, as the bytes of its file.

    Args:
        name: How reports call it.
        arrays: Its validated contents.

    Examples:
        >>> dataset = load_dataset("emoji")  # doctest: +SKIP
        >>> train = dataset.select(Split.TRAIN, Scenario.MID_TO_REST.train_sizes)  # doctest: +SKIP
        >>> train.images.shape  # doctest: +SKIP
        torch.Size([576, 1, 64, 64])
    """

    def __init__(self, name: str, arrays: StirArrays) -> None:
        self.name = name
        self.arrays = arrays

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return self.arrays.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.arrays.num_classes

    @property
    def num_instances(self) -> int:
        """Number of instances per class, split and object size."""
        return self.arrays.num_instances

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.arrays.channels

    @property
    def content_hash(self) -> str:
        """SHA-256 of the arrays, their shapes and the class names."""
        return self.arrays.content_hash

    def select(self, split: Split | str, sizes: Iterable[int] | None = None) -> Selection:
        """Choose one split at some object sizes (None: all), without copying anything yet."""
        return Selection(self.arrays, split, sizes)

    def __repr__(self) -> str:
        return (
            f"StirDataset({self.name!r}, classes={self.num_classes}, "
            f"instances={self.num_instances}, channels={self.channels})"
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


def _checked_sizes(sizes: Iterable[int] | None) -> tuple[int, ...]:
    """Return the chosen sizes, each once, in file order."""
    if sizes is None:
        return OBJECT_SIZES
    try:
        chosen = set(sizes)
    except TypeError:
        raise OptionError(f"object sizes {sizes!r}: choose some of 17…64, as a list") from None
    if not chosen or not chosen <= set(OBJECT_SIZES):
        wrong = sorted(chosen - set(OBJECT_SIZES), key=repr) or "none"
        raise OptionError(f"object sizes {wrong}: choose some of 17…64")
    return tuple(size for size in OBJECT_SIZES if size in chosen)
