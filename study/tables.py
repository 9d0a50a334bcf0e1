"""Our runs as Markdown tables, each a function of the records alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from equiscale import Scenario, list_models
from equiscale.analysis.comparison import published_accuracy
from equiscale.core.protocol import PROTOCOL_VERSION, TrainingProtocol, protocol_changes
from equiscale.core.variants import VARIANTS
from equiscale.data.catalog import CARDS
from equiscale.models import model_card
from equiscale.report.figures import MAIN_MODELS
from equiscale.report.style import order_datasets
from equiscale.runs.record import RunRecord
from study import claims
from study.evidence import (
    FEWEST,
    NONE,
    RATES,
    TRAINING,
    TRANSFER,
    Evidence,
    correlation,
    load_records,
    markdown_table,
    measured,
    percent,
    processors,
    published_nine,
    ratio,
)

CONFUSED = (("mnist", Scenario.SMALL_TO_LARGE), ("emoji", Scenario.LARGE_TO_SMALL))


Row = tuple[str, str, list[Any]]
"""A model, the changes of its training, and its cells of the three transfer scenarios."""

HEADLINE = ("standard", "pixel_pool", "scale_channels")
SCALE_CHANNELS = ("deep_channels", "scale_channels")
PHOTOS = ("standard", "hermite", "deep_channels")
NUM_HIGHLIGHTS = 5
BACKBONE = {
    "plain": {"model": "study.backbone:ResidualNet", "protocol": PROTOCOL_VERSION},
    "trained on rescaled images": {
        "model": "study.backbone:ResidualNet",
        "protocol": TrainingProtocol(augmentation="rescale").label,
    },
    "in scale channels": {"model": "study.backbone:wrapped_net", "protocol": PROTOCOL_VERSION},
    "global maximum": {"model": "study.backbone:max_net", "protocol": PROTOCOL_VERSION},
    "global maximum, in scale channels with random views": {
        "model": "study.backbone:robust_net",
        "protocol": PROTOCOL_VERSION,
    },
}
"""The residual network of `backbone.py`, and how it is trained."""

USUAL_RATE = 1e-3
RATE_EPOCHS = 5


def models(evidence: Evidence) -> str:
    """Every model of the package, without variants."""
    rows = [
        [
            f"`{card.name}`",
            card.group,
            card.title,
            card.citation,
            f"{card.count_parameters():,}",
            _show_options(card.options),
        ]
        for card in map(model_card, list_models())
        if card.group != "own" and card.base is None
    ]
    headings = ["model", "group", "title", "proposed by", "parameters", "options"]
    return markdown_table(headings, rows)


def variants(evidence: Evidence) -> str:
    """Every variant: its base, its options, what differs."""
    rows = [
        [f"`{name}`", one.group, f"`{one.base}`, {_show_options(one.options)}", one.title]
        for name, one in VARIANTS.items()
    ]
    return markdown_table(["variant", "group", "model and options", "what differs"], rows)


def _show_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={_show(value)}`" for name, value in options.items())


def _show(value: object) -> str:
    """Return the value of an option; of a list, numbers to three digits and long ones shortened."""
    if not isinstance(value, tuple):
        return repr(value)
    numbers = [format(item, ".3g") for item in value]
    if len(numbers) > 10:
        numbers[2:-1] = ["…"]
    return f"({', '.join(numbers)})"


def results(evidence: Evidence) -> str:
    """Accuracy on the unseen sizes of emoji, and cost, of every model that was run."""
    return _models_table(evidence, _model_rows(evidence))


def traffic_signs(evidence: Evidence) -> str:
    """The same on photos of traffic signs, beside the published figures for other photos."""
    theirs = {
        scenario: dict(published_nine("trafficsign", scenario).select("model", "mean").iter_rows())
        for scenario in TRANSFER
    }
    rows: list[list[str]] = []
    ours: dict[Scenario, dict[str, float]] = {scenario: {} for scenario in TRANSFER}
    for name, changes, cells in _model_rows(evidence, "gtsrb"):
        row = [_label(name, changes)]
        for scenario, cell in zip(TRANSFER, cells, strict=True):
            published = None if changes else theirs[scenario].get(name)
            row += [_accuracy(cell), percent(published)]
            if cell and published:
                ours[scenario][name] = cell["mean"]
        rows.append(row)
    headings = [title for s in TRANSFER for title in (s.value, "published")]
    table = markdown_table(["model", *headings], rows)
    found = [
        f"{scenario.value} {_rank_correlation(means, theirs[scenario]):.2f} ({len(means)} models)"
        for scenario, means in ours.items()
        if len(means) > FEWEST
    ]
    return f"{table}\nSpearman's rank correlation of ours and published: {', '.join(found)}.\n"


def _rank_correlation(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    return float(spearmanr(list(ours.values()), [theirs[model] for model in ours]).statistic)


def highlights(evidence: Evidence) -> str:
    """The models of the picture and the best others that ran in all scenarios, also on photos."""
    rows = [row for row in _model_rows(evidence) if None not in row[2]]
    shown = [row for row in rows if row[0] in HEADLINE and not row[1]]
    best = [row for row in rows if row[1] or model_card(row[0]).group != "control"]
    shown += [row for row in best if row not in shown][: NUM_HIGHLIGHTS - len(shown)]
    photos = {row[:2]: row[2] for row in _model_rows(evidence, "gtsrb")}
    both = [
        (name, changes, [*cells, photos.get((name, changes), [None] * 3)[1]])
        for name, changes, cells in rows
        if (name, changes, cells) in shown
    ]
    return _models_table(evidence, both, "photos, mid2rest")


def _model_rows(evidence: Evidence, dataset: str = "emoji") -> list[Row]:
    """Return every model and every change of its training, the best first."""
    rows: list[Row] = []
    for name in list_models():
        cells = [evidence.cell(dataset, scenario, name) for scenario in TRANSFER]
        if any(cells):
            rows.append((name, "", cells))
    known = pl.col("model").is_in(list_models())
    others = evidence.study.cells.filter(known, dataset=dataset, options="")
    how = ("protocol", "model", "learning_rate")
    for (protocol, name, rate), part in others.group_by(how, maintain_order=True):
        if changes := _changes(str(name), str(protocol)):
            changes += "" if rate == USUAL_RATE else f" lr={rate:g}"
            found = {row["scenario"]: row for row in part.to_dicts()}
            rows.append((str(name), changes, [found.get(s.value) for s in TRANSFER]))
    return sorted(rows, key=lambda row: (row[2].count(None), -_mean_of_cells(row[2])))


def _models_table(evidence: Evidence, rows: Sequence[Row], *further: str) -> str:
    columns = [*(s.value for s in TRANSFER), *further]
    headings = ["model", "parameters", *columns, "training step", "inference"]
    means = [_best_published("emoji", scenario) for scenario in TRANSFER]
    best = ["*best published mean*", NONE, *means, *(NONE for _ in further), NONE, NONE]
    return markdown_table(headings, [*(_model_row(evidence, *row) for row in rows), best])


def _mean_of_cells(cells: Sequence[Any]) -> float:
    return float(np.mean([cell["mean"] for cell in cells if cell]))


def _model_row(evidence: Evidence, name: str, changes: str, cells: Sequence[Any]) -> list[str]:
    cost = evidence.costs.get(name, {})
    ratios = [ratio(cost.get(key)) for key in ("training_step_ratio", "inference_ratio")]
    return [
        _label(name, changes),
        f"{model_card(name).count_parameters():,}",
        *map(_accuracy, cells),
        *ratios,
    ]


def _changes(model: str, protocol: str) -> str:
    """Return how a training differs from the one that is meant for the model."""
    return "" if protocol == TRAINING.get(model) else protocol_changes(protocol)


def _label(model: str, changes: str) -> str:
    return f"`{model}`, {changes}" if changes else f"`{model}`"


def _accuracy(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NONE
    spread = "" if cell["std"] is None else f" ± {percent(cell['std'])}"
    return f"{percent(cell['mean'])}{spread} ({cell['runs']})"


def _best_published(dataset: str, scenario: Scenario) -> str:
    return f"*{percent(published_nine(dataset, scenario)['mean'][0])}*"


def published(evidence: Evidence) -> str:
    """Every cell that is published and that we ran, of the paper's protocol."""
    compared = evidence.paper.published.filter("same_rate")
    rows = []
    for row in compared.iter_rows(named=True):
        deviation = row["difference"] / row["published_std"]
        theirs = f"{percent(row['published'])} ± {percent(row['published_std'])}"
        within = "yes" if row["near"] else "**no**"
        cell = [row["dataset"], row["scenario"], f"`{row['model']}`", row["runs"]]
        shown = percent(row["mean"]), theirs, f"{deviation:+.1f}", within
        rows.append([*cell, *shown, f"{row['near_runs']} of {row['runs']}"])
    headings = ["dataset", "scenario", "model", "our seeds", "ours", "published mean ± sd"]
    table = markdown_table([*headings, "difference in sd", "within 2 sd", "single runs"], rows)
    cells, runs = (compared[name].sum() for name in ("near", "near_runs"))
    verdict = (
        f"The means of {cells} of {len(rows)} cells and {runs} of {compared['runs'].sum()} single "
        "runs lie within two published standard deviations of the published mean."
    )
    return f"{table}\n{verdict}\n"


