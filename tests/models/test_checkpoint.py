"""Model files: what comes back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equiscale import load_model, save_model
from equiscale.core.errors import InputFileError, OptionError
from equiscale.models import VARIANTS, create_model, list_models, model_card, read_checkpoint
from equiscale.models.checkpoint import FORMAT
from study.disco_basis import Settings, solve, write_raw_basis

CLASSES = ["cat", "dog", "Ünïcode"]


def small_model(name: str = "standard", **options: Any) -> nn.Module:
    if "image_size" in model_card(name).options:
        options = {"image_size": (32, 33), **options}
    torch.manual_seed(1)
    return create_model(name, in_channels=1, num_classes=3, **options)


def rewrite(
    path: Path,
    changes: dict[str, torch.Tensor] | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Change tensors or metadata of a model file."""
    header = path.read_bytes()
    length = int.from_bytes(header[:8], "little")
    old = json.loads(header[8 : 8 + length])["__metadata__"]
    save_file({**load_file(path), **(changes or {})}, path, old if metadata is None else metadata)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(small_model(), tmp_path / "model.safetensors", CLASSES)


@pytest.mark.parametrize("name", [name for name in list_models() if name not in VARIANTS])
def test_round_trip(name: str, tmp_path: Path) -> None:
    model = small_model(name).eval()
    path = save_model(model, tmp_path / f"{name}.safetensors", CLASSES)
    state = torch.get_rng_state()
    loaded = load_model(path)
    assert torch.equal(state, torch.get_rng_state()), "loading drew random numbers"
    assert type(loaded) is type(model)
    assert loaded.class_names == tuple(CLASSES)
    assert not loaded.training
    x = torch.rand(2, 1, 32, 33)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    spec = read_checkpoint(path).spec
    assert (spec.name, spec.in_channels, spec.num_classes) == (name, 1, 3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("xu", {"kernel_size": 5, "kernel_sizes": [3, 5]}),
        ("kanazawa", {"exponents": range(-1, 2)}),
        ("hermite", {"scales": np.array([2.0, 3.0]).tolist(), "kernel_size": 5}),
        ("hermite", {"scales": tuple(np.array([2.0, 3.0]))}),
        ("disco", {"scales": [1.0, 2.0]}),
        ("slice_pool", {"interpolation": "bilinear", "method": "direct"}),
    ],
)
def test_options_come_back(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = small_model(name, **options)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    x = torch.rand(1, 1, 32, 32)
    assert torch.equal(loaded(x), model(x))
    assert loaded.class_names is None


def test_precision_comes_back_and_a_compiled_model_is_saved_plain(tmp_path: Path) -> None:
    compiled: nn.Module = torch.compile(small_model().double(), backend="eager")  # type: ignore[assignment]
    loaded = load_model(save_model(compiled, tmp_path / "model.safetensors"))
    assert next(loaded.parameters()).dtype == torch.float64


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for names in (["one"], "abc"):
        with pytest.raises(OptionError, match="class_names must be a list of 3 names"):
            save_model(small_model(), path, names)
    with pytest.raises(OptionError, match="only models built by create_model"):
        save_model(nn.Linear(1, 1), path)
    model = create_model(f"{__name__}:needs_an_object", in_channels=1, num_classes=3, thing={1, 2})
    with pytest.raises(OptionError, match="cannot be written as JSON"):
        save_model(model, path)
    assert not list(tmp_path.iterdir())


def needs_an_object(in_channels: int, num_classes: int, thing: object) -> nn.Module:
    return nn.Identity()


def test_nan_is_not_saved(saved: Path) -> None:
    before = saved.read_bytes()
    model = small_model()
    nn.init.constant_(model.head.bias, float("nan"))  # type: ignore[union-attr, arg-type]
    with pytest.raises(InputFileError, match=r"the model: found NaN or infinity in head\.bias"):
        save_model(model, saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head.weight": torch.zeros(3, 31)}, r"head\.weight .* \[3, 31\], expected \[3, 32\]"),
        ({"head.bias": torch.ones(3).long()}, r"of type torch\.int64, expected torch\.float"),
        ({"conv9.weight": torch.zeros(1)}, r"unexpected \['conv9\.weight'\]"),
        ({"head.bias": torch.full((3,), torch.inf)}, r"NaN or infinity in head\.bias"),
    ],
)
def test_wrong_weights_are_named(
    saved: Path, changes: dict[str, torch.Tensor], message: str
) -> None:
    rewrite(saved, changes)
    with pytest.raises(InputFileError, match=message):
        load_model(saved)


