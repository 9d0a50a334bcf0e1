"""The part of the German Traffic Sign Recognition Benchmark that our file was built from.

    python -m study.gtsrb_part GTSRB/ part/
    equiscale data build gtsrb --source part/

`GTSRB/` holds the unpacked benchmark: `Final_Training`, `Final_Test` and `GT-final_test.csv`. The
photos are those of gtsrb_photos.txt. They were not chosen for the study: of the 16 classes, signs
of at least 64 pixels, at most 75 training photos, spread over the tracks, and 40 test photos.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from pathlib import Path

PHOTOS = Path(__file__).with_name("gtsrb_photos.txt")
TEST_TABLE = "Final_Test/Images/GT-final_test.csv"


def copy_part(source: Path, target: Path, photos: Iterable[str]) -> None:
    """Copy photos, and of each table of their folders the rows that name one of them."""
    folders: dict[Path, set[str]] = {}
    for photo in map(Path, photos):
        folders.setdefault(photo.parent, set()).add(photo.name)
    for folder, names in folders.items():
        (target / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(source / folder / name, target / folder / name)
        table = folder / f"GT-{folder.name}.csv" if folder.name.isdigit() else Path(TEST_TABLE)
        beside = source / table.name  # where the archive of the test classes unpacks it
        path = beside if beside.exists() else source / table
        head, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [row for row in rows if row.partition(";")[0] in names]
        (target / table).write_text("".join([head, *kept]), encoding="utf-8")


def main() -> None:
    """Read the two directories from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    copy_part(arguments.source, arguments.target, PHOTOS.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    main()