def others(evidence: Evidence) -> str:
    """Every cell without a published counterpart: our models, datasets and controls."""
    known = set(published_accuracy().select("dataset", "scenario", "model", "lr").iter_rows())
    rows = []
    for row in evidence.study.cells.filter(variant=False).iter_rows(named=True):
        cell = (row["dataset"], row["scenario"], row["model"])
        changes = protocol_changes(row["protocol"])
        if (*cell, row["learning_rate"]) not in known or changes:
            model = _label(row["model"], changes)
            each = ", ".join(percent(value) for value in row["accuracies"])
            rows.append([*cell[:2], model, f"{row['learning_rate']:g}", percent(row["mean"]), each])
    return markdown_table(["dataset", "scenario", "model", "lr", "mean", "all seeds"], rows)


def transfer(evidence: Evidence) -> str:
    """Every cell of both models with scale channels, beside standard and the best published one."""
    rows = []
    for dataset in evidence.datasets:
        for scenario in TRANSFER:
            cells = [evidence.cell(dataset, scenario, model) for model in SCALE_CHANNELS]
            if any(cells):
                nine = published_nine(dataset, scenario)
                best = f"{percent(nine['mean'][0])}, `{nine['model'][0]}`" if len(nine) else NONE
                plain = percent(evidence.mean(dataset, scenario, "standard"))
                rows.append([dataset, scenario.value, *map(_all_seeds, cells), plain, best])
    names = [f"`{model}`" for model in (*SCALE_CHANNELS, "standard")]
    return markdown_table(["dataset", "scenario", *names, "best published mean"], rows)