@pytest.mark.parametrize("old", [False, True])
def test_pickle_is_not_opened(saved: Path, old: bool) -> None:
    torch.save(small_model().state_dict(), saved, _use_new_zipfile_serialization=not old)
    with pytest.raises(InputFileError, match="looks like a pickle"):
        load_model(saved)


def test_truncated_and_foreign_files(saved: Path) -> None:
    for path in (saved.with_name("absent"), saved.parent):
        with pytest.raises(InputFileError, match="nothing that can be read"):
            load_model(path)
    content = saved.read_bytes()
    for damaged in (content[:-10], content[:5], b"", b"\xff" * 100):
        saved.write_bytes(damaged)
        with pytest.raises(InputFileError, match="no complete safetensors file"):
            load_model(saved)
    save_file({"weight": torch.zeros(1)}, saved)
    with pytest.raises(InputFileError, match=f"the format None, expected '{FORMAT}'"):
        load_model(saved)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("not json", "no description of its model"),
        ("[]", "no description of its model"),
        ('{"name":"standard"}', "no description of its model"),
        (("no_model", 1, 3, {}), r"cannot be built \(unknown model 'no_model'"),
        (("standard", 1, 3, {"depth": 3}), r"cannot be built \(unknown option"),
        (("standard", 1, "3", {}), r"cannot be built \(num_classes must be an integer"),
        (("standard", 1, 3, {"kernel_size": [7]}), r"cannot be built \(kernel_size must be"),
        (("standard", 1, 3, {"in_channels": 2}), "cannot be built"),
        (("standard", 1, 3, []), "cannot be built"),
        ((3, 1, 3, {}), r"cannot be built \(a model's name must be a string"),
        (
            '{"class_names":null,"derived":{"a":"b"},"in_channels":1,"name":"standard","num_classes":3,'
            '"options":{}}',
            "no description of its model",
        ),
        (("standard", 2_000_000, 3, {}), r"cannot be built \(in_channels=2000000 with"),
        (("standard", 1, 3, {"kernel_size": 20_001}), r"of shape \[16, 1, 7, 7\], expected"),
        (("hermite", 1, 3, {"support": 100_001}), r"cannot be built \(support must be odd"),
        (("gaussian_derivative", 1, 3, {"sigma": 1e5}), r"cannot be built .* too many or too wide"),
        (("kanazawa", 1, 3, {"exponents": [10**5]}), r"cannot be built \(math range error"),
        (("disco", 1, 3, {"basis": "x" * 300}), "File name too long"),
        ((["standard"], 1, 3, {}), r"cannot be built \(a model's name must be a string"),
    ],
)
def test_bad_descriptions_are_named(
    saved: Path, description: str | tuple[object, ...], message: str
) -> None:
    if isinstance(description, tuple):
        keys = ("name", "in_channels", "num_classes", "options")
        fields = dict(zip(keys, description, strict=True))
        description = json.dumps({**fields, "class_names": None, "derived": {}})
    rewrite(saved, metadata={"format": FORMAT, "model": description})
    with pytest.raises(InputFileError, match=message):
        load_model(saved)


def test_file_cannot_import_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_model.py").write_text(
        "from torch import nn\n"
        "def build(in_channels, num_classes):\n"
        "    return nn.Linear(in_channels, num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = create_model("foreign_model:build", in_channels=4, num_classes=3)
    path = save_model(model, tmp_path / "model.safetensors")
    monkeypatch.delitem(__import__("sys").modules, "foreign_model")
    with pytest.raises(InputFileError, match="pass allow_import=True if you trust the file"):
        load_model(path)
    assert "foreign_model" not in __import__("sys").modules
    assert isinstance(load_model(path, allow_import=True), nn.Linear)


def test_another_basis_is_noticed(tmp_path: Path) -> None:
    basis = tmp_path / "basis.safetensors"
    settings = Settings(kernel_size=3, support=7)
    write_raw_basis(basis, solve(settings), settings)
    path = save_model(small_model("disco", basis=str(basis)), tmp_path / "model.safetensors")
    assert load_model(path)
    write_raw_basis(basis, solve(Settings(kernel_size=3, support=7, correlation=0.0)), settings)
    with pytest.raises(InputFileError, match=r"trained with another conv1\.basis1"):
        load_model(path)
    basis.unlink()
    basis.mkdir()
    for name in (basis, tmp_path, tmp_path / "absent"):
        with pytest.raises(InputFileError, match=r"not a regular file|found no file"):
            small_model("disco", basis=str(name))
    with pytest.raises(InputFileError, match=r"cannot be built .*not a regular file"):
        load_model(path)
