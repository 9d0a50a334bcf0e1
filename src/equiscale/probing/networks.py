"""The networks of a probe: any callable, timm, ONNX; their preprocessing and class names."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equiscale.build.sources import read_text
from equiscale.core.errors import EquiscaleError, InputFileError, OptionError, UnknownNameError
from equiscale.layers.search import log_probabilities
from equiscale.metrics.inference import evaluating
from equiscale.models.foreign import import_factory
from equiscale.probing.pictures import Pixels

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000
_UNCROPPED = 384  # from this size on, processors of ConvNeXT ignore their crop_pct


class NetworkError(EquiscaleError):
    """A network fails on the images, or its answers are not logits."""


@dataclass(frozen=True)
class Preprocess:
    """What is done to a picture before a network sees it.

    Attributes:
        canvas: Side of the network's input in pixels.
        mean: Mean of each channel, of pixels in [0, 1]; one value makes grey images.
        std: Standard deviation of each channel.
        crop: Share of a picture's side that the network sees, as timm's `crop_pct`. An object of
            full size has `canvas / crop` pixels; the canvas shows its central part.
        origin: Where these values come from.

    Examples:
        >>> Preprocess.of({"input_size": (3, 224, 224), "crop_pct": 0.875}).full_size
        256
    """

    canvas: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 1.0
    origin: str = "given"

    def __post_init__(self) -> None:
        if self.canvas < 1 or not 0 < self.crop <= 1:
            raise OptionError(
                f"canvas must be at least 1 and crop in (0, 1], got {self.canvas} and {self.crop}"
            )
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std):
            raise OptionError(
                "mean and std need one value for grey or three for colour images, got "
                f"{len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise OptionError(f"mean {self.mean} and std {self.std}: expected std > 0")

    @property
    def full_size(self) -> int:
        """Object size at which an object fills the picture."""
        return round(self.canvas / self.crop)

    def __call__(self, images: Pixels) -> Tensor:
        """`[N, H, W, C] uint8 -> [N, C, H, W] float32`: scale to [0, 1] and normalise."""
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(v, dtype=torch.float32) for v in (self.mean, self.std))
        return ((pixels - mean[:, None, None]) / std[:, None, None]).contiguous()

    @classmethod
    def of(cls, given: object) -> Preprocess:
        """Return the preprocessing of a timm configuration or a Hugging Face image processor.

        Args:
            given: A `Preprocess`, a mapping with timm's names (`input_size`, `mean`, `std`,
                `crop_pct`), an object or mapping with `image_mean`, `image_std` and `size`, or a
                directory with the `preprocessor_config.json` of a processor.
        """
        if isinstance(given, Preprocess):
            return given
        if isinstance(given, (str, Path)):
            given = _read_processor(Path(given))
        if isinstance(given, Mapping) and "image_mean" in given:
            given = SimpleNamespace(**given)
        try:
            if isinstance(given, Mapping):
                return _from_timm(given)
            if hasattr(given, "image_mean") and hasattr(given, "size"):
                return _from_processor(given)
        except (TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"preprocess {given}: {error}") from error
        raise OptionError(
            f"preprocess: expected equiscale.probing.Preprocess(canvas=…, mean=…, std=…), a timm "
            f"configuration or a Hugging Face image processor or its directory, got "
            f"{type(given).__name__}"
        )


DEFAULT_PREPROCESS = Preprocess(origin="default: that of ImageNet")
GREY_PREPROCESS = Preprocess(mean=(0.5,), std=(0.5,), origin="default: mean and std 0.5")


def _from_timm(config: Mapping[str, Any]) -> Preprocess:
    channels, height, width = config.get("input_size", (3, 224, 224))
    default = GREY_PREPROCESS if channels == 1 else DEFAULT_PREPROCESS
    return Preprocess(
        canvas=_square(height, width),
        mean=tuple(config.get("mean") or default.mean),
        std=tuple(config.get("std") or default.std),
        crop=float(config.get("crop_pct") or 1.0),
        origin="timm's configuration",
    )


def _read_processor(directory: Path) -> Mapping[str, Any]:
    """Read what the image processor of a Hugging Face model says about itself."""
    path = directory / "preprocessor_config.json" if directory.is_dir() else directory
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise InputFileError(path, f"no JSON ({error})", "the options of a processor") from error
    if not isinstance(found, dict) or not {"image_mean", "image_std", "size"} <= found.keys():
        raise InputFileError(path, "other options", "image_mean, image_std and size")
    return found


def _from_processor(processor: Any) -> Preprocess:  # noqa: ANN401 - of another package
    resized = _side(processor.size)
    cropped = getattr(processor, "do_center_crop", False)
    canvas = _side(processor.crop_size) if cropped else resized
    if getattr(processor, "crop_pct", None) and resized < _UNCROPPED:
        resized = round(resized / processor.crop_pct)
    name = getattr(processor, "image_processor_type", type(processor).__name__)
    mean, std = processor.image_mean, processor.image_std
    if not getattr(processor, "do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    return Preprocess(
        canvas=canvas,
        mean=tuple(mean),
        std=tuple(std),
        crop=min(1.0, canvas / resized),
        origin=f"the processor {name}",
    )


def _side(size: Any) -> int:  # noqa: ANN401 - a number, a mapping or an object
    if isinstance(size, int):
        return size
    entries = size if isinstance(size, Mapping) else vars(size)
    shortest = entries.get("shortest_edge")
    return int(shortest) if shortest else _square(entries.get("height"), entries.get("width"))


def _square(height: Any, width: Any) -> int:  # noqa: ANN401 - what another package says
    if height != width or not isinstance(height, int):
        raise OptionError(f"the network takes {height}×{width} pixels; expected a square")
    return height


@dataclass(frozen=True)
class Network:
    """A network to probe.

    Attributes:
        name: How it is called in tables.
        run: Maps `[N, C, H, W]` to logits or probabilities `[N, K]`.
        preprocess: What it expects.
        class_names: Names of its outputs, in order; None if they are not known.
    """

    name: str
    run: Callable[[Tensor], Any]
    preprocess: Preprocess = DEFAULT_PREPROCESS
    class_names: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        model: object,
        preprocess: object = None,
        class_names: Sequence[str] | None = None,
    ) -> Network:
        """Return a network with what it says about itself, unless it is given here."""
        if not callable(model):
            raise OptionError(
                f"network {name!r}: expected a callable [N, C, H, W] -> logits, got "
                f"{type(model).__name__}"
            )
        config = getattr(model, "pretrained_cfg", None)
        if preprocess is None and isinstance(config, Mapping):
            preprocess = config
        chosen = DEFAULT_PREPROCESS if preprocess is None else Preprocess.of(preprocess)
        names = _own_class_names(model) if class_names is None else tuple(class_names)
        return cls(name, model, chosen, names)

    def predict(self, images: Pixels) -> Tensor:
        """`[N, H, W, C] -> [N, K]`: probabilities, on the CPU.

        Raises:
            NetworkError: The network fails, or its answers are not one row of numbers per image.
        """
        batch = self.preprocess(images)
        shape = list(batch.shape)
        try:
            with torch.inference_mode(), self._prepared(batch) as prepared:
                answer = self.run(prepared)
        except EquiscaleError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            advice = "check channels and canvas of its preprocessing (--canvas, --mean, --std)"
            raise self._error(f"fails on images {shape}: {reason}; {advice}") from error
        return self._to_probabilities(getattr(answer, "logits", answer), shape)

    @contextlib.contextmanager
    def _prepared(self, batch: Tensor) -> Iterator[Tensor]:
        """Yield images of the device and precision of a module's weights."""
        if isinstance(self.run, nn.Module):
            with evaluating(self.run):
                yield batch.to(next(filter(torch.is_floating_point, self.run.parameters()), batch))
        else:
            yield batch

    def _to_probabilities(self, answer: object, shape: list[int]) -> Tensor:
        if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != shape[0]:
            found = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise self._error(f"maps images {shape} to {found}; expected logits [{shape[0]}, K]")
        if answer.shape[1] < 2:
            raise self._error("has one output; expected at least two")
        probabilities = log_probabilities(answer.detach().cpu().double()).exp()
        bad = int(probabilities.isnan().any(dim=1).sum())
        if bad:
            raise self._error(f"returns NaN or infinite logits for {bad} of {shape[0]} images")
        return probabilities

    def _error(self, problem: str) -> NetworkError:
        return NetworkError(f"network {self.name!r} {problem}")