def _all_seeds(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NONE
    each = ", ".join(percent(value) for value in cell["accuracies"])
    return f"{percent(cell['mean'])} ({each})" if cell["runs"] > 1 else each


def quickness(evidence: Evidence) -> str:
    """Training until deep_channels validates as well as standard ever does, over seeds of both."""
    rows = []
    for dataset in evidence.datasets:
        for scenario in TRANSFER:
            plain, deep = (
                {record.key.seed: record for record in evidence.records(model, dataset, scenario)}
                for model in ("standard", "deep_channels")
            )
            seeds = sorted(plain.keys() & deep.keys())
            if seeds:
                epochs = np.array([_epochs_to_best(plain[seed], deep[seed]) for seed in seeds])
                shown = (", ".join(f"{epoch:g}" for epoch in column) for column in epochs.T)
                longer = epochs[:, 1].mean() / epochs[:, 0].mean()
                share = float(np.mean([_training_share(plain[seed]) for seed in seeds]))
                times = _relative_times(evidence, longer, share)
                whole = [[len(runs[seed].history) for seed in seeds] for runs in (plain, deep)]
                all_of_it = _relative_times(evidence, sum(whole[1]) / sum(whole[0]), share)
                rows.append([dataset, scenario.value, *shown, *times, all_of_it[1]])
    headings = ["dataset", "scenario", "epochs of `standard`", "epochs of `deep_channels`"]
    headings += ["training, relative", "with validation", "whole runs"]
    return markdown_table(headings, rows)


def _epochs_to_best(plain: RunRecord, deep: RunRecord) -> tuple[float, float]:
    """Return when each run first had the best validation accuracy of the first one."""
    curves = [record.history.valid_accuracy for record in (plain, deep)]
    best = max(curves[0])
    first, second = (
        next((epoch for epoch, found in enumerate(curve, start=1) if found >= best), math.inf)
        for curve in curves
    )
    return first, second


def _training_share(record: RunRecord) -> float:
    """Return which part of an epoch's time is not validation."""
    whole, training = (np.median(record.timings[f"{part}_seconds"]) for part in ("epoch", "train"))
    return float(training / whole)


def _relative_times(evidence: Evidence, longer: float, share: float) -> tuple[str, str]:
    """Return how long deep_channels takes, relative to standard, without and with validation."""
    cost = evidence.costs["deep_channels"]
    step, inference = cost["training_step_ratio"], cost["inference_ratio"]
    return ratio(longer * step), ratio(longer * (share * step + (1 - share) * inference))


def learning_rates(evidence: Evidence) -> str:
    """Best validation accuracy of five epochs on gtsrb mid2rest, at both learning rates."""
    higher = {
        record.key.model: max(record.history.valid_accuracy) for record in load_records(RATES)
    }
    rows = []
    for model in MAIN_MODELS:
        usual = evidence.records(model, "gtsrb", Scenario.MID_TO_REST)
        lower = max(usual[0].history.valid_accuracy[:RATE_EPOCHS]) if usual else None
        rows.append([f"`{model}`", percent(lower), percent(higher.get(model))])
    return markdown_table(["model", "1e-3", "1e-2"], rows)


BANDS = ((17, 24), (25, 32), (33, 48), (49, 56), (57, 64))


def photos(evidence: Evidence) -> str:
    """On gtsrb, in bands of sizes: deep_channels, the best of the paper's nine and standard."""
    everywhere = evidence.curve("gtsrb", Scenario.ALL_TO_ALL, "deep_channels")
    rows = []
    for scenario in TRANSFER:
        means = {m: evidence.mean("gtsrb", scenario, m) for m in MAIN_MODELS}
        ranked = sorted((m for m in means if means[m] is not None), key=lambda m: -(means[m] or 0))
        for model in dict.fromkeys(["deep_channels", *ranked[:2], "standard"]):
            curve = evidence.curve("gtsrb", scenario, model)
            if curve is not None:
                unseen = evidence.mean("gtsrb", scenario, model)
                rows.append(_photo_row(scenario.value, f"`{model}`", unseen, curve))
        if everywhere is not None:
            bound = float(np.mean([everywhere[size] for size in scenario.test_sizes()]))
            label = "`deep_channels`, trained on all sizes"
            rows.append(_photo_row(scenario.value, label, bound, everywhere))
    ends = (f"{low}–{high} px" for low, high in BANDS)
    return markdown_table(["scenario", "model", "unseen sizes", *ends], rows)


def _photo_row(
    scenario: str, model: str, unseen: float | None, curve: Mapping[int, float]
) -> list[str]:
    bands = (np.mean([curve[size] for size in range(low, high + 1)]) for low, high in BANDS)
    return [scenario, model, percent(unseen), *(percent(float(mean)) for mean in bands)]


def backbone_curves(evidence: Evidence, scenario: Scenario) -> dict[str, dict[int, float]]:
    """Return accuracy by object size of each way to train the residual network."""
    found = {}
    for label, case in BACKBONE.items():
        runs = evidence.study.where(dataset="gtsrb", scenario=scenario.value, **case)
        if len(runs.runs):
            found[label] = dict(runs.sizes.select("object_size", "mean").iter_rows())
    return found


def backbone(evidence: Evidence) -> str:
    """A residual network on gtsrb in bands of sizes: plain, augmented, in scale channels."""
    rows = []
    for scenario in TRANSFER:
        for label, curve in backbone_curves(evidence, scenario).items():
            unseen = float(np.mean([curve[size] for size in scenario.test_sizes()]))
            rows.append(_photo_row(scenario.value, label, unseen, curve))
    ends = (f"{low}–{high} px" for low, high in BANDS)
    return markdown_table(["scenario", "network", "unseen sizes", *ends], rows)


SHOWN_SIZES = (17, 20, 24, 32, 48, 56, 64)
NEAR = 0.02


def channel_sizes(evidence: Evidence) -> str:
    """Accuracy of scale_channels at some object sizes, and where it is far from its best."""
    rows = []
    for dataset in evidence.datasets:
        for scenario in TRANSFER:
            mean = evidence.curve(dataset, scenario, "scale_channels")
            if mean is not None:
                trained = float(np.mean([mean[size] for size in scenario.train_sizes()]))
                far = [size for size in scenario.test_sizes() if mean[size] < trained - NEAR]
                shown = [percent(mean[size]) for size in SHOWN_SIZES]
                ends = f"{len(far)}: {_spans(far)}" if far else "0"
                rows.append([dataset, scenario.value, percent(trained), *shown, ends])
    headings = ["dataset", "scenario", "trained sizes", *(f"{size} px" for size in SHOWN_SIZES)]
    return markdown_table([*headings, "unseen sizes more than two points below the trained"], rows)


def _spans(sizes: Sequence[int]) -> str:
    """Return sorted sizes in words.

    Examples:
        >>> _spans([17, 18, 19, 40])
        '17–19, 40'
    """
    spans: list[list[int]] = []
    for size in sorted(sizes):
        if spans and size == spans[-1][-1] + 1:
            spans[-1].append(size)
        else:
            spans.append([size])
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 1 else f"{s[0]}" for s in spans)


