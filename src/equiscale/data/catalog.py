"""The known datasets: their cards, where their files are, and how they are fetched."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from equiscale.core.errors import DatasetNotFoundError, OptionError, UnknownNameError
from equiscale.core.files import CACHE_VARIABLE, cache_directory
from equiscale.core.registry import Registry, unknown_name_message
from equiscale.core.spec import STIR_LAYOUT, Layout

if TYPE_CHECKING:
    from equiscale.data.schema import StirArrays

SUFFIX = ".npz"
STIR_CITATION = (
    "T. R. Altstidl et al., Just a Matter of Scale? Reevaluating Scale Equivariance in "
    "Convolutional Neural Networks, arXiv 2211.10288, 2022"
)
COMMON_OPTIONS = ("layout", "workers", "progress")
"""Arguments that every builder takes."""

Builder = Callable[..., "StirArrays"]
BuilderT = TypeVar("BuilderT", bound=Builder)


@dataclass(frozen=True)
class DatasetCard:
    """What is known of a dataset without its file.

    Attributes:
        name: Key of the dataset and stem of its file.
        build: Called with a layout, a number of processes and a progress callback, see
            `equiscale.build`. Its other arguments are options of `equiscale data build NAME`.
        title: One line.
        license: Terms of the images.
        description: How the images were made.
        source: Where the originals come from.
        citation: What to cite.
        date: Of the recipe.
        class_names: Names of the classes in file order; empty if only the file knows them.
        num_classes: Number of classes; by default, of the names.
        num_instances: Instances per class, split and object size.
        channels: 1 for grey, 3 for colour.
        layout: Canvas and object sizes by default.
        published: Whether the file can be downloaded.
        content_hash: `StirDataset.content_hash` of the file built with the versions of
            `constraints.txt`, if known.
    """

    name: str
    build: Builder
    title: str
    license: str
    description: str = ""
    source: str = ""
    citation: str = ""
    date: str = ""
    class_names: tuple[str, ...] = ()
    num_classes: int = 0
    num_instances: int = 1
    channels: int = 1
    layout: Layout = STIR_LAYOUT
    published: bool = False
    content_hash: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", self.num_classes or len(self.class_names))
        parameters = inspect.signature(self.build).parameters
        missing = [name for name in COMMON_OPTIONS if name not in parameters]
        if missing:
            raise OptionError(
                f"the builder of dataset {self.name!r} must take {', '.join(COMMON_OPTIONS)}; "
                f"{', '.join(missing)} is missing"
            )

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """Arguments of the builder besides those that every builder takes, by name."""
        parameters = inspect.signature(self.build, eval_str=True).parameters
        return {key: p for key, p in parameters.items() if key not in COMMON_OPTIONS}

    @property
    def build_hint(self) -> str:
        """Arguments of `equiscale data build` that make it."""
        return f"{self.name} --source DIR" if "source" in self.options else self.name

    def metadata(self) -> dict[str, str]:
        """Return what a file that is built here says about itself."""
        return {
            "title": self.title,
            "description": self.description,
            "author": "; ".join(filter(None, ("built with equiscale", self.citation))),
            "license": self.license,
            "version": "1.0.0",
            "date": self.date,
        }


CARDS: Registry[DatasetCard] = Registry("dataset", "equiscale.build.")


def register_dataset(name: str, **fields: Any) -> Callable[[BuilderT], BuilderT]:  # noqa: ANN401 - those of the card
    """Return a decorator that registers a function as the builder of a dataset.

    The name then works wherever a dataset's name does, and `equiscale data build NAME` exists.

    Args:
        name: The dataset's name, a plain word.
        fields: Attributes of `DatasetCard`; `title` and `license` are needed.

    Example (not run here, because it would register)::

        @register_dataset("dots", title="Dots", license="CC0", class_names=("small", "large"))
        def build_dots(layout, workers, progress, seed: int = 0) -> StirArrays: ...
    """

    def add(build: BuilderT) -> BuilderT:
        CARDS.add(name, DatasetCard(name, build, **fields))
        return build

    return add


def dataset_path(name: str, root: str | Path | None = None) -> Path:
    """Return where the file of a named dataset is, or would be."""
    directory = Path(root).expanduser() if root is not None else cache_directory()
    return directory / f"{name}{SUFFIX}"


def is_embedded(name: str) -> bool:
    """Return whether the package contains the file of a dataset."""
    return _embedded_path(name).is_file()


def _embedded_path(name: str) -> Path:
    return Path(__file__).parent / "assets" / f"{name}{SUFFIX}"


def locate_dataset(
    name_or_path: str | Path, root: str | Path | None = None, download: bool = True
) -> Path:
    """Return the file of a dataset.

    A named dataset is looked up in the data directory, then in the package, which contains emoji.
    If it is in neither and has been published, it is downloaded.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(SUFFIX) or os.sep in text:
        path = Path(text).expanduser()
        if not path.is_file():
            raise DatasetNotFoundError(f"no dataset file {path}; give a file or a dataset's name")
        return path
    path = dataset_path(text, root)
    if path.is_file():
        return path
    if is_embedded(text):
        return _embedded_path(text)
    if text not in CARDS:
        raise UnknownNameError(unknown_name_message("dataset", text, _known_names(path.parent)))
    card = CARDS[text]
    if not (card.published and download):
        raise DatasetNotFoundError(missing_message(card, path.parent))
    from equiscale.data.download import download_dataset  # requests, only where it is needed

    return download_dataset(text, root)


def missing_message(card: DatasetCard, directory: Path) -> str:
    """Say that a dataset is not there, and every way to get it."""
    ways = [f"equiscale data build {card.build_hint}"]
    if card.published:
        ways.insert(0, f"equiscale data download {card.name}")
    return (
        f"dataset {card.name!r} is not in {directory}: run `{'` or `'.join(ways)}` "
        f"(another directory: set {CACHE_VARIABLE})"
    )


def _known_names(directory: Path) -> list[str]:
    built = sorted(path.stem for path in directory.glob(f"*{SUFFIX}"))
    return [*CARDS, *(name for name in built if name not in CARDS)]
