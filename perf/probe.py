"""Speed and memory of rendering photos of 12 megapixels: for a probe, and for a dataset.

The photos are generated. Each step runs in a process of its own: a probe with each background,
whose network does nothing, and building a dataset. The time is that of the processor, on one
thread, so that other programs disturb it little.

    python perf/probe.py --photos 40
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import write_results

from equiscale.build.photos import Box, Cutting, Photo, PhotoObject, PhotoTask, cut_photo
from equiscale.core.spec import Layout
from equiscale.probing import probe

SIDES = (4000, 3000)
BACKGROUNDS = ("own", "edge", "blur", "plain")
BUILD = "build"


def generate(directory: Path, photos: int) -> None:
    """Write photos of smooth noise."""
    generator = np.random.default_rng(0)
    for number in range(photos):
        noise = Image.fromarray(generator.integers(0, 256, (300, 400, 3), np.uint8))
        noise.resize(SIDES, Image.Resampling.BICUBIC).save(directory / f"{number}.jpg")


def probe_photos(directory: Path, background: str) -> int:
    """Render all photos for a network that does nothing, and return the number of images."""
    report = probe(lambda x: torch.eye(2)[[0] * len(x)], directory, background=background)
    return sum(row["images"] for row in report.rows)


def cut_photos(directory: Path) -> int:
    """Cut all photos for a dataset, and return the number of images."""
    sizes = (28, 40, 56, 80, 112, 136, 160, 224)
    cutting, box = Cutting(seed="", layout=Layout.of(224, sizes)), Box(0, 0, *SIDES)
    for path in sorted(directory.iterdir()):
        item = PhotoObject(Photo(path), box, "", path.name)
        assert cut_photo(PhotoTask(item.photo, (item,), cutting))
    return len(sizes) * len(list(directory.iterdir()))


def measure(directory: Path, step: str) -> None:
    """Print processor time per image and peak memory as JSON."""
    start = time.process_time()
    images = cut_photos(directory) if step == BUILD else probe_photos(directory, step)
    milliseconds = 1000 * (time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {
        "step": step,
        "processor_ms_per_image": round(milliseconds / images, 1),
        "processor_ms_per_photo": round(milliseconds / len(list(directory.iterdir()))),
        "peak_memory_mb": round(peak),
    }
    print(json.dumps(row))


def main() -> None:
    """Generate the photos, measure every step and write `perf/figures/probe.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=40)
    parser.add_argument("--directory", type=Path, help="of photos; measures one step")
    parser.add_argument("--step", default=BACKGROUNDS[0], choices=(*BACKGROUNDS, BUILD))
    arguments = parser.parse_args()
    if arguments.directory:
        torch.set_num_threads(1)
        measure(arguments.directory, arguments.step)
        return
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory), arguments.photos)
        rows = []
        for step in (*BACKGROUNDS, BUILD):
            command = [sys.executable, __file__, "--directory", directory, "--step", step]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(found.stdout) | {"photos": arguments.photos})
            print(rows[-1], flush=True)
    write_results("probe", rows)


if __name__ == "__main__":
    main()
