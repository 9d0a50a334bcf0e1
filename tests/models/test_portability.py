"""Compiled, exported, in half precision, distributed: the same model, over the whole registry.

Tolerances are absolute, for logits of order 0.1: 1e-5 for compiled and exported models, 1e-4 for
ONNX, 2e-2 for bfloat16, which keeps eight bits.
"""

from __future__ import annotations

import io
import logging
import socket
import warnings
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, distributed, nn

from equiscale.models import Classifier, create_model, list_models, model_card

ONNX_BICUBIC = {"pixel_pool", "slice_pool", "energy_pool", "conv3d"}


def build(name: str, method: str = "direct") -> tuple[Classifier, Tensor]:
    """Return a model and images as small as it takes, so that few scales are unrolled."""
    card = model_card(name)
    options: dict[str, object] = {}
    size = 21 if name == "conv3d" else 31 if name in ("hermite", "disco") else 16
    if "image_size" in card.options:
        options["image_size"] = size
    if "method" in card.options:
        options["method"] = method
    torch.manual_seed(0)
    model = create_model(name, in_channels=1, num_classes=5, **options)
    assert isinstance(model, Classifier)
    return model, torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    loss = model(x).square().sum()
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture(params=list_models())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_compiled_in_one_graph(name: str) -> None:
    model, x = build(name)
    torch.compiler.reset()
    compiled: nn.Module = torch.compile(model, fullgraph=True, backend="aot_eager")  # type: ignore[assignment]
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)
    for mine, expected in zip(gradients(compiled, x), gradients(model, x), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def test_exported_with_a_free_batch_size(name: str) -> None:
    model, x = build(name)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: batch},))
    larger = torch.cat([x, x.flip(3)])
    torch.testing.assert_close(program.module()(larger), model(larger), rtol=0, atol=1e-5)


def test_onnx_with_a_free_batch_size(name: str, request: pytest.FixtureRequest) -> None:
    if name in ONNX_BICUBIC:
        reason = "the bicubic kernels are resized inside the graph, where ONNX does it differently"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = build(name)
    batch = torch.export.Dim("batch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own parts
        program = torch.onnx.export(
            model.eval(), (x,), dynamo=True, verbose=False, dynamic_shapes=({0: batch},)
        )
    assert program is not None
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    larger = torch.cat([x, x.flip(3)])
    (logits,) = session.run(None, {session.get_inputs()[0].name: larger.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(larger), rtol=0, atol=1e-4)


def test_bfloat16_autocast(name: str) -> None:
    model, x = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    torch.testing.assert_close(logits.float(), model(x), rtol=0, atol=2e-2)
    for gradient in torch.autograd.grad(logits.float().square().sum(), list(model.parameters())):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()


def test_methods_agree(name: str) -> None:
    if "method" not in model_card(name).options:
        pytest.skip(f"{name} has one method")
    (fast, x), (direct, _) = build(name, "auto"), build(name, "direct")
    torch.testing.assert_close(fast(x), direct(x), rtol=0, atol=1e-5)


def test_two_processes_give_the_gradients_of_one(tmp_path: Path) -> None:
    """Every model through DistributedDataParallel on two gloo processes, in one launch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_distributed_worker, (port, str(tmp_path)), nprocs=2, start_method="spawn")
    for name in list_models():
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        model, x = build(name)
        for mine, expected in zip(found, gradients_of_mean(model, x), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def gradients_of_mean(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Gradients for the mean over a batch that two processes can share."""
    pair = torch.cat([x, x.flip(2)])[:4]
    model(pair).square().sum(dim=1).mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def _distributed_worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    for name in list_models():
        model, x = build(name)
        parallel = nn.parallel.DistributedDataParallel(model)
        share = torch.cat([x, x.flip(2)])[:4][2 * rank : 2 * rank + 2]
        parallel(share).square().sum(dim=1).mean().backward()
        if rank == 0:
            torch.save([p.grad for p in model.parameters()], Path(folder) / f"{name}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
