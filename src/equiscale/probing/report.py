"""What a probe found: tables, the usable range, a plot, a page."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equiscale import __version__
from equiscale.core.files import atomic_write, write_json
from equiscale.metrics import accuracy_interval, calibration_error, usable_range
from equiscale.probing.classes import short_name
from equiscale.probing.measuring import NOT_SHOWN, Answers, Subject
from equiscale.probing.pictures import Pictures

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

KEEP = 0.95
"""Share of the best accuracy that is kept in the usable range."""

_CONFUSIONS = 8
_TABLE_COLUMNS = {
    "object_size": "size",
    "images": "images",
    "accuracy": "accuracy",
    "agreement": "agreement",
    "confidence": "confidence",
    "calibration_error": "ECE",
    "milliseconds": "ms",
}


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found about one network.

    Attributes:
        subject: The network and how pictures were shown to it.
        answers: Its answers.
        outputs: Number of its outputs.
        output_names: Their names, if they are known.
        right: `[classes, outputs]`, whether an output is right for a class of the pictures; None
            without labels.
        labels: `[objects]`, the class of each object; empty without labels.
    """

    subject: Subject
    answers: Answers
    outputs: int
    output_names: tuple[str, ...] | None
    right: Tensor | None = field(repr=False)
    labels: Tensor = field(repr=False)

    @property
    def name(self) -> str:
        """How the network is called."""
        return self.subject.network.name

    def name_output(self, index: int) -> str:
        """Return the first name of an output, or its number."""
        return short_name(self.output_names[index]) if self.output_names else f"output {index}"

    @cached_property
    def shown(self) -> Tensor:
        """`[objects, sizes, places]`: whether there was an image."""
        return torch.from_numpy(self.answers.predicted != NOT_SHOWN)

    @cached_property
    def hits(self) -> Tensor | None:
        """`[objects, sizes, places]`: whether the answer is right; None without labels."""
        if self.right is None:
            return None
        predicted = torch.from_numpy(self.answers.predicted)
        return self.right[self.labels[:, None, None], predicted.clamp(min=0)] & self.shown

    @cached_property
    def agrees(self) -> Tensor:
        """`[objects, sizes, places]`: whether the answer is that at full size."""
        predicted = torch.from_numpy(self.answers.predicted)
        return (predicted == predicted[:, -1:, :1]) & self.shown

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per object size, ascending."""
        rendering = self.subject.rendering
        confidence = torch.from_numpy(self.answers.confidence)
        rows = []
        for column, size in enumerate(rendering.sizes):
            shown = self.shown[:, column]
            row: dict[str, Any] = {
                "network": self.name,
                "object_size": size,
                "share": size / rendering.canvas,
                "images": int(shown.sum()),
                **_shares("accuracy", None if self.hits is None else self.hits[:, column], shown),
                **_shares("agreement", self.agrees[:, column], shown),
                "confidence": float(confidence[:, column][shown].mean()),
                "calibration_error": None,
                "milliseconds": float(self.answers.milliseconds[column]),
            }
            if self.hits is not None:
                error = calibration_error(confidence[:, column][shown], self.hits[:, column][shown])
                row["calibration_error"] = float(error)
            rows.append(row)
        return rows

    @cached_property
    def usable_range(self) -> tuple[int, int] | None:
        """Smallest and largest usable object size; None if the accuracy is no better than chance.

        At these sizes the accuracy, or without labels the agreement, is at least 95 % of its best.
        The best is better than chance if its confidence interval lies above what the same answers
        would get if they were given to the objects in random order.
        """
        what = "agreement" if self.hits is None else "accuracy"
        rows = self.rows
        if self.right is not None:
            best = max(range(len(rows)), key=lambda column: rows[column]["accuracy_low"])
            if rows[best]["accuracy_low"] <= self._chance(best, self.right):
                return None
        low, high = usable_range(
            torch.tensor([row["object_size"] for row in rows]),
            torch.tensor([row[what] for row in rows], dtype=torch.float64),
            KEEP,
        )
        return int(low), int(high)

    def _chance(self, column: int, right: Tensor) -> float:
        """Return the accuracy to expect from the answers at a size in random order."""
        item, place = self.shown[:, column].nonzero(as_tuple=True)
        answers = torch.from_numpy(self.answers.predicted)[item, column, place]
        shares = right[self.labels[item]].double().mean(dim=0)  # of objects, by right output
        return max(float(shares[answers].mean()), 1 / self.outputs)

    def confusions(self, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the most frequent wrong answers about small objects, most frequent first.

        Small are the sizes below the usable range or, if there are none, the smallest third.
        Without labels, "wrong" means another answer than at full size.
        """
        sizes = self.subject.rendering.sizes
        lowest = self.usable_range[0] if self.usable_range else sizes[-1]
        small = [i for i, size in enumerate(sizes) if size < lowest] or range(-(-len(sizes) // 3))
        counts, totals = Counter[tuple[str, str]](), Counter[str]()
        wrong = ~(self.agrees if self.hits is None else self.hits)
        predicted = self.answers.predicted
        for item, column, place in self.shown.nonzero().tolist():
            if column in small:
                full = self.name_output(int(predicted[item, -1, 0]))
                truth = full if self.hits is None else class_names[int(self.labels[item])]
                totals[truth] += 1
                if wrong[item, column, place]:
                    answer = self.name_output(int(predicted[item, column, place]))
                    counts[truth, answer] += 1
        return [
            {
                "network": self.name,
                "shown": truth,
                "answered": answer,
                "images": count,
                "share": count / totals[truth],
                "sizes": [sizes[small[0]], sizes[small[-1]]],
            }
            for (truth, answer), count in counts.most_common(_CONFUSIONS)
        ]


def _shares(name: str, hits: Tensor | None, shown: Tensor) -> dict[str, float | None]:
    """Return the share of hits and its interval; places of one object count as one sample."""
    if hits is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    share = hits.sum() / shown.sum()
    low, high = accuracy_interval(share, shown.any(dim=1).sum())
    return {name: float(share), f"{name}_low": float(low), f"{name}_high": float(high)}


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """How networks cope with object size.

    `print(report)` shows a table; `report.write_page("probe.html")` writes the page.

    Attributes:
        findings: What was found about each network, in their order.
        pictures: What they were shown.
        notes: What a reader has to know about the pictures and classes.
    """

    findings: tuple[Finding, ...]
    pictures: Pictures
    notes: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per network and object size."""
        return [row for finding in self.findings for row in finding.rows]

    @property
    def table(self) -> pl.DataFrame:
        """One row per network and object size.

        `accuracy` and `agreement` (with the network's own answer at full size) come with 95 %
        confidence intervals, `*_low` and `*_high`. `share` is the object's part of the canvas's
        side; `calibration_error` is the expected calibration error. Without labels, `accuracy`
        and `calibration_error` are null.
        """
        import polars as pl

        import equiscale.analysis  # noqa: F401 - says how to install what is missing

        return pl.DataFrame(self.rows, infer_schema_length=None)

    @property
    def usable_range(self) -> dict[str, tuple[int, int] | None]:
        """Smallest and largest usable object size of each network; see `Finding.usable_range`."""
        return {finding.name: finding.usable_range for finding in self.findings}

    @property
    def confusions(self) -> list[dict[str, Any]]:
        """The most frequent wrong answers about small objects; see `Finding.confusions`."""
        names = self.pictures.class_names
        return [row for finding in self.findings for row in finding.confusions(names)]

    @property
    def labelled(self) -> bool:
        """Whether the classes of the pictures are known."""
        return bool(self.pictures.class_names)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        return {
            "made_with": f"equiscale {__version__}",
            "pictures": {
                "source": str(self.pictures.source),
                "objects": len(self.pictures.objects),
                "classes": list(self.pictures.class_names),
                "cutouts": self.pictures.cutouts,
            },
            "notes": list(self.notes),
            "networks": [
                {
                    "name": finding.name,
                    "outputs": finding.outputs,
                    "usable_range": finding.usable_range,
                    "preprocess": dataclasses.asdict(finding.subject.network.preprocess),
                    "rendering": dataclasses.asdict(finding.subject.rendering),
                }
                for finding in self.findings
            ],
            "table": self.rows,
            "confusions": self.confusions,
        }

    def write_json(self, path: str | Path) -> Path:
        """Write everything as JSON."""
        write_json(Path(path), self.to_dict())
        return Path(path)

    def write_csv(self, path: str | Path) -> Path:
        """Write the table as CSV."""
        return _write_text(path, self.table.write_csv())

    def write_page(self, path: str | Path) -> Path:
        """Write one self-contained HTML file, with pictures as the networks see them."""
        from equiscale.probing.page import render_probe_page

        return _write_text(path, render_probe_page(self))

    def plot(self) -> Figure:
        """Draw accuracy (if there are labels), agreement and confidence over object size."""
        from equiscale.probing.plot import plot_report

        return plot_report(self)

    def __str__(self) -> str:
        parts = [
            "\n".join([f"{f.name}: {_describe_range(f.usable_range)}", *_text_table(f.rows)])
            for f in self.findings
        ]
        return "\n\n".join([*parts, "\n".join(f"note: {note}" for note in self.notes)]).rstrip()


def _write_text(path: str | Path, text: str) -> Path:
    with atomic_write(Path(path)) as file:
        file.write(text.encode())
    return Path(path)


def _describe_range(found: tuple[int, int] | None) -> str:
    if found is None:
        return "nowhere better than chance, so not usable, or too few pictures to tell"
    low, high = found
    return f"usable at {low} pixels only" if low == high else f"usable from {low} to {high} pixels"


def _text_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    columns = [name for name in _TABLE_COLUMNS if rows[0][name] is not None]
    table = [[_TABLE_COLUMNS[name] for name in columns]]
    table += [[_format(name, row[name]) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(cells, widths, strict=True))
        for cells in table
    ]


def _format(name: str, value: float) -> str:
    if name in ("object_size", "images"):
        return str(value)
    return f"{value:.1f}" if name == "milliseconds" else f"{100 * value:.1f} %"
