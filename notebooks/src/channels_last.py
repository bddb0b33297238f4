# %% [markdown]
# # Channels last: what tensor cores want of an image
#
# Lab 2 makes products faster by halving their bits. For networks with convolutions that is only half of what there is
# to gain: the other half is the *order* of an image in memory. This notebook goes with [Lab 2](lab2.ipynb);
# it has no tasks, and nothing in it is graded.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open()

# %% [markdown]
# ## 1. Two orders for one tensor
#
# A batch of images has four sizes: images (N), channels (C), rows (H), columns (W). PyTorch lays it down channel by
# channel, *NCHW*: first all of the red, then all of the green. `torch.channels_last` lays it down pixel by pixel,
# *NHWC*. The shape stays, and so do the values; what changes are the strides.

# %%

import torch
from torch import nn

from labkit.notebook import pictures_laws as pictures

device = course.device
LAST = torch.channels_last
PLAIN = torch.contiguous_format

image = torch.arange(8.0).reshape(1, 2, 2, 2)  # 2 channels of 2 x 2 pixels
notebook.table(
    ("order", "shape", "strides", "numbers in the order of memory"),
    [
        (name, tuple(x.shape), x.stride(), str(x.as_strided((8,), (1,)).int().tolist()))
        for name, x in (("NCHW", image), ("NHWC", image.to(memory_format=LAST)))
    ],
)

# %% [markdown]
# A convolution multiplies, for each pixel, *all channels* of its neighbourhood with a matrix. Tensor cores take such
# products in small blocks, whose rows are channels of one pixel, and these are neighbours in NHWC only. So with 16-bit
# numbers in NCHW cuDNN transposes the operands, computes, and transposes the result back, in every single call
# (NVIDIA, *Convolutional Layers User's Guide*, section "Tensor Layouts In Memory: NCHW vs NHWC").
#
# ## 2. One convolution
#
# A 3 x 3 convolution of 64 images, forward and backward, for 64 to 1024 channels. The more channels, the fewer pixels,
# so that all have about the same bytes of images to move. How many times faster is it with channels last?


# %%
def convolution_seconds(channels, side, dtype, order):
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    layer = layer.to("cuda", dtype, memory_format=order)
    x = torch.randn(64, channels, side, side, device="cuda", dtype=dtype)
    x = x.to(memory_format=order).requires_grad_()
    gradient = torch.empty_like(x)
    return notebook.seconds_of(lambda: layer(x).backward(gradient))


gains, rows = {"float32": [], "float16": []}, []
with course.times_only():
    for channels, side in ((64, 112), (128, 79), (256, 56), (1024, 28)):
        for name, points in gains.items():
            plain, last = (
                convolution_seconds(channels, side, getattr(torch, name), order)
                for order in (PLAIN, LAST)
            )
            points.append((channels, plain / last))
            rows.append(
                (
                    channels,
                    name,
                    round(plain * 1e3, 2),
                    round(last * 1e3, 2),
                    round(plain / last, 2),
                )
            )
notebook.table(
    ("channels", "dtype", "NCHW, ms", "NHWC, ms", "times faster"),
    rows,
    title=f"A convolution, forward and backward; {course.hardware.name}"
    + (", simulated" if course.simulated else ""),
)
notebook.show(
    pictures.draw_layout_gain(gains),
    "How many times faster a 3 x 3 convolution is with channels last, over 64 to 1024 "
    "channels. On a T4 float32 stays at 1; float16 gains most with 64 channels and less with "
    "more of them.",
)

# %% [markdown]
# *The gain of channels last over the number of channels.* In float32 a T4 computes on its CUDA cores, which take images
# as they are. In float16 the products grow with the square of the channels and the transpositions with the channels
# only, so the price of the wrong order is highest where there is little to compute. (From the A100 on, convolutions of
# float32 numbers run on tensor cores too, in TF32, unless that is forbidden, and then they pay as well.)
#
# ## 3. A whole network
#
# A ResNet-50 is made of such convolutions, with norms, ReLU and additions between them, which wait for memory in any
# order. A training step of 64 images, in four ways:


