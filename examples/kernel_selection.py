# %% [markdown]
# # Which kernel does a scaled convolution choose?
#
# A scaled convolution applies one kernel at many sizes and keeps the strongest response. It should
# choose a larger kernel for a larger object. The figure needs `pip install 'equiscale[report]'`.

# %%
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from equiscale import SConv2d
from equiscale.metrics import scale_selection, selection_correlation

# %% [markdown]
# Discs and rings of every size from 17 to 64 pixels, in the middle of the image.


# %%
def draw(shape: str, size: int, side: int = 64) -> Tensor:
    """`-> [1, side, side]`: a disc or ring of this diameter, with soft edges."""
    axis = torch.arange(side) - (side - 1) / 2
    distance = torch.hypot(axis[:, None], axis[None, :]) / (size / 2)
    value = 1 - distance**4 if shape == "disc" else 1 - ((distance - 0.7) / 0.3) ** 2
    return value.clamp(0, 1)[None]


shapes = ("disc", "ring")
object_sizes = torch.arange(17, 65)

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
# `scale_selection` returns the kernel size that each pooling layer of a model chooses, by layer:
# `[images, channels]`.

# %%
figure = Figure(figsize=(5, 3.5), layout="constrained")
axes = figure.subplots()
for channel, shape in enumerate(shapes):
    images = torch.stack([draw(shape, size) for size in object_sizes.tolist()])
    chosen = scale_selection(nn.Sequential(layer), images)["0"][:, channel]
    r = float(selection_correlation(object_sizes, chosen))
    axes.plot(object_sizes, chosen, label=f"{shape}, r = {r:.2f}")
    print(f"{shape}: kernels {int(chosen.min())}…{int(chosen.max())}, r = {r:.3f}")
axes.set(xlabel="object size (pixels)", ylabel="chosen kernel size (pixels)")
axes.legend()
figure.savefig("kernel_selection.png", dpi=120)

# %% [markdown]
# For the models of the paper, `equiscale figures --only fig7-slice-selection` draws this from the
# records of finished runs. The page (`equiscale report`) shows the kernels at any object size.
