"""Which outputs of a network are right for each class of the pictures."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from equiscale.build.sources import read_text
from equiscale.core.errors import EquiscaleError, InputFileError
from equiscale.probing.networks import IMAGENET_CLASSES, Network

_SHOWN = 5


class ClassMismatchError(EquiscaleError, ValueError):
    """The classes of the pictures are not those of the network."""


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read the names of a network's outputs: one line each; synonyms are separated by commas."""
    names = tuple(line.strip() for line in read_text(path).strip().splitlines())
    if len(names) < 2 or not all(names):
        raise InputFileError(path, f"{len(names)} names, or empty lines", "one class per line")
    return names


def imagenet_names() -> tuple[str, ...] | None:
    """Return `"n01440764, tench, Tinca tinca"`, … from timm's files; None without timm.

    timm itself is not imported: this takes seconds and needs torchvision.
    """
    found = importlib.util.find_spec("timm")
    for place in (found and found.submodule_search_locations) or ():
        folder = Path(place, "data", "_info")
        synsets, lemmas = folder / "imagenet_synsets.txt", folder / "imagenet_synset_to_lemma.txt"
        if synsets.is_file() and lemmas.is_file():
            words = dict(line.split("\t", 1) for line in read_text(lemmas).splitlines())
            return tuple(f"{name}, {words[name]}" for name in read_text(synsets).split())
    return None


def output_names(network: Network, outputs: int) -> tuple[str, ...] | None:
    """Return the names of a network's outputs, if they are known."""
    names = network.class_names
    if names is not None and len(names) != outputs:
        raise ClassMismatchError(
            f"network {network.name!r} has {outputs} outputs, but {len(names)} class names are "
            "given; expected one name per output"
        )
    return imagenet_names() if names is None and outputs == IMAGENET_CLASSES else names


def match_classes(
    classes: Sequence[str],
    names: Sequence[str] | None,
    outputs: int,
    network: str,
    shown: Sequence[str] | None = None,
) -> Tensor:
    """`-> [classes, outputs]`: whether each output is right for each class of the pictures.

    Classes are found by name; capitals, `_` and `-` do not matter. A class may have several right
    outputs, if they share a name. If the network's names are not known, as many classes as
    outputs are matched in their order.

    Args:
        classes: All classes of the pictures.
        names: Names of the outputs; None if they are not known.
        outputs: Number of outputs.
        network: Name of the network, for errors.
        shown: The classes that must be found; None means all.

    Raises:
        ClassMismatchError: A class is not found, or the numbers differ.
    """
    if names is None:
        if len(classes) != outputs:
            raise ClassMismatchError(
                f"network {network!r} has {outputs} outputs and the pictures have {len(classes)} "
                "classes: give the names of the outputs (--class-names FILE, class_names=…)"
                + ("; timm has those of ImageNet: pip install timm" * (outputs == IMAGENET_CLASSES))
                + ", or probe without labels (--unlabelled, labelled=False)"
            )
        return torch.eye(outputs, dtype=torch.bool)
    known = _index_names(names)
    right = torch.zeros(len(classes), outputs, dtype=torch.bool)
    unknown = []
    for row, name in enumerate(classes):
        found = known.get(_plain(name))
        if found is None and (shown is None or name in shown):
            unknown.append(_suggest(name, known))
        else:
            right[row, list(found or ())] = True
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise ClassMismatchError(
            f"network {network!r} has no class {'; '.join(unknown[:_SHOWN])}{more}: rename the "
            "folders, give its class names (--class-names FILE, class_names=…), or probe "
            "without labels (--unlabelled, labelled=False)"
        )
    return right


def short_name(name: str) -> str:
    """Return the first name of a class, without a synset's number.

    Examples:
        >>> short_name("n02123394, Persian cat"), short_name("tabby, tabby cat")
        ('Persian cat', 'tabby')
    """
    words = [word.strip() for word in name.split(",")]
    return words[1] if len(words) > 1 and re.fullmatch(r"n\d{8}", words[0]) else words[0]


def _index_names(names: Iterable[str]) -> dict[str, set[int]]:
    known: dict[str, set[int]] = defaultdict(set)
    for index, name in enumerate(names):
        for word in (name, *name.split(",")):
            known[_plain(word)].add(index)
    return dict(known)


def _suggest(name: str, known: dict[str, set[int]]) -> str:
    words = [word for word in known if "," not in word]
    near = [word for word in words if _plain(name) in word.split()]
    near = (near + difflib.get_close_matches(_plain(name), words, n=2, cutoff=0.6))[:2]
    return f"{name!r}" + (f" (did you mean {' or '.join(map(repr, near))}?)" if near else "")


def _plain(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.strip().lower()))
