"""Models in files: safetensors with everything inside that is needed to build them again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from equiscale.core.errors import InputFileError, OptionError
from equiscale.core.files import atomic_write, canonical_json
from equiscale.models.registry import ModelSpec, build_model, reset_classifier
from equiscale.models.shipped import find_weights

FORMAT = "equiscale-model-1"
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
_DERIVED_TOLERANCE = 1e-3
_EXPECTED = "a file written by save_model"
_UNBUILDABLE = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a model file.

    Attributes:
        spec: Name, sizes and options of the model.
        class_names: Name of each logit, if they were given.
        derived: Norm of each filter that follows from the options, to notice other ones.
        weights: Learned parameters by name.
    """

    spec: ModelSpec
    class_names: tuple[str, ...] | None
    derived: Mapping[str, float]
    weights: Mapping[str, Tensor]


def save_model(
    model: nn.Module, path: str | Path, class_names: Sequence[str] | None = None
) -> Path:
    """Write a model from `create_model` to a file, complete or not at all.

    Args:
        model: The model; compiled or wrapped for distributed training is fine.
        path: The file, usually `*.safetensors`.
        class_names: Name of each logit; by default those the model already has.
    """
    data = pack_model(model, class_names)
    with atomic_write(Path(path)) as file:
        file.write(data)
    return Path(path)


