"""The choices that builders offer. Imports nothing heavy: the command line names them too."""

from __future__ import annotations

from enum import Enum

from equiscale.core.errors import OptionError


class SignBackground(str, Enum):
    """What is behind a drawn sign: black, or a random colour per image."""

    PLAIN = "plain"
    RANDOM = "random"


class Background(str, Enum):
    """What is shown where a picture ends before the canvas does: its edge, or black."""

    EDGE = "edge"
    PLAIN = "plain"


class SourceFormat(str, Enum):
    """How a user's pictures are annotated."""

    AUTO = "auto"
    FOLDERS = "folders"
    COCO = "coco"
    YOLO = "yolo"


class ExportFormat(str, Enum):
    """How a dataset is exported."""

    PARQUET = "parquet"


def check_num_instances(count: int) -> None:
    """Refuse a dataset without instances."""
    if count < 1:
        raise OptionError(f"{count} instances per class: at least 1 is needed")
