"""The benchmark's facts: canvas, object sizes, splits, scenarios (arXiv 2211.10288)."""

from __future__ import annotations

from enum import Enum

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message

CANVAS = 64
"""Side of an image in pixels."""

OBJECT_SIZES = tuple(range(CANVAS, 16, -1))
"""Side of an object's box in pixels, in the order of a dataset file: 64 down to 17."""

SMALL = range(17, 33)
MEDIUM = range(33, 49)
LARGE = range(49, 65)


class Split(str, Enum):
    """The three parts of a dataset, in the order of a dataset file."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"

    @classmethod
    def named(cls, name: Split | str) -> Split:
        """Return the split of this name; `OptionError` if there is none."""
        names = [split.value for split in cls]
        if name not in names:
            raise OptionError(unknown_name_message("split", name, names))
        return cls(name)


class Scenario(str, Enum):
    """Which object sizes are trained on and which are tested.

    Examples:
        >>> Scenario("mid2rest").train_sizes[:3]
        (33, 34, 35)
        >>> len(Scenario.MID_TO_REST.sizes(Split.TEST))
        32
    """

    SMALL_TO_LARGE = "small2large"
    MID_TO_REST = "mid2rest"
    LARGE_TO_SMALL = "large2small"
    ALL_TO_ALL = "all2all"

    @property
    def train_sizes(self) -> tuple[int, ...]:
        """Object sizes of training and validation, ascending."""
        return _TRAIN_SIZES[self]

    @property
    def test_sizes(self) -> tuple[int, ...]:
        """Object sizes of the test, ascending: those not trained on, or all in `all2all`."""
        if self is Scenario.ALL_TO_ALL:
            return self.train_sizes
        return tuple(size for size in sorted(OBJECT_SIZES) if size not in self.train_sizes)

    def sizes(self, split: Split | str) -> tuple[int, ...]:
        """Object sizes of a split, ascending."""
        return self.test_sizes if Split.named(split) is Split.TEST else self.train_sizes


_TRAIN_SIZES = {
    Scenario.SMALL_TO_LARGE: tuple(SMALL),
    Scenario.MID_TO_REST: tuple(MEDIUM),
    Scenario.LARGE_TO_SMALL: tuple(LARGE),
    Scenario.ALL_TO_ALL: tuple(sorted(OBJECT_SIZES)),
}