def batch_norm(evidence: Evidence) -> str:
    """Accuracy of networks with and without normalisation, wrapped and not."""
    rows = measured("batch_norm")
    wrappers = list(dict.fromkeys(row["wrapper"] for row in rows))
    found = {(row["norm"], row["wrapper"]): row["accuracies"] for row in rows}
    lines = [
        [norm, *(_range(found[norm, wrapper]) for wrapper in wrappers)]
        for norm in dict.fromkeys(row["norm"] for row in rows)
    ]
    return markdown_table(["normalisation", *wrappers], lines)


def _range(values: Sequence[float]) -> str:
    return f"{percent(float(np.mean(values)))} ({percent(min(values))} to {percent(max(values))})"


def ablations(evidence: Evidence) -> str:
    """Runs of scale_channels in which one thing was changed, beside those as it is."""
    return _ablations(evidence, "scale_channels")


def photo_ablations(evidence: Evidence) -> str:
    """The same of deep_channels."""
    return _ablations(evidence, "deep_channels")


def _ablations(evidence: Evidence, model: str) -> str:
    own = evidence.usual.cells.filter(model=model)
    changed = own.filter(pl.col("options") != "")
    columns = _columns(set(changed.select("dataset", "scenario").iter_rows()))
    rows = []
    for options in own["options"].unique().sort():
        cells = [evidence.cell(*column, model, options) for column in columns]
        rows.append([_options(options), *map(_accuracy, cells)])
    return markdown_table(["changed", *_headings(columns)], rows)


