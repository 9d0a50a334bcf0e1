"""How long the page and the figures of a full study take: 5,500 synthetic records.

python perf/report.py [--scale 1.0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.runs import read_study
from equiscale.report.figures import write_figures
from equiscale.report.page import write_page


def main() -> None:
    """Write the records, then time reading them, the page and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the paper's seeds.")
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for datasets, seeds in ((("emoji",), 50), (("mnist", "trafficsign", "aerial"), 25)):
            chosen = range(1, round(seeds * scale) + 1)
            synthetic = SyntheticRuns(datasets=datasets, seeds=chosen, maps=False)
            write_records(synthetic.records(), root / "runs")
        started = time.perf_counter()
        study = read_study(root / "runs")
        read = time.perf_counter()
        write_page(study, root / "report.html")
        paged = time.perf_counter()
        write_figures(study, root / "figures")
        drawn = time.perf_counter()
        size = (root / "report.html").stat().st_size / 1e6
    print(f"{len(study.runs)} records: read {read - started:.1f} s, page {paged - read:.1f} s")
    print(f"({size:.2f} MB), all figures in three formats {drawn - paged:.1f} s")


if __name__ == "__main__":
    main()
