"""Speed and memory of rendering photos for a probe: 12-megapixel photos, seven object sizes.

The photos are generated. Each background runs in a process of its own. A network that does nothing
answers, so that all time is spent on decoding and rendering.

    python perf/probe.py --photos 40
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equiscale.probing import probe

SIDES = (4000, 3000)
BACKGROUNDS = ("own", "edge", "blur", "plain")


def generate(directory: Path, photos: int) -> None:
    """Write photos of smooth noise."""
    generator = np.random.default_rng(0)
    for number in range(photos):
        noise = Image.fromarray(generator.integers(0, 256, (300, 400, 3), np.uint8))
        noise.resize(SIDES, Image.Resampling.BICUBIC).save(directory / f"{number}.jpg")


def measure(directory: Path, background: str) -> None:
    """Print milliseconds per image and peak memory."""
    start = time.perf_counter()
    report = probe(lambda x: torch.eye(2)[[0] * len(x)], directory, background=background)
    seconds = time.perf_counter() - start
    images = sum(row["images"] for row in report.rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{background:6} {1000 * seconds / images:7.1f} ms per image, "
        f"{1000 * seconds / len(report.pictures.objects):7.0f} ms per photo, {peak:6.0f} MB"
    )


def main() -> None:
    """Generate the photos and measure every background."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=40)
    parser.add_argument("--directory", type=Path, help="of photos; measures one background")
    parser.add_argument("--background", default="own")
    arguments = parser.parse_args()
    if arguments.directory:
        measure(arguments.directory, arguments.background)
        return
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory), arguments.photos)
        for background in BACKGROUNDS:
            command = [sys.executable, __file__, "--directory", directory]
            subprocess.run([*command, "--background", background], check=True)


if __name__ == "__main__":
    main()
