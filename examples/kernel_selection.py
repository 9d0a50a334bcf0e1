# %% [markdown]
# # Which kernel does a scaled convolution choose?
#
# A scaled convolution applies one kernel at many sizes and keeps the strongest response. It should
# choose a larger kernel for a larger object. The figure needs `pip install 'equiscale[report]'`.

# %%
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from equiscale import SConv2d, StirDataset
from equiscale.core.spec import CANVAS, OBJECT_SIZES
from equiscale.data.schema import METADATA_KEYS, StirArrays
from equiscale.metrics import scale_selection

# %% [markdown]
# Discs and rings of every size from 17 to 64 pixels, in the middle of the canvas. A dataset from
# `equiscale.load_dataset("emoji")` works as well.


# %%
def draw(shape: str, size: int) -> np.ndarray:
    """`-> [64, 64]`: a disc or ring of this diameter, with soft edges."""
    axis = np.arange(CANVAS) - (CANVAS - 1) / 2
    distance = np.hypot(axis[:, None], axis[None, :]) / (size / 2)
    value = 1 - distance**4 if shape == "disc" else 1 - ((distance - 0.7) / 0.3) ** 2
    return (255 * np.clip(value, 0, 1)).astype(np.uint8)


shapes = ("disc", "ring")
images = np.stack([[[draw(shape, size)] for shape in shapes] for size in OBJECT_SIZES])
corners = np.array([(CANVAS - size) // 2 for size in OBJECT_SIZES])[None, :, None, None, None]
dataset = StirDataset(
    "shapes",
    StirArrays.assemble(
        np.stack([images] * 3),
        np.broadcast_to(corners, (3, 48, 2, 1, 2)),
        shapes,
        dict.fromkeys(METADATA_KEYS, "made by an example"),
    ),
)

# %% [markdown]
# One layer whose kernels are a small disc and a small ring that sum to zero. A trained network,
# such as those of `equiscale.load_model`, has learned its kernels.

# %%
layer = SConv2d(1, len(shapes), 7, pool="pixel", bias=False)
axis = torch.arange(7) - 3.0
distance = torch.hypot(axis[:, None], axis[None, :])
kernels = torch.stack([(distance <= 2.2).float(), ((distance - 2.2).abs() < 0.7).float()])
with torch.no_grad():
    layer.weight.copy_((kernels - kernels.mean((1, 2), keepdim=True))[:, None])

# %% [markdown]
# `scale_selection` records the kernel sizes that every pooling layer of a model chooses, for all
# test objects at all sizes.

# %%
selection = scale_selection(nn.Sequential(layer), dataset)
chosen = selection.chosen["0"]  # [48 object sizes, objects, channels]
sizes = selection.object_sizes.astype(float)

figure = Figure(figsize=(5, 3.5), layout="constrained")
axes = figure.subplots()
for index, shape in enumerate(shapes):
    kernel_sizes = chosen[:, index, index].astype(float)  # the channel made for this shape
    r = np.corrcoef(sizes, kernel_sizes)[0, 1]
    axes.plot(sizes, kernel_sizes, label=f"{shape}, r = {r:.2f}")
    print(f"{shape}: kernels {kernel_sizes.min():.0f}…{kernel_sizes.max():.0f}, r = {r:.3f}")
axes.set(xlabel="object size (pixels)", ylabel="chosen kernel size (pixels)")
axes.legend()
figure.savefig("kernel_selection.png", dpi=120)

# %% [markdown]
# For the models of the paper, `equiscale figures --only fig7-slice-selection` draws this from the
# records of finished runs. The page (`equiscale report`) shows the kernels at any object size.