def pack_model(model: nn.Module, class_names: Sequence[str] | None = None) -> bytes:
    """Return the bytes of the file that `save_model` writes."""
    plain = _unwrapped(model)
    spec = getattr(plain, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise OptionError(
            f"only models built by create_model can be saved, got {type(plain).__name__}; "
            f"register it, or name it as 'package.module:factory', and build it by that name"
        )
    names = class_names if class_names is not None else getattr(plain, "class_names", None)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    weights = {
        key: value.detach().cpu().clone().contiguous() for key, value in plain.state_dict().items()
    }
    checkpoint = Checkpoint(spec, _checked_names(names, spec), _derived_norms(plain), weights)
    _check_finite(weights, "the model")
    return save(weights, _to_metadata(checkpoint))


def load_model(
    path: str | Path, *, num_classes: int | None = None, allow_import: bool = False
) -> nn.Module:
    """Build the model in a file again, with its weights, in evaluation mode.

    `class_names` of the model are those in the file. Nothing in the file is executed: a model
    named as `package.module:factory` needs `allow_import=True`, because importing runs code.

    Args:
        path: A file that `save_model` wrote, or the name of trained weights that come with the
            package: `model/dataset/scenario`, see `equiscale.list_weights`.
        num_classes: Number of classes of your task. If it differs from the file's, the model keeps
            its features and gets a new classifier; with 0, none.
        allow_import: Whether a module that the file names may be imported.

    Examples:
        >>> model = load_model("scale_channels/emoji/mid2rest")
        >>> model(torch.zeros(1, 1, 64, 64)).shape
        torch.Size([1, 36])
    """
    path = find_weights(path)
    checkpoint = read_checkpoint(path)
    if ":" in str(checkpoint.spec.name) and not allow_import:
        raise InputFileError(
            path,
            f"the model {checkpoint.spec.name!r}, whose module would be imported",
            "a model of this package",
            "pass allow_import=True if you trust the file",
        )
    _check_before_building(checkpoint, path)
    model = _build(checkpoint, path)
    _check_weights(model, checkpoint.weights, path)
    _check_finite(checkpoint.weights, str(path))
    _check_derived(model, checkpoint.derived, path)
    dtypes = {value.dtype for value in checkpoint.weights.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(dict(checkpoint.weights))
    model.class_names = checkpoint.class_names  # type: ignore[assignment]
    if num_classes is not None and num_classes != checkpoint.spec.num_classes:
        reset_classifier(model, num_classes)
    return model.eval()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a model file without building the model."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise InputFileError(path, f"nothing that can be read ({reason})", _EXPECTED) from error
    try:
        weights = load(content)
    except SafetensorError as error:
        if content.startswith(_PICKLE_STARTS):
            found = "what looks like a pickle, as torch.save writes it"
            advice = "pickles can run code: load it yourself, copy its weights and use save_model"
            raise InputFileError(path, found, _EXPECTED, advice) from error
        found = f"no complete safetensors file ({error})"
        raise InputFileError(path, found, _EXPECTED) from error
    return _from_metadata(_metadata(content), weights, path)


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return _unwrapped(model.module)
    compiled = getattr(model, "_orig_mod", None)
    return _unwrapped(compiled) if isinstance(compiled, nn.Module) else model


def _checked_names(names: Sequence[str] | None, spec: ModelSpec) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != spec.num_classes:
        raise OptionError(
            f"class_names must be a list of {spec.num_classes} names, one for each logit, "
            f"got {names!r}"
        )
    return tuple(str(name) for name in names)


# --- What is inside -------------------------------------------------------------------------------


def _to_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    spec = checkpoint.spec
    description = {
        "name": spec.name,
        "in_channels": spec.in_channels,
        "num_classes": spec.num_classes,
        "options": {key: _plain(value) for key, value in spec.options.items()},
        "class_names": checkpoint.class_names,
        "derived": dict(checkpoint.derived),
    }
    try:
        return {"format": FORMAT, "model": canonical_json(description)}
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the options of {spec.name!r} cannot be written as JSON ({error}); use numbers, "
            f"texts and lists"
        ) from error


def _plain(value: object) -> object:
    """Return an option as JSON has it: lists for sequences, Python's own numbers, texts."""
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return str(value) if isinstance(value, Path) else value


def _from_metadata(
    metadata: Mapping[str, str], weights: Mapping[str, Tensor], path: str | Path
) -> Checkpoint:
    if metadata.get("format") != FORMAT:
        found = f"the format {metadata.get('format')!r}"
        raise InputFileError(path, found, f"{FORMAT!r}, written by save_model of this version")
    try:
        fields = json.loads(metadata["model"])
        spec = ModelSpec(
            fields["name"], fields["in_channels"], fields["num_classes"], fields["options"]
        )
        names = _checked_names(fields["class_names"], spec)
        derived = {str(key): float(norm) for key, norm in dict(fields["derived"]).items()}
        return Checkpoint(spec, names, derived, weights)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        found = f"no description of its model ({error!r})"
        raise InputFileError(path, found, _EXPECTED) from error


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file that was already found to be valid."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return dict(header.get("__metadata__", {}))


def _derived_norms(model: nn.Module) -> dict[str, float]:
    """Return the norm of each buffer that is not saved."""
    saved = model.state_dict().keys()
    return {
        name: float(buffer.detach().double().norm())
        for name, buffer in model.named_buffers()
        if name not in saved
    }


# --- Checks ---------------------------------------------------------------------------------------


def _build(checkpoint: Checkpoint, path: str | Path) -> nn.Module:
    spec = checkpoint.spec
    try:
        with torch.random.fork_rng(devices=[]):
            return build_model(spec.name, spec.in_channels, spec.num_classes, spec.options)
    except NotImplementedError:
        raise
    except _UNBUILDABLE as error:
        found = f"a model that cannot be built ({error})"
        raise InputFileError(path, found, "one that create_model builds here") from error


def _check_before_building(checkpoint: Checkpoint, path: str | Path) -> None:
    """Compare sizes on the meta device: a few bytes in a file must not cost gigabytes."""
    spec = checkpoint.spec
    numbers = sum(weight.numel() for weight in checkpoint.weights.values())
    for name in ("in_channels", "num_classes"):
        count = getattr(spec, name)
        if ":" not in str(spec.name) and isinstance(count, int) and count > numbers:
            found = f"a model that cannot be built ({name}={count} with {numbers} weights)"
            raise InputFileError(path, found, "at least one weight for each")
    with torch.device("meta"):
        try:
            model = _build(checkpoint, path)
        except NotImplementedError:  # its filters need numbers
            return
    _check_weights(model, checkpoint.weights, path)


def _check_weights(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    expected, found = model.state_dict(), weights
    missing, foreign = sorted(expected.keys() - found), sorted(found.keys() - expected.keys())
    if missing or foreign:
        names = f"other weights: missing {missing or 'none'}, unexpected {foreign or 'none'}"
        raise InputFileError(path, names, "exactly those of its model")
    for key, value in expected.items():
        if found[key].shape != value.shape:
            shapes = list(found[key].shape), list(value.shape)
            raise InputFileError(path, f"{key} of shape {shapes[0]}", str(shapes[1]))
        if found[key].is_floating_point() != value.is_floating_point():
            raise InputFileError(path, f"{key} of type {found[key].dtype}", str(value.dtype))


def _check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    for key, value in weights.items():
        if not value.isfinite().all():
            raise InputFileError(where, f"NaN or infinity in {key}", "finite numbers")


def _check_derived(model: nn.Module, expected: Mapping[str, float], path: str | Path) -> None:
    found = _derived_norms(model)
    for name in sorted(expected.keys() | found.keys()):
        pair = expected.get(name, math.nan), found.get(name, math.nan)
        if not math.isclose(*pair, rel_tol=_DERIVED_TOLERANCE):
            raise InputFileError(
                path,
                f"a model trained with another {name} (norm {pair[0]:.6g})",
                f"the one that its options give here ({pair[1]:.6g})",
                "use the same basis file",
            )