# %%
class Bottleneck(nn.Module):
    """1 x 1 to fewer channels, 3 x 3, 1 x 1 back to more, and the input added (K. He et al. 2016, arXiv:1512.03385)."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.body = nn.Sequential()
        for ins, outs, window, step in (
            (inside, width, 1, 1),
            (width, width, 3, stride),
            (width, 4 * width, 1, 1),
        ):
            self.body.append(nn.Conv2d(ins, outs, window, step, window // 2, bias=False))
            self.body.append(nn.BatchNorm2d(outs))
            self.body.append(nn.ReLU() if outs == width else nn.Identity())
        same = stride == 1 and inside == 4 * width
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inside, 4 * width, 1, stride, bias=False),
                nn.BatchNorm2d(4 * width),
            )
        )

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inside, width, stride if block == 0 else 1))
            inside = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000)
    )


def step_seconds(autocast, order, images=64):
    with torch.device("cuda"):
        model = resnet50().to(memory_format=order)
        x = torch.randn(images, 3, 224, 224).to(memory_format=order)
        labels = torch.zeros(images, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=autocast)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return notebook.seconds_of(step, calls=2)


machines = {course.hardware.name: course.times_only}
if course.simulated:
    import vgpu

    machines["A100-40GB"] = lambda: vgpu.attach("A100-40GB", values=False, force=True)
ways = {
    "float32": (False, PLAIN),
    "float32, channels last": (False, LAST),
    "autocast": (True, PLAIN),
    "autocast, channels last": (True, LAST),
}
rows = []
for card, machine in machines.items():
    with machine():
        seconds = {way: step_seconds(*settings) for way, settings in ways.items()}
    rows += [
        (card, way, round(value * 1e3, 1), round(seconds["float32"] / value, 2))
        for way, value in seconds.items()
    ]
notebook.table(
    ("GPU", "way", "one step, ms", "times faster"),
    rows,
    title="ResNet-50, 64 images of 224 x 224" + (", simulated" if course.simulated else ""),
)

# %% [markdown]
# Autocast without channels last is half of the way. Two lines are all there is to do, once, before training:
#
#     model = model.to(memory_format=torch.channels_last)
#     images = images.to(memory_format=torch.channels_last)    # each batch
#
# How far to trust the simulated figures: the virtual A100 was compared with what NVIDIA measured with this network
# ([DeepLearningExamples](https://github.com/NVIDIA/DeepLearningExamples), in both orders); the page *How we know* has
# them next to each other.
#
# ## 4. How the order gets lost
#
# Operations hand on the order of what they get. One that does not, somewhere in the middle, and each convolution
# behind it pays again. These run with real values:

# %%
x = torch.randn(2, 8, 6, 6, device=device).to(memory_format=LAST)
weight = torch.randn(8, 8, 3, 3, device=device)
results = {
    "torch.relu(x)": torch.relu(x),
    "x + x": x + x,
    "max_pool2d(x, 2)": nn.functional.max_pool2d(x, 2),
    "torch.cat([x, x], dim=1)": torch.cat([x, x], dim=1),
    "conv2d(x, weight)": nn.functional.conv2d(x, weight),
    "x.contiguous()": x.contiguous(),
    "nn.ChannelShuffle(2)(x), by hand": x.view(2, 2, 4, 6, 6).transpose(1, 2).flatten(1, 2),
}
notebook.table(
    ("operation", "is it channels last?"),
    [
        (name, "yes" if y.is_contiguous(memory_format=LAST) else "no")
        for name, y in results.items()
    ],
)

# %% [markdown]
# `x.contiguous()`, which many write to be on the safe side, is the usual culprit;
# `x.contiguous(memory_format=torch.channels_last)` is what was meant. The last line, `view`, `transpose` and `flatten`,
# has to copy, and a copy whose order nobody asked for is NCHW.
#
# ## 5. Exercise: predict, then measure
#
# Write down how many *times faster* you expect each of these to be with channels last, replacing each `None` with a
# number. Run the cell, then the next one, which measures. A prediction within 20 percent counts as found.
#
# 1. A step of the ResNet-50 above in float32 on a T4.
# 2. The convolution above with 512 channels, in float16 on a T4 (64 images of 40 x 40).
# 3. A step of the ResNet-50 with autocast on an H100, for a *single* image.

# %%
my_prediction = {
    "1. ResNet-50, float32, T4": None,
    "2. 512 channels, float16, T4": None,
    "3. one image, autocast, H100": None,
}


# %%
def measure():
    import vgpu

    with vgpu.attach("T4", values=False, force=True):
        first = step_seconds(False, PLAIN) / step_seconds(False, LAST)
        plain, last = (
            convolution_seconds(512, 40, torch.float16, order) for order in (PLAIN, LAST)
        )
    with vgpu.attach("H100", values=False, force=True):
        third = step_seconds(True, PLAIN, images=1) / step_seconds(True, LAST, images=1)
    return dict(zip(my_prediction, (first, plain / last, third), strict=True))


notebook.check_prediction(
    my_prediction,
    measure,
    within=1.2,
    because="CUDA cores take images as they are, so there is nothing to gain in float32 on a T4. With 512 channels the "
    "gain lies between those of 256 and 1024 in the picture. And a single image leaves an H100 waiting for Python, "
    "whatever its kernels do: that is the subject of launches.ipynb.",
)

# %% [markdown]
# **Try it.** What does channels last bring at inference, in `eval` mode under `torch.no_grad()`, and why not the same
# as in training? Which operations of a step have nothing to gain from it?
