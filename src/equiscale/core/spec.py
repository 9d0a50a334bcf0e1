"""Splits, canvas and object sizes, and the scenarios that divide them (arXiv 2211.10288)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from equiscale.core.errors import OptionError
from equiscale.core.registry import check_name, unknown_name_message

CANVAS = 64
"""Side of a published image in pixels."""

OBJECT_SIZES = tuple(range(CANVAS, 16, -1))
"""Sides of the objects' boxes in the published files, in file order: 64 down to 17."""


@dataclass(frozen=True)
class Layout:
    """Canvas and object sizes of a dataset; the defaults are the published ones.

    Args:
        canvas: Side of an image in pixels.
        sizes: Object sizes in pixels, strictly descending or ascending.

    Raises:
        OptionError: A size is not an integer of at least 1, or the order is not strict.
    """

    canvas: int = CANVAS
    sizes: tuple[int, ...] = OBJECT_SIZES

    def __post_init__(self) -> None:
        numbers = (self.canvas, *self.sizes)
        if not self.sizes or not all(isinstance(n, int) and n >= 1 for n in numbers):
            raise OptionError(f"canvas and object sizes must be integers ≥ 1, got {numbers}")
        if list(self.sizes) not in (sorted(set(self.sizes)), sorted(set(self.sizes))[::-1]):
            raise OptionError(f"object sizes must be strictly ordered, got {self.sizes}")

    @classmethod
    def of(cls, canvas: int = CANVAS, sizes: Iterable[int] = OBJECT_SIZES) -> Layout:
        """Return the layout with sizes in file order; every object must fit on the canvas."""
        layout = cls(canvas, tuple(sorted(sizes, reverse=True)))
        if layout.sizes[0] > canvas:
            raise OptionError(
                f"objects of {layout.sizes[0]} pixels do not fit on a canvas of {canvas}; "
                "choose a larger canvas or smaller sizes"
            )
        return layout


STIR_LAYOUT = Layout()
"""Canvas and object sizes of the published files."""


class Split(str, Enum):
    """The three parts of a dataset, in the order of a dataset file."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"

    @classmethod
    def named(cls, name: Split | str) -> Split:
        """Return the split of this name; `OptionError` if there is none."""
        check_name("split", name, [split.value for split in cls])
        return cls(name)


def describe_sizes(sizes: Iterable[int]) -> str:
    """Return object sizes as text.

    Examples:
        >>> describe_sizes([19, 18, 17]), describe_sizes([28, 56])
        ('17…19', '28, 56')
    """
    ordered = sorted(sizes)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}…{ordered[-1]}"
    return ", ".join(map(str, ordered))


def thirds(sizes: Iterable[int] = OBJECT_SIZES) -> list[tuple[int, ...]]:
    """Return small, medium and large sizes, each ascending.

    Examples:
        >>> thirds([28, 40, 56, 80, 112, 160, 224])
        [(28, 40), (56, 80, 112), (160, 224)]
    """
    ordered = sorted(sizes)
    first, second = round(len(ordered) / 3), round(2 * len(ordered) / 3)
    return [tuple(ordered[:first]), tuple(ordered[first:second]), tuple(ordered[second:])]


_CUSTOM = re.compile(r"train@[1-9]\d*(-[1-9]\d*)?(\+[1-9]\d*(-[1-9]\d*)?)*")


class Scenario(str, Enum):
    """Which object sizes are trained on and which are tested.

    The paper's four train on a third of the sizes, or on all. `train@28`, `train@17-32` and
    `train@28+56` train on the named sizes. Tested are the sizes not trained on; in `all2all`,
    all.

    Examples:
        >>> Scenario("mid2rest").train_sizes()[:3]
        (33, 34, 35)
        >>> Scenario("train@56").test_sizes([28, 56, 112])
        (28, 112)
    """

    SMALL_TO_LARGE = "small2large"
    MID_TO_REST = "mid2rest"
    LARGE_TO_SMALL = "large2small"
    ALL_TO_ALL = "all2all"

    @classmethod
    def _missing_(cls, value: object) -> Scenario | None:
        """Accept `train@…`; each value is one object, as members are."""
        if not isinstance(value, str) or not _CUSTOM.fullmatch(value):
            return None
        bounds = [int(number) for number in re.findall(r"\d+", value)]
        if bounds != sorted(set(bounds)):  # one spelling for one scenario
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        cls._value2member_map_[value] = member
        return member

    @classmethod
    def named(cls, name: Scenario | str) -> Scenario:
        """Return the scenario of this name; `OptionError` if there is none."""
        try:
            return cls(name)
        except ValueError:
            known = [*(scenario.value for scenario in cls), "train@28", "train@17-32+40"]
            raise OptionError(unknown_name_message("scenario", name, known)) from None

    def train_sizes(self, sizes: Iterable[int] = OBJECT_SIZES) -> tuple[int, ...]:
        """Return the object sizes of training and validation, ascending.

        Args:
            sizes: All object sizes of the dataset.

        Raises:
            OptionError: The dataset lacks these sizes, or has no others.
        """
        ordered = tuple(sorted(sizes))
        if self is Scenario.ALL_TO_ALL:
            return ordered
        if self in _THIRDS:
            chosen = thirds(ordered)[_THIRDS.index(self)]
        else:
            ranges = [tuple(map(int, part.split("-"))) for part in self.value[6:].split("+")]
            found = [[s for s in ordered if r[0] <= s <= r[-1]] for r in ranges]
            chosen = tuple(size for part in found for size in part) if all(found) else ()
        if not chosen or chosen == ordered:
            raise OptionError(
                f"scenario {self.value} cannot divide the object sizes "
                f"{describe_sizes(ordered)} into sizes to train and sizes to test"
            )
        return chosen

    def test_sizes(self, sizes: Iterable[int] = OBJECT_SIZES) -> tuple[int, ...]:
        """Return the tested object sizes, ascending; see `train_sizes`."""
        ordered = tuple(sorted(sizes))
        trained = self.train_sizes(ordered)
        return ordered if trained == ordered else tuple(s for s in ordered if s not in trained)

    def sizes(self, split: Split | str, sizes: Iterable[int] = OBJECT_SIZES) -> tuple[int, ...]:
        """Return the object sizes of a split, ascending; see `train_sizes`."""
        named = Split.named(split)
        return self.test_sizes(sizes) if named is Split.TEST else self.train_sizes(sizes)


_THIRDS = [Scenario.SMALL_TO_LARGE, Scenario.MID_TO_REST, Scenario.LARGE_TO_SMALL]