def _columns(asked: Set[tuple[str, str]]) -> list[tuple[str, Scenario]]:
    """Return those datasets and transfer scenarios that were asked, in their usual order."""
    datasets = order_datasets(sorted({dataset for dataset, _ in asked}))
    return [
        (d, scenario) for d in datasets for scenario in TRANSFER if (d, scenario.value) in asked
    ]


def _headings(columns: Sequence[tuple[str, Scenario]]) -> list[str]:
    return [f"{dataset}, {scenario.value}" for dataset, scenario in columns]


def stopping(evidence: Evidence) -> str:
    """How the accuracy of scale_channels goes with the epochs before it stopped improving.

    All its runs on emoji count, but those that pad or pool in another way.
    """
    runs = evidence.study.runs.filter(
        ~pl.col("options").str.contains('"padding"|"pool"'), model="scale_channels", dataset="emoji"
    )
    rows = []
    for scenario in TRANSFER:
        own = runs.filter(pl.col("scenario") == scenario.value)
        if len(own) >= FEWEST:
            best, valid = (sorted(own[name]) for name in ("best_epoch", "valid_accuracy"))
            span = f"{best[0]}–{best[-1]}", f"{percent(valid[0])}–{percent(valid[-1])}"
            rows.append([scenario.value, *span, correlation(own, "best_epoch")])
    headings = ["scenario", "best epoch", "validation", "r of best epoch and accuracy"]
    return markdown_table(headings, rows)


