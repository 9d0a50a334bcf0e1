"""The gtsrb dataset, from the German Traffic Sign Recognition Benchmark."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from equiscale.build.choosing import Choice, build_from_photos, deal_tracks, shorter_side
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import Box, BoxError, Cutting, Photo, PhotoObject
from equiscale.build.sources import checked_directory, list_members, read_text
from equiscale.core.errors import SourceError
from equiscale.core.spec import STIR_LAYOUT, Layout
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
from equiscale.data.schema import StirArrays

_OUTER = "GTSRB"
_TRAINING_ARCHIVE = "GTSRB_Final_Training_Images.zip"
_TEST_ARCHIVE = "GTSRB_Final_Test_Images.zip"
_TEST_LABELS_ARCHIVE = "GTSRB_Final_Test_GT.zip"
_TRAINING = "Final_Training/Images"
_TEST = "Final_Test/Images"
_TEST_LABELS = "GT-final_test.csv"
_CLASSES = {
    1: "speed-limit-30",
    2: "speed-limit-50",
    4: "speed-limit-70",
    5: "speed-limit-80",
    9: "no-overtaking",
    11: "priority-at-next-crossing",
    12: "priority-road",
    13: "yield",
    14: "stop",
    18: "danger",
    23: "slippery-road",
    25: "roadworks",
    26: "traffic-signals",
    28: "children",
    35: "ahead-only",
    38: "keep-right",
}
_MAX_SIDE_DIFFERENCE = 0.15

Files = Mapping[str, Photo]
"""Where a file is, by its path below the folder GTSRB."""


@register_dataset(
    "gtsrb",
    title="STIR recipe: German traffic signs",
    description="16 traffic signs in photos, only ever scaled down. The photos end shortly beyond "
    "the sign: around small signs, most of the image repeats the photo's edge.",
    class_names=tuple(_CLASSES.values()),
    num_instances=25,
    channels=3,
    license="research use; photos: German Traffic Sign Recognition Benchmark",
    source="http://benchmark.ini.rub.de, GTSRB_Final_Training_Images.zip, "
    "GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip, in place or unpacked",
    citation=f"{STIR_CITATION}; J. Stallkamp, M. Schlipsing, J. Salmen, C. Igel, Man vs. computer: "
    "Benchmarking machine learning algorithms for traffic sign recognition, Neural Networks 32, "
    "2012",
    date="2026-11-17",
)
def build_gtsrb(
    source: Path,
    num_instances: int | None = None,
    skip_bad: bool = False,
    layout: Layout = STIR_LAYOUT,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the dataset from the official archives, unpacked or read in place.

    Train and valid come from `Final_Training`, test from `Final_Test`. The training photos of one
    physical sign are a track. A track goes to train or to valid as a whole.

    Both sides of a sign's box must have at least the largest object size, and differ by less than
    15 % of the longer one. The paper asks for a difference below 5 pixels. Few triangular signs
    meet that: their boxes are about a tenth wider than high.

    `source` holds `Final_Training` and `Final_Test` (perhaps in a folder `GTSRB`), or
    `GTSRB_Final_Training_Images.zip` and `GTSRB_Final_Test_Images.zip`; and the classes of the test
    photos, as `GT-final_test.csv` or `GTSRB_Final_Test_GT.zip`. The other arguments are those of
    every builder, see `equiscale.build`.
    """
    card = CARDS["gtsrb"]
    count = card.num_instances if num_instances is None else num_instances
    files = _index_files(checked_directory(source))
    signs = [
        sign
        for folder, table in _find_tables(source, files)
        for sign in _read_signs(table, folder, files, max(layout.sizes))
    ]

    def choose(usable: list[PhotoObject]) -> Choice:
        training = [sign for sign in usable if sign.key.startswith(_TRAINING)]
        test = [sign for sign in usable if sign.key.startswith(_TEST)]
        return deal_tracks(training, test, _track, shorter_side, card.class_names, count, source)

    cutting = Cutting(seed=card.name, layout=layout, stretch=True, skip_bad=skip_bad)
    return build_from_photos(signs, choose, card.metadata(), cutting, workers, progress)


def _index_files(source: Path) -> Files:
    """Find all files of the benchmark; an unpacked one replaces that of an archive."""
    files: dict[str, Photo] = {}
    for name in (_TRAINING_ARCHIVE, _TEST_ARCHIVE, _TEST_LABELS_ARCHIVE):
        if (source / name).is_file():
            for member in list_members(source / name):
                files[member.removeprefix(f"{_OUTER}/")] = Photo(source / name, member)
    for root in (source, source / _OUTER):
        for pattern in (_TEST_LABELS, f"{_TEST}/*", f"{_TRAINING}/*/*"):
            for path in root.glob(pattern):
                files[path.relative_to(root).as_posix()] = Photo(path)
    return files


def _find_tables(source: Path, files: Files) -> Iterator[tuple[str, Photo]]:
    """Yield each folder of photos with the table that has their boxes and classes."""
    for class_id in _CLASSES:
        folder = f"{_TRAINING}/{class_id:05}"
        table = f"{folder}/GT-{class_id:05}.csv"
        if table not in files:
            raise SourceError(source, f"no {table}", f"it there or in {_TRAINING_ARCHIVE}")
        yield folder, files[table]
    labels = files.get(_TEST_LABELS) or files.get(f"{_TEST}/{_TEST_LABELS}")
    if labels is None:
        raise SourceError(
            source, f"no {_TEST_LABELS}", f"the classes of the test photos: {_TEST_LABELS_ARCHIVE}"
        )
    yield _TEST, labels


def _read_signs(table: Photo, folder: str, files: Files, least: int) -> Iterator[PhotoObject]:
    """Yield the large, nearly square signs of the classes that have a name."""
    for row in csv.DictReader(read_text(table).splitlines(), delimiter=";"):
        try:
            label, key = _CLASSES.get(int(row["ClassId"])), f"{folder}/{row['Filename']}"
            box = Box(*(int(row[f"Roi.{side}"]) for side in ("X1", "Y1", "X2", "Y2")))
            width, height = int(row["Width"]), int(row["Height"])
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(
                table, f"a broken row ({error!r})", "Filename, Width, Height, Roi.* and ClassId"
            ) from error
        if label is None or not _is_suitable(box, least):
            continue
        if min(box.left, box.top) < 0 or box.right > width or box.bottom > height:
            raise BoxError(table, f"{box} of {key}", f"a box inside {width}×{height}")
        if key not in files:
            raise SourceError(table, f"no {key}", "the photo of each row")
        yield PhotoObject(files[key], box, label, key)


def _is_suitable(box: Box, least: int) -> bool:
    shorter, longer = sorted((box.width, box.height))
    return shorter >= least and longer - shorter < _MAX_SIDE_DIFFERENCE * longer


def _track(sign: PhotoObject) -> str:
    """Return the track `TTTTT` of a training photo `TTTTT_FFFFF.ppm`.

    Test photos have no tracks. Each of them is its own.
    """
    return PurePosixPath(sign.key).stem.partition("_")[0]
