"""How does a classifier cope with object size? Any network, any pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equiscale.core.errors import OptionError
from equiscale.probing.classes import ClassMismatchError, match_classes, output_names
from equiscale.probing.measuring import Progress, Subject, measure
from equiscale.probing.networks import Network, NetworkError, Preprocess, load_network
from equiscale.probing.pictures import (
    Pictures,
    Renderer,
    Rendering,
    check_background,
    read_pictures,
)
from equiscale.probing.report import Finding, ProbeReport

__all__ = [
    "ClassMismatchError",
    "Finding",
    "Network",
    "NetworkError",
    "Pictures",
    "Preprocess",
    "ProbeReport",
    "load_network",
    "probe",
    "read_pictures",
]

PLACES = 3
BATCH_SIZE = 32
_STEPS_PER_OCTAVE, _OCTAVES = 2, 3
_LEAST_SIZE = 4


def probe(
    model: Callable[..., Any] | Network | Mapping[str, Callable[..., Any] | Network],
    images: str | Path | Pictures,
    *,
    preprocess: object = None,
    class_names: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    places: int = PLACES,
    background: str | Path | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    progress: Progress | None = None,
    resume: str | Path | None = None,
) -> ProbeReport:
    """Show objects to a classifier at a range of sizes, and measure what it makes of them.

    Every object is shown at full size in the middle of the canvas, and at random places at each
    smaller size. Accuracy needs pictures whose classes are known; agreement with the network's
    own answer at full size needs no labels.

    Args:
        model: Any callable `[N, C, H, W] -> [N, K]`, logits or probabilities, or several by name.
            Modules are run in evaluation mode, on the device they are on.
        images: Directory with one sub-folder per class, COCO or YOLO boxes, or pictures only; or
            what `read_pictures` returned, which also reads cut-outs and masks.
        preprocess: What the network expects: a `Preprocess`, timm's `pretrained_cfg`, or a
            Hugging Face image processor or its directory; several by the names of the networks.
            None takes what the network carries, or else ImageNet's.
        class_names: Names of the outputs, in order. None takes what the network carries; those of
            ImageNet, if it has 1000 outputs and timm is installed; or as many classes as outputs,
            in order.
        sizes: Object sizes in pixels of the first network's canvas. The largest is the full size.
            None takes steps of √2 from the whole picture down to an eighth. On another canvas
            they grow with it.
        places: Number of places at each size but the full one.
        background: What is around the object: its `"own"` surroundings (default for boxes), its
            `"edge"`, a `"blur"` of it (default for whole pictures), `"plain"` grey (default for
            cut-outs), or a directory of pictures.
        batch_size: At most so many images in a forward pass.
        seed: Decides places and backgrounds.
        progress: Called as `progress(done, total)`, counting objects.
        resume: File beside the output in which finished parts are kept until the end, so that an
            interrupted call can be repeated.

    Raises:
        SourceError: There are no pictures, or only one class.
        NetworkError: A network fails on the images, or returns NaN or no logits.
        ClassMismatchError: The network's outputs are not the classes of the pictures.

    Examples:
        >>> from torch import nn
        >>> network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 2))
        >>> report = equiscale.probe(network, "photos/", sizes=[28, 56, 112])  # doctest: +SKIP
        >>> report.write_page("probe.html")  # doctest: +SKIP
    """
    pictures = images if isinstance(images, Pictures) else read_pictures(images)
    if places < 1 or batch_size < 1:
        raise OptionError(f"places and batch_size must be at least 1, got {places}, {batch_size}")
    networks = _gather(model, preprocess, class_names)
    behind = check_background(background, pictures)
    base = networks[0].preprocess
    chosen = _choose_sizes(sizes, base.full_size)
    subjects = [
        Subject(
            network,
            Rendering(
                network.preprocess.canvas,
                _scale_sizes(chosen, network.preprocess.full_size, base.full_size),
                places,
                behind,
                len(network.preprocess.mean),
                seed,
            ),
        )
        for network in networks
    ]
    matched = [_match(subject, pictures) for subject in subjects]  # before hours of work
    answers = measure(
        subjects,
        pictures,
        batch_size,
        progress or (lambda done, total: None),
        None if resume is None else Path(resume),
    )
    labels = torch.tensor(pictures.labels, dtype=torch.long)
    findings = tuple(
        Finding(subject, answer, outputs, names, right, labels)
        for subject, answer, (outputs, names, right) in zip(subjects, answers, matched, strict=True)
    )
    return ProbeReport(findings, pictures, tuple(_notes(findings, pictures)))


def _gather(model: object, preprocess: object, class_names: Sequence[str] | None) -> list[Network]:
    if not isinstance(model, Mapping):
        name = _name(model)
        model, preprocess = {name: model}, {name: preprocess}
    elif not isinstance(preprocess, Mapping) or not preprocess.keys() <= model.keys():
        preprocess = dict.fromkeys(model, preprocess)
    if not model:
        raise OptionError("there is no network to probe")
    return [
        _network(name, given, preprocess.get(name), class_names) for name, given in model.items()
    ]


def _name(model: object) -> str:
    if isinstance(model, Network):
        return model.name
    name = str(getattr(model, "__name__", type(model).__name__))
    return "network" if name == "<lambda>" else name


def _network(
    name: str, given: object, preprocess: object, class_names: Sequence[str] | None
) -> Network:
    if not isinstance(given, Network):
        return Network.of(name, given, preprocess, class_names)
    own = given.preprocess if preprocess is None else Preprocess.of(preprocess)
    names = given.class_names if class_names is None else tuple(class_names)
    return replace(given, name=name, preprocess=own, class_names=names)


def _choose_sizes(given: Sequence[int] | None, full: int) -> tuple[int, ...]:
    """Return object sizes, ascending.

    Examples:
        >>> _choose_sizes(None, 224)
        (28, 40, 56, 79, 112, 158, 224)
    """
    if given is None:
        steps = range(_STEPS_PER_OCTAVE * _OCTAVES + 1)
        given = [round(full / 2 ** (step / _STEPS_PER_OCTAVE)) for step in steps]
        given = [size for size in given if size >= min(_LEAST_SIZE, full)]
    found = tuple(sorted(set(given)))
    if len(found) < 2 or found[0] < 1 or found[-1] > full:
        raise OptionError(f"sizes {list(given)}: expected at least two, from 1 to {full} pixels")
    return found


def _scale_sizes(sizes: Sequence[int], full: int, base: int) -> tuple[int, ...]:
    """Return the sizes for a network whose canvas may differ from that of the first one."""
    return tuple(max(1, round(size * full / base)) for size in sizes)


def _match(
    subject: Subject, pictures: Pictures
) -> tuple[int, tuple[str, ...] | None, torch.Tensor | None]:
    """Return a network's outputs, their names and which are right, from its answer to one image."""
    renderer = Renderer(pictures, subject.rendering)
    rendered = (renderer.render(item) for item in pictures.objects)
    first = next((images for images in rendered if images is not None), None)
    if first is None:
        return 0, None, None  # all pictures are damaged, which `measure` says
    outputs = subject.network.predict(first[-1]).shape[1]
    names = output_names(subject.network, outputs)
    if not pictures.class_names:
        return outputs, names, None
    shown = pictures.shown_classes
    right = match_classes(pictures.class_names, names, outputs, subject.network.name, shown)
    return outputs, names, right


def _notes(findings: Sequence[Finding], pictures: Pictures) -> list[str]:
    largest = max(finding.subject.rendering.sizes[-1] for finding in findings)
    enlarged, count = pictures.count_enlarged(largest), len(pictures.objects)
    damaged = pictures.damaged + int((~findings[0].shown.any(dim=2).any(dim=1)).sum())
    by_order = [f.name for f in findings if f.right is not None and f.output_names is None]
    notes = {
        f"{enlarged} of {count} objects have fewer than {largest} pixels and are enlarged at full "
        "size, which blurs them": enlarged,
        f"objects left out because they are too small: {pictures.too_small}": pictures.too_small,
        f"damaged pictures left out: {damaged}": damaged,
        f"outputs of {', '.join(by_order)} are taken to be the classes in order, "
        f"{', '.join(pictures.class_names[:3])}, …": len(by_order),
    }
    return [note for note, applies in notes.items() if applies]