def _own_class_names(model: object) -> tuple[str, ...] | None:
    """Return the class names that timm's configuration or a Hugging Face model carries."""
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, Mapping) and config.get("label_names"):
        return tuple(map(str, config["label_names"]))
    named = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(named, Mapping) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return None


def load_network(spec: str, device: str | torch.device = "cpu") -> Network:
    """Load a network from the command line's words for it.

    Args:
        spec: `timm:NAME` (with its pretrained weights), `onnx:FILE`, or `my_module:factory`. The
            factory takes no arguments and returns a network or `(network, preprocess)`; see
            `Preprocess.of`.
        device: Where a PyTorch network runs.

    Raises:
        UnknownNameError: There is no such network.
        NetworkError: It cannot be loaded.
    """
    kind, colon, name = spec.partition(":")
    if not (kind and colon and name):
        raise OptionError(f"network {spec!r}: write my_module:load_model, timm:NAME or onnx:FILE")
    if kind == "onnx":
        return load_onnx(Path(name))
    model = _load_timm(name) if kind == "timm" else _call(spec, import_factory(spec))
    model, preprocess = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
    if isinstance(model, nn.Module):
        model.to(device)
    return Network.of(spec, model, preprocess)


def _call(spec: str, factory: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
    try:
        return factory()
    except EquiscaleError:
        raise
    except Exception as error:
        raise NetworkError(f"network {spec!r} cannot be loaded: {error!r}") from error


def _load_timm(name: str) -> Any:  # noqa: ANN401 - an untyped package
    try:
        import timm
    except ImportError as error:
        raise NetworkError(
            f"network 'timm:{name}': timm cannot be imported ({error}): "
            "pip install timm torchvision"
        ) from error
    if not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{name.partition('.')[0]}*")[:5])
        hint = f"; did you mean {near}?" if near else ""
        raise UnknownNameError(f"timm has no network {name!r}{hint}")
    return _call(f"timm:{name}", lambda: timm.create_model(name, pretrained=True))


def load_onnx(path: Path) -> Network:
    """Load an ONNX file; a fixed canvas and number of channels are read from it."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise NetworkError("ONNX files need onnxruntime: pip install onnxruntime")
    if not path.is_file():
        raise InputFileError(path, "nothing", "an ONNX file")
    import onnxruntime

    usable = set(onnxruntime.get_available_providers())
    wanted = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in usable]
    try:
        session = onnxruntime.InferenceSession(str(path), providers=wanted)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(path, f"a damaged model ({reason})", "an ONNX file") from error
    entry = session.get_inputs()[0]
    if len(entry.shape) != 4 or len(session.get_inputs()) != 1:
        raise InputFileError(path, f"inputs of shape {entry.shape}", "one input [N, C, H, W]")
    return Network(f"onnx:{path.name}", _OnnxCall(session), _onnx_preprocess(entry.shape))


def _onnx_preprocess(shape: Sequence[object]) -> Preprocess:
    _, channels, height, width = shape
    found = GREY_PREPROCESS if channels == 1 else DEFAULT_PREPROCESS
    if isinstance(height, int) and isinstance(width, int):
        canvas = _square(height, width)
        found = replace(found, canvas=canvas, origin=f"{found.origin}, canvas of the file")
    return found


_ONNX_TYPES: dict[str, type[np.floating[Any]]] = {
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}


class _OnnxCall:
    """Runs an ONNX session on batches of any length, in pieces if its batch is fixed."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - an untyped package
        self._session, self._entry = session, session.get_inputs()[0]
        fixed = self._entry.shape[0]
        self._batch = fixed if isinstance(fixed, int) and fixed > 0 else None
        self._type = _ONNX_TYPES.get(self._entry.type, np.float32)

    def __call__(self, images: Tensor) -> Tensor:
        pieces = images.split(self._batch) if self._batch else (images,)
        return torch.cat([self._run(piece) for piece in pieces])

    def _run(self, images: Tensor) -> Tensor:
        count = len(images)
        if self._batch and count < self._batch:
            images = torch.cat([images, images[-1:].expand(self._batch - count, -1, -1, -1)])
        feed = {self._entry.name: images.numpy().astype(self._type)}
        answer = np.asarray(self._session.run(None, feed)[0], np.float32)
        return torch.from_numpy(answer)[:count]
