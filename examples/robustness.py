# %% [markdown]
# # How robust is my network to the size of things in my pictures?
#
# Make a benchmark from a folder of pictures, one sub-folder per class, and look at the accuracy of
# a network at each object size from 17 to 64 pixels. Needs `pip install 'equiscale[build]'`.

# %%
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import nn

import equiscale
from equiscale.build.folder import FolderOptions, build_folder
from equiscale.core.spec import Scenario, Split
from equiscale.data.schema import write_arrays

# %% [markdown]
# Put the path of your own folder here. This one draws a few pictures of three shapes, so that the
# example runs anywhere.

# %%
folder = Path(tempfile.mkdtemp())
pictures = folder / "pictures"


def draw_shape(shape: str, number: int) -> Image.Image:
    """Return a picture of a shape in its own shade."""
    picture = Image.new("L", (100, 100))
    pen, shade = ImageDraw.Draw(picture), 255 - 10 * number
    if shape == "disc":
        pen.ellipse((2, 2, 97, 97), fill=shade)
    elif shape == "frame":
        pen.rectangle((2, 2, 97, 97), outline=shade, width=14)
    else:
        pen.line((50, 2, 50, 97), fill=shade, width=20)
        pen.line((2, 50, 97, 50), fill=shade, width=20)
    return picture


for shape in ("cross", "disc", "frame"):
    (pictures / shape).mkdir(parents=True)
    for number in range(6):
        draw_shape(shape, number).save(pictures / shape / f"{number}.png")

# %% [markdown]
# Every object is shown at all 48 sizes, at random places; whole pictures go to training, validation
# or test. On the command line:
# `equiscale data build folder --source pictures --name shapes --grey`.

# %%
arrays = build_folder(pictures, FolderOptions(name="shapes", grey=True))
write_arrays(folder / "shapes.npz", arrays)
dataset = equiscale.load_dataset(folder / "shapes.npz")
print(dataset)

# %% [markdown]
# Any network will do. This one is trained for a moment on medium objects only.

# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 7, stride=2),
    nn.ReLU(),
    nn.Conv2d(8, 16, 5, stride=2),
    nn.ReLU(),
    nn.AdaptiveMaxPool2d(1),
    nn.Flatten(),
    nn.Linear(16, dataset.num_classes),
)
train = dataset.select(Split.TRAIN, Scenario.MID_TO_REST)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(40):
    for batch in torch.randperm(len(train)).split(32):
        loss = nn.functional.cross_entropy(model(train.images[batch]), train.labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% [markdown]
# The answer, at each object size; sizes it was trained on are marked.

# %%
test = dataset.select(Split.TEST)
predictions = equiscale.metrics.predict(model, test.images)
sizes, values, _ = equiscale.metrics.accuracy_by_size(predictions, test.labels, test.object_sizes)
accuracy = dict(zip(sizes.tolist(), values.tolist(), strict=True))
trained = Scenario.MID_TO_REST.train_sizes()
for size in range(20, 65, 4):
    bar = "█" * round(30 * accuracy[size])
    print(f"{size} px {'*' if size in trained else ' '} {accuracy[size]:6.1%} {bar}")

unseen = [value for size, value in accuracy.items() if size not in trained]
seen = [value for size, value in accuracy.items() if size in trained]
print(f"trained sizes {sum(seen) / len(seen):.1%}, other sizes {sum(unseen) / len(unseen):.1%}")

# %% [markdown]
# The whole treatment, with every scenario and several seeds, is one call,
# `equiscale.benchmark(MyNet, dataset="shapes")`, or one command,
# `equiscale bench my_module:MyNet --data shapes`.
