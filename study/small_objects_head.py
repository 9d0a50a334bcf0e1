"""A new classifier on a frozen pretrained network: trained on large objects, tested on small ones.

    python -m study.small_objects_head       # needs what study.small_objects needs

Ten categories of stamps (birds, mammals, vehicles, ...), split by the hash of their names. The
features of EfficientNet-Lite0 stay as they are; a linear classifier is trained on objects that
fill the canvas, on the same pictures with `RandomObjectSize`, or on their reduced views in
`scale_channels`. It is tested on other stamps and scenes, with and without `ObjectSearch`. Nothing
was chosen on the test pictures.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from equiscale import ObjectSearch, RandomObjectSize, scale_channels
from study.small_objects import SIZES, TUXPAINT, Lite0, half, number, render, table, to_tensor

RESULTS = Path(__file__).with_suffix(".json")
CATEGORIES = (
    *("animals/birds", "animals/fish", "animals/insects", "animals/mammals", "food/fruit"),
    *("food/vegetables", "hobbies/music", "plants/flowers", "sports", "vehicles"),
)
REPEATS = 4  # pictures per training stamp
BUDGET = 4
FACTORS = (0.25, 0.35, 0.5, 0.71, 1.0)


def stamps(test: bool) -> list[tuple[str, int]]:
    """Return names and categories of the photos of one split."""
    found = []
    for category, folder in enumerate(CATEGORIES):
        for path in sorted((TUXPAINT / "stamps" / folder).rglob("*.png")):
            name = str(path.relative_to(TUXPAINT / "stamps").with_suffix(""))
            photo = "cartoon" not in name and "_mirror" not in name
            if photo and max(Image.open(path).size) >= 64 and (number(name) % 5 < 2) == test:
                found.append((name, category))
    return found


def training_pictures(augment: bool) -> tuple[Tensor, Tensor]:
    """Return images `[N, 3, 224, 224]` and categories `[N]`."""
    transform = RandomObjectSize((min(SIZES), 224), generator=torch.Generator().manual_seed(0))
    _, scenes = half(held_out=False)
    images, labels = [], []
    for name, category in stamps(test=False):
        for repeat in range(REPEATS):
            picture, box = render(name, 224, scenes, repeat)
            image = to_tensor(picture)
            if augment:
                image, _ = transform(image, {"boxes": torch.tensor(box)})
            images.append(image)
            labels.append(category)
    return torch.stack(images), torch.tensor(labels)


def train(features: Tensor, labels: Tensor) -> nn.Linear:
    """`[N, 1280], [N] ->` a linear classifier, by logistic regression with weight decay."""
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], len(CATEGORIES))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(head(features), labels) + 1e-3 * head.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return head


@torch.no_grad()
def test(network: Lite0, model: nn.Module) -> dict[str, list[float]]:
    """Return the accuracy at each size of the network in a wrapper, or of itself."""
    network.passes = 0
    _, scenes = half(held_out=True)
    names = stamps(test=True)
    accuracy = []
    for size in SIZES:
        right = 0
        for name, category in names:
            image = to_tensor(render(name, size, scenes, 0)[0])[None]
            right += int(model(image).argmax()) == category
        accuracy.append(round(100 * right / len(names), 1))
    return {"accuracy": accuracy, "passes": [network.passes / len(names) / len(SIZES)]}


def main() -> None:
    """Train, test and print the table."""
    network, results = Lite0(), {}
    search, channels = ObjectSearch(network, BUDGET), scale_channels(network, factors=FACTORS)
    plain, views = {"": network, ", search": search}, channels.eval().views
    for name, augment, wrappers in (
        ("full-size objects", False, plain),
        ("RandomObjectSize", True, plain),
        ("scale_channels", False, {"": channels}),
    ):
        images, labels = training_pictures(augment)
        if name == "scale_channels":
            images, labels = torch.cat([*views(images).values()]), labels.repeat(len(FACTORS))
        maps = [network.forward_features(some).mean(dim=(2, 3)) for some in images.split(8)]
        network.classifier = train(torch.cat(maps), labels)
        for wrapper, model in wrappers.items():
            results[name + wrapper] = test(network, model)
            print(name + wrapper, results[name + wrapper], flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(len(stamps(test=False)), "training and", len(stamps(test=True)), "test stamps")
    print(table(results))


if __name__ == "__main__":
    main()
