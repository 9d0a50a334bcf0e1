"""The choices that builders offer. Imports nothing heavy: the command line names them too."""

from __future__ import annotations

from enum import Enum


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