def _options(text: str) -> str:
    """Return the options of a variant as a person would write them."""
    given = json.loads(text or "{}")
    return ", ".join(f"`{name}={_rounded(value)}`" for name, value in given.items()) or "nothing"


def _rounded(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_rounded, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def channel_pooling(evidence: Evidence) -> str:
    """Answers of trained scale channels combined in other ways, from `perf/channels.py`."""
    frame = pl.DataFrame(measured("channels"))
    means = frame.group_by("label", "dataset", "scenario", maintain_order=True).agg(
        pl.col("accuracy").mean(), pl.len()
    )
    found = {row[:3]: f"{percent(row[3])} ({row[4]})" for row in means.iter_rows()}
    columns = _columns(set(frame.select("dataset", "scenario").iter_rows()))
    rows = [
        [label, *(found.get((label, *column), NONE) for column in columns)]
        for label in dict.fromkeys(frame["label"])
    ]
    best = ["*best published mean*", *(_best_published(*column) for column in columns)]
    return markdown_table(["pooling and factors", *_headings(columns)], [*rows, best])


def channels_alone(evidence: Evidence) -> str:
    """Each view by itself on mnist small2large, from `perf/channels.py`."""
    runs = pl.DataFrame(measured("channels_alone"))
    chosen = runs.filter(dataset="mnist", scenario="small2large", seed=1)
    rows = [
        [
            f"{row['size']} px",
            *(
                f"{percent(accuracy)} ({row['size'] * factor:.0f} px, {_two_digits(certainty)})"
                for factor, accuracy, certainty in zip(
                    row["factors"], row["alone"], row["certainty_when_wrong"], strict=True
                )
            ),
            percent(row["accuracy"]),
            "{} as {}: {}".format(*row["errors"][0]) if row["errors"] else NONE,
        ]
        for row in chosen.iter_rows(named=True)
    ]
    factors = [f"view × {factor:.2f}" for factor in runs["factors"][0]]
    return markdown_table(["digit", *factors, "mixture", "most frequent error"], rows)


def _two_digits(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def confusions(evidence: Evidence) -> str:
    """What scale_channels takes for what at unseen sizes, where it misses most."""
    rows = []
    for dataset, scenario in CONFUSED:
        for record in evidence.records("scale_channels", dataset, scenario):
            found, tested = record.predictions, scenario.test_sizes()
            wrong = np.isin(found.object_sizes, tested) & (found.predicted != found.labels)
            pairs = Counter(zip(found.labels[wrong], found.predicted[wrong], strict=True))
            names = CARDS[dataset].class_names
            common = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:5]
            shown = ", ".join(f"{names[a]} as {names[b]}: {count}" for (a, b), count in common)
            asked = int(np.isin(found.object_sizes, tested).sum())
            errors = f"{wrong.sum()} of {asked}"
            rows.append([dataset, scenario.value, record.key.seed, errors, shown])
    headings = ["dataset", "scenario", "seed", "errors at unseen sizes", "most frequent"]
    return markdown_table(headings, rows)


def costs(evidence: Evidence) -> str:
    """Time, memory and operations of every model, measured side by side."""
    rows = [
        [
            f"`{name}`",
            ratio(row["training_step_ratio"]),
            ratio(row["inference_ratio"]),
            f"{row['peak_memory_mb']:.0f}",
            f"{row['forward_gflop']:.1f}",
        ]
        for name, row in evidence.costs.items()
    ]
    headings = ["model", "training step", "inference", "peak memory, MB", "GFLOP"]
    return f"{markdown_table(headings, rows)}\n{processors('models')}"


LAYER_LABELS = {
    "training step": "training step, `{}` / `standard`",
    "inference": "inference, `{}` / `standard`",
    "inference without compiled code": "inference without compiled code, `{}` / `standard`",
    "forward and backward, 64×64": "one layer 16→32 at 64×64, dense gradient, {} pooling / Conv2d",
    "inference of one image": "inference of one image, `{}` / `standard`",
    "training step of ResNet-18, 224×224": "training step of ResNet-18 at 224×224, {} / plain",
    "forward of one layer 16→32, pixel pooling": (
        "one layer 16→32 forward at {0}×{0}, pixel pooling / Conv2d"
    ),
    "unpooled stack, to direct's": "unpooled stack 16→32 at 64×64, {} / direct",
    "peak memory above standard's (MB)": "peak memory of a step, `{}` above `standard` (MB)",
}


def layer_cost(evidence: Evidence) -> str:
    """What the scaled convolution costs, from `perf/layer.py`: a column per number of threads."""
    found: dict[str, dict[int, str]] = {}
    parts = [f"layer_{part}" for part in ("networks", "layer", "resnet", "memory", "sizes")]
    for row in [row for part in parts for row in measured(part)]:
        if row.get("model", row.get("method")) in ("standard", "Conv2d", "direct", "plain", "auto"):
            continue
        if row.get("n", 128) < 128:
            continue
        what = row.get("what", "forward of one layer 16→32, pixel pooling")
        label = LAYER_LABELS[what].format(row.get("model", row.get("n")))
        value = row.get("ratio", row.get("megabytes"))
        found.setdefault(label, {})[row.get("threads", 1)] = f"{value:.2g}"
    counts = sorted({count for values in found.values() for count in values})
    rows = [[what, *(values.get(n, "") for n in counts)] for what, values in found.items()]
    table = markdown_table(["what", *(_threads(n) for n in counts)], rows)
    return f"{table}\n{processors(*parts)}"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def layer_choices(evidence: Evidence) -> str:
    """What `auto` makes of many shapes, from `perf/layer.py shapes`."""
    rows = []
    for row in measured("layer_shapes"):
        options = dict(row["layer"])
        channels = f"{options.pop('in_channels')}→{options.pop('out_channels')}"
        layer = f"{channels}, k = {options.pop('kernel_size')}"
        layer += "".join(f", {name} {_listed(value)}" for name, value in options.items())
        shape = "×".join(map(str, row["input"]))
        rows.append([layer, shape, f"{row['spectral']:.2g}", f"{row['auto/best']:.2f}"])
    return markdown_table(["layer", "input", "spectral / direct", "auto / the better"], rows)


STEPS = 214_380
"""Training steps of 16 images per epoch of all runs of one model that the paper reports."""

EMOJI_STEPS = 36
"""Those of an epoch of emoji, all2all excepted: 36 icons at 16 sizes."""

EPOCHS, BESIDE_TRAINING = 40, 1.3
"""Assumed: epochs of a run, and what validation and test add to the time of training."""


def whole_paper(evidence: Evidence) -> str:
    """What all runs of the paper cost on CPU cores."""
    fastest = _standard_on_emoji(evidence)["median_train_seconds"].min()
    standard = float(fastest) / EMOJI_STEPS  # type: ignore[arg-type]
    days = {
        name: evidence.costs[name]["training_step_ratio"]
        * standard
        * (STEPS * EPOCHS * BESIDE_TRAINING / 86_400)
        for name in list_models("paper")
    }
    rows = [
        [f"`{name}`", ratio(evidence.costs[name]["training_step_ratio"]), f"{value:.0f}"]
        for name, value in days.items()
    ]
    table = markdown_table(["model", "one step, to `standard`", "all its runs, core-days"], rows)
    total = sum(days.values())
    verdict = (
        f"With a step of `standard` at {standard:.2f} seconds, its fastest run here, that makes "
        f"{total:.0f} core-days: {total / 64:.1f} days on 64 cores, {24 * total / 1000:.0f} hours "
        f"on 1,000. `conv3d` alone is {days['conv3d']:.0f} of them."
    )
    return f"{table}\n{verdict}\n"


def _standard_on_emoji(evidence: Evidence) -> pl.DataFrame:
    """Return the runs of `standard` whose epochs have the same images, as many and as they are."""
    return evidence.paper.reported.filter(
        pl.col("scenario") != "all2all", model="standard", options="", dataset="emoji"
    )


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def epochs(evidence: Evidence) -> str:
    """Time of an epoch over that of standard, ours beside the paper's Table 2."""
    costs = evidence.paper.costs.filter(options="").drop_nulls("epoch_ratio")
    timed = {(row["dataset"], row["model"]): row for row in costs.iter_rows(named=True)}
    rows = []
    for dataset in order_datasets(costs["dataset"]):
        for row in (timed[dataset, m] for m in list_models() if (dataset, m) in timed):
            names = ("train_ratio", "epoch_ratio", "published_ratio")
            rows.append([dataset, f"`{row['model']}`", *(ratio(row[name]) for name in names)])
    table = markdown_table(["dataset", "model", "training", "with validation", "published"], rows)
    times = _standard_on_emoji(evidence)["median_epoch_seconds"].sort()
    remark = (
        f"In {len(times)} runs of `standard` on emoji the median epoch took {times[0]:.1f} to "
        f"{times[-1]:.1f} seconds."
    )
    return f"{table}\n{remark}\n"


_TABLES = (
    *(models, variants, results, traffic_signs, highlights, published, others, transfer),
    *(photos, quickness, backbone, learning_rates, photo_ablations),
    *(
        channel_sizes,
        batch_norm,
        ablations,
        stopping,
        channel_pooling,
        channels_alone,
        confusions,
        costs,
    ),
    *(layer_cost, layer_choices, epochs, whole_paper),
    *(
        claims.winners,
        claims.directions,
        claims.ends,
        claims.published_directions,
    ),
    *(claims.equivariance, claims.slice_selection, claims.pixel_selection),
)
BLOCKS = {table.__name__.replace("_", "-"): table for table in _TABLES}
"""Tables by the name that marks their place in the pages."""
