"""Compiled, exported, in half precision, distributed: the same model, over the whole registry.

Two models are in the fast suite, those with other layers in the slow one. Tolerances are absolute,
for logits of order 0.1: 1e-5 for compiled and exported models, 1e-4 for ONNX, 2e-2 for bfloat16,
which keeps eight bits.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessException, start_processes

from equiscale.models import VARIANTS, Classifier, create_model, list_models, model_card

# Small kernels and few scales, so that tracing takes seconds.
OPTIONS: dict[str, dict[str, Any]] = {
    "xu": {"kernel_sizes": (1, 3, 5)},
    "kanazawa": {"exponents": (-1, 0, 1)},
    "hermite": {"support": 7},
    "disco": {"scales": (1.26, 2.0)},
    "spatial_transform": {"image_size": 9},
    "gaussian_derivative": {"widths": (4, 4), "num_channels": 2},
    "riesz": {"widths": (4, 4), "margin": 3},
}
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PROCESSES = 2
PATIENCE = 90
MODELS = [name for name in list_models() if name not in VARIANTS]
FAST = ("pixel_pool", "scale_channels")
ALIKE = ("standard", "disco", "slice_pool", "energy_pool")
"""Their layers are those of ensemble, hermite and pixel_pool; test_sconv2d compiles every pool."""


def build(name: str, method: str = "direct") -> tuple[Classifier, Tensor]:
    """Return a model and images for it."""
    options = dict(OPTIONS.get(name, {}))
    if "method" in model_card(name).options:
        options["method"] = method
    if "kernel_size" in model_card(name).options:
        options["kernel_size"] = 3
    torch.manual_seed(0)
    model = create_model(name, in_channels=1, num_classes=5, **options)
    assert isinstance(model, Classifier)
    size = max(9, model.minimum_size)
    return model.eval(), torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    loss = model(x).square().sum()
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture(
    params=[
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
        if name not in ALIKE
    ]
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def quiet_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pytest from formatting the compiler's trace, which takes longer than compiling."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)


# The compiler itself instantiates a class that PyTorch would rather not have instantiated.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_in_one_graph(name: str) -> None:
    model, x = build(name)
    torch.compiler.reset()
    compiled: nn.Module = torch.compile(model, fullgraph=True, backend="aot_eager")  # type: ignore[assignment]
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)
    for mine, expected in zip(gradients(compiled, x), gradients(model, x), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def onnx_logits(program: torch.export.ExportedProgram, x: Tensor, path: Path) -> Tensor:
    """Return what the ONNX runtime makes of an exported model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    onnx_program = torch.onnx.export(program, (), dynamo=True, verbose=False)
    assert onnx_program is not None
    onnx_program.save(path)
    session = onnxruntime.InferenceSession(path)
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(logits)


@pytest.mark.filterwarnings("ignore")  # of the exporter, about its own parts
def test_exported_and_in_onnx_with_a_free_batch_size(name: str, tmp_path: Path) -> None:
    model, x = build(name)
    larger = torch.cat([x, x.flip(3)])
    expected = model(larger).detach()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(larger).detach(), expected, rtol=0, atol=1e-5)
    found = onnx_logits(program, larger, tmp_path / "model.onnx")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_bfloat16_autocast(name: str) -> None:
    model, x = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    torch.testing.assert_close(logits.float(), model(x), rtol=0, atol=2e-2)
    for gradient in torch.autograd.grad(logits.float().square().sum(), list(model.parameters())):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", [n for n in MODELS if "method" in model_card(n).options])
def test_methods_agree(name: str) -> None:
    (fast, x), (direct, _) = build(name, "auto"), build(name, "direct")
    torch.testing.assert_close(fast(x), direct(x), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model through DistributedDataParallel on two gloo processes, in one launch."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    try:
        start_processes(_train_share, (str(tmp_path),), nprocs=PROCESSES)
    except ProcessException:  # once, on a busy machine, gloo never answered: it gets a second try
        start_processes(_train_share, (str(tmp_path), "again"), nprocs=PROCESSES)
    for name in MODELS:
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        model, x = build(name)
        expected = gradients_of_mean(model, shares(x))
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def shares(x: Tensor) -> list[Tensor]:
    """Return the images of each process."""
    return list(torch.cat([x, x.flip(2)])[:4].chunk(PROCESSES))


def gradients_of_mean(model: nn.Module, shares: list[Tensor]) -> list[Tensor]:
    """Gradients of the mean loss over the processes, each with its own batch statistics."""
    model.train()
    for share in shares:
        torch.manual_seed(5)
        (share_loss(model, share) / len(shares)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def share_loss(model: nn.Module, share: Tensor) -> Tensor:
    loss: Tensor = model(share).square().sum(dim=1).mean()
    return loss


def _train_share(rank: int, folder: str, attempt: str = "first") -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{attempt}", rank=rank, world_size=PROCESSES
    )
    for name in MODELS:
        model, x = build(name)
        parallel = nn.parallel.DistributedDataParallel(model.train())
        torch.manual_seed(5)
        share_loss(parallel, shares(x)[rank]).backward()
        if rank == 0:
            torch.save([p.grad for p in model.parameters()], Path(folder) / f"{name}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
