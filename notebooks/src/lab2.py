# %% [markdown]
# # Lab 2: mixed precision
#
# Half of the bits: a number in 16 bits takes half the memory of one in 32, moves twice as fast, and modern GPUs have
# special units for products of such numbers. So why not use them for everything? Because half of the bits are
# missing. This notebook shows which ones, what goes wrong without them, and what training does about it.
#
# The experiments run as they are. Cells that say **your part** call the functions that you write in
# `labs/lab2_mixed_precision/`; until you have written one, its cell says which task is open, and the notebook
# goes on. The README of the lab has the tasks and what each point is paid for.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open(lab=2)
lab = course.modules

# %%
import torch
from torch import nn

from labkit.notebook import pictures_precision as pictures

device = course.device
torch.set_num_threads(1)  # for tensors as small as these, threads cost more than they bring

# %% [markdown]
# ## 1. What 16 bits can hold
#
# A floating-point number is a sign, an exponent and digits. The exponent says how large it is, the digits how
# exactly. A format with 16 bits must decide what to save: **float16** keeps 10 binary digits and has few exponents,
# **bfloat16** keeps all the exponents of float32 and has 7 digits. Three numbers show both troubles:

# %%
for number in (70000.0, 1e-8, 1.0004):
    shown = torch.tensor(number)
    print(
        f"{number:>8g}   float16 {shown.half().item():<22g} bfloat16 {shown.bfloat16().item():g}"
    )

# %% [markdown]
# 70 000 is too large for float16 and becomes infinite: *overflow*. 0.00000001 is too small and becomes zero:
# *underflow*. Bfloat16 holds both, roughly. And 1.0004 is 1 in both: there is no number in between.
#
# How many bits of a number survive, depending on its size? The next cell tries it for every power of two.

# %%
exponents = range(-150, 128, 1)
bits = {
    name: pictures.significant_bits(getattr(torch, name), exponents)
    for name in pictures.FORMATS
}
notebook.show(
    pictures.draw_formats(bits, exponents),
    "Bits kept over the size of a number. float32 keeps 24 bits from 2^-126 to 2^128, "
    "bfloat16 8 bits over the same range, float16 11 bits but only from 2^-14 to "
    "2^16; below its range each format loses one bit after the other.",
    is_simulated=False,
)

# %% [markdown]
# *Bits of a number that each format keeps, over the size of the number.* Read it in two directions. The width is the
# range: bfloat16 is as wide as float32, float16 is a narrow tower. The height is the precision: float16 is higher
# than bfloat16, and both are far below float32. At the left end of each format a slope goes down to zero: *subnormal*
# numbers, which have fewer and fewer bits.
#
# ### Why weights stay in float32
#
# Training adds many small updates to a weight. Next to 1, float16 has a gap of 0.00098 between two numbers, bfloat16
# of 0.0078. What becomes of 500 updates of 0.0004, rounded after each?

# %%
updates = 500
walks = {name: [1.0] for name in pictures.FORMATS}
for name, walk in walks.items():
    weight = torch.tensor(1.0, dtype=getattr(torch, name))
    for _ in range(updates):
        weight = weight + 0.0004
        walk.append(weight.item())
notebook.show(
    pictures.draw_small_updates(updates, walks),
    "A weight over 500 updates of 0.0004. In float32 it climbs from 1 to 1.2; in "
    "float16 and bfloat16 it stays 1.",
    is_simulated=False,
)

# %% [markdown]
# *A weight that receives 500 updates.* In 16 bits nothing happens at all, and nothing warns. That is why
# `model.half()`, which Lab 1 used to count bytes, is the classic mistake in training: weights, gradients and the
# state of the optimizer stay in float32, and only the *products* use 16 bits.
#
# ### Your part: `describe_formats` and `stable_softmax` (Task 2.2)
#
# The first function puts the ends of each format into numbers. The picture draws what it returns. Expect float16 as
# the short bar, its paler, subnormal part from 2⁻²⁴ to 2⁻¹⁴. Two of the three marks lie outside of it.

# %%
formats = lab.numerics.describe_formats()
notebook.show(
    pictures.draw_number_line(formats, {"1e-8": 1e-8, "1": 1.0, "70000": 7e4}),
    "Ranges of the formats as bars over powers of two: float16 is short, bfloat16 and "
    "float32 are long; a pale part at the left of each marks subnormal numbers. 1e-8 "
    "lies left of float16's bar and 70000 right of it.",
    is_simulated=False,
)

# %% [markdown]
# The second is the oldest trick against overflow. exp(100) does not fit into float32, yet the *result* of softmax
# always does. Expect the same numbers as those of PyTorch, in float16, too; a softmax written down naively gives NaN
# in the second and the third row.

# %%
rows = []
for values in ([1.0, 2.0, 3.0], [1000.0, 1001.0, 1002.0], [-60000.0, 0.0, 60000.0]):
    x = torch.tensor(values, dtype=torch.float16)
    yours, theirs = lab.numerics.stable_softmax(x), torch.softmax(x, dim=-1)
    rows.append(
        (
            str(values),
            str([round(y, 3) for y in yours.tolist()]),
            str([round(y, 3) for y in theirs.tolist()]),
        )
    )
notebook.table(("x in float16", "yours", "torch.softmax"), rows)

# %% [markdown]
# ## 2. Autocast: which operation runs in what
#
# `torch.autocast` decides for each operation. Products gain from 16 bits and bear them; sums over many numbers,
# exponentials and losses do not, and run in float32. Inside of the block you write your model as always:

# %%
layer, norm = nn.Linear(64, 64).to(device), nn.LayerNorm(64).to(device)
x = torch.randn(32, 64, device=device)
with torch.autocast(device.type, dtype=torch.float16):
    product = layer(x)
    normed = norm(product)
    chances = product.softmax(dim=-1)
    loss = nn.functional.mse_loss(product, x)
kinds = {
    "input": x,
    "weight": layer.weight,
    "linear": product,
    "layer norm": normed,
    "softmax": chances,
    "loss": loss,
}
notebook.table(
    ("tensor", "dtype"), [(name, str(tensor.dtype)) for name, tensor in kinds.items()]
)

# %% [markdown]
# The weight is still float32: autocast makes a 16-bit copy for the product and throws it away. Backward is not in the
# block. It runs each operation in the type that forward chose, whatever surrounds it, so putting it inside does no
# good and may do harm.
#
# ## 3. Gradients vanish, so the loss is scaled
#
# Gradients are small, and they become smaller as training succeeds. Where do they lie? This trains a small classifier
# of digits in float32 and then looks at the gradients that flow back between its layers.

# %%
train_batches, test_batches = lab.workloads.batches()
model = lab.workloads.classifier().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(4):
    for images, labels in train_batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()

images, labels = (tensor.to(device) for tensor in train_batches[0])
hidden = model[:3](images)  # what comes out of the first layer
deeper = model[3:5](hidden)
loss = nn.functional.cross_entropy(model[5](deeper), labels)
flowing = torch.cat(
    [gradient.flatten() for gradient in torch.autograd.grad(loss, [hidden, deeper])]
).cpu()
notebook.show(
    pictures.draw_gradients(flowing, 2.0**16),
    "Histogram of gradient sizes over powers of two. As they are, a part is below "
    "2^-25, where float16 has only zero, and most of the rest where it keeps fewer "
    "bits. Multiplied by 2^16 most are in the full-precision range.",
    is_simulated=False,
)

# %% [markdown]
# *Sizes of the gradients between the layers, as they are (orange) and multiplied by 65 536 (blue).* In float16
# everything in the left grey band becomes 0, and what follows it loses bits. Multiplying the *loss* by a number
# multiplies every gradient by it, because backward is linear. So the orange hill moves to the right as a whole.
# Before the optimizer sees them, gradients are divided by the same number, in float32, where that costs nothing.
#
# How far should the hill move? The lab's *unstable model* has a knob, `gain`, that makes its gradients larger or
# smaller without changing what it computes. For three gains and many scales: how far is the float16 gradient from the
# float32 one?

# %%
gradients_of = lab.stability_tests._gradients  # given: one forward and one backward


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


scales = [2.0**power for power in range(0, 31, 2)]
errors = {}
for power in (-14, 0, 14):
    torch.manual_seed(2)
    unstable = lab.workloads.UnstableModel(2.0**power).to(device)
    exact = flat(gradients_of(unstable, images, torch.float32, 1.0))
    scaled_gradients = [
        flat(gradients_of(unstable, images, torch.float16, scale)) / scale
        for scale in scales
    ]
    errors[pictures.power_of_two(power)] = [
        float((each - exact).norm() / exact.norm()) for each in scaled_gradients
    ]
notebook.show(
    pictures.draw_scale_errors(scales, errors),
    "Error of float16 gradients over the loss scale for three gains. With gain 2^-14 "
    "it begins near 1 and falls to 0.0003 at 2^12. With gain 2^14 it is small from "
    "the beginning, and gradients overflow from 2^14 on; with the others from 2^22 "
    "on.",
    is_simulated=False,
)

# %% [markdown]
# *Error of the float16 gradient over the loss scale.* Where the scale is too small, gradients vanish, and most of the
# gradient is missing (blue, at the left). If it is too large, they overflow (crosses). The stretch that suits the
# green model ends where that of the blue one begins. No fixed scale is right for all, and during training the stretch
# moves.
#
# ### The scale finds its own way
#
# The rule is simple. An overflow is easy to notice, because infinite and NaN stay infinite and NaN all the way to the
# parameters. If it happens, the step is worthless: skip it, and halve the scale. If it has not happened for a while,
# the scale may be smaller than it could be: double it and see. `torch.amp.GradScaler` does just that. Here it gets
# gradients from a hand-made source whose size drifts, so that we know the limit, which it does not:

# %%
weight = nn.Parameter(torch.zeros(1, device=device))
optimizer = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16, growth_interval=12)
sizes = [
    2.0 ** (6 - 8 * abs(1 - step / 90)) for step in range(180)
]  # the gradient grows, then shrinks again
loss_scales, skipped = [], []
for size in sizes:
    loss_scales.append(scaler.get_scale() if loss_scales else 2.0**16)
    scaled = scaler.scale(torch.tensor(size, device=device))
    weight.grad = scaled.half().float().reshape(1)  # through float16, as in a backward pass
    scaler.step(optimizer)
    scaler.update()
    skipped.append(bool(weight.grad.isinf()))
notebook.show(
    pictures.draw_scale(
        {"GradScaler": (loss_scales, skipped)}, limit=[65504 / size for size in sizes]
    ),
    "Loss scale over 180 steps. It comes down in halves while a dashed limit falls, "
    "each time at a cross that marks a skipped step, and climbs again in doublings "
    "when the limit rises, now and then touching it.",
    is_simulated=False,
)

# %% [markdown]
# *The loss scale of GradScaler, and the limit above which its gradients overflow.* It keeps just below a limit that
# it does not know. The price are the crosses: steps that were skipped. With the default growth interval of 2000
# steps, instead of the 12 used here, they are rare.
#
# A skipped step has a consequence that is easily forgotten: whatever counts steps (a learning-rate schedule) must not
# count this one.
#
# ### Your part: find out what went wrong (Task 2.2)
#
# `classify_gradients` gets the gradients of a first batch, and those in float32 next to it. Expect *healthy* for gain
# 1, *overflow* for large gradients at this scale, *underflow* for small gradients without scaling, and once more
# *overflow* for large activations. `trace_nonfinite` should name a layer in the last row only: there, forward has
# failed already.

# %%
rows = []
for name, gain, scale in (
    ("harmless", lab.workloads.HARMLESS, 2.0**16),
    ("large gradients", lab.workloads.LARGE_GRADIENTS, 2.0**16),
    ("small gradients", lab.workloads.SMALL_GRADIENTS, 1.0),
    ("large activations", lab.workloads.LARGE_ACTIVATIONS, 1.0),
):
    torch.manual_seed(2)
    unstable = lab.workloads.UnstableModel(gain).to(device)
    verdict = lab.numerics.classify_gradients(
        gradients_of(unstable, images, torch.float16, scale),
        gradients_of(unstable, images, torch.float32, 1.0),
    )
    layer_name = lab.numerics.trace_nonfinite(unstable, images)
    rows.append((name, f"{gain:g}", f"{scale:g}", verdict, layer_name or "-"))
notebook.table(("model", "gain", "loss scale", "gradients are", "first bad layer"), rows)

# %% [markdown]
# ### Your part: a loss scale by hand (Task 2.2)
#
# `train_unstable` with your `DynamicLossScale`, which is to grow after 10 good steps here. Expect *large gradients*
# to come down step by step from 2¹⁶ before the first step is taken; *small gradients* and *harmless* to grow from
# time to time; and *large activations* to come down for ever, because a loss scale acts on gradients, and forward is
# what fails.

# %%
runs = {}
for name, gain in (
    ("harmless", lab.workloads.HARMLESS),
    ("large gradients", lab.workloads.LARGE_GRADIENTS),
    ("small gradients", lab.workloads.SMALL_GRADIENTS),
    ("large activations", lab.workloads.LARGE_ACTIVATIONS),
):
    torch.manual_seed(2)
    scale = lab.stability_tests.DynamicLossScale(growth_interval=10)
    unstable = lab.workloads.UnstableModel(gain).to(device)
    runs[name] = lab.stability_tests.train_unstable(
        unstable, train_batches, 3, loss_scale=scale
    )
walks = {
    name: (
        run.scales,
        [
            after < now
            for now, after in zip(
                run.scales, (*run.scales[1:], run.scales[-1]), strict=True
            )
        ],
    )
    for name, run in runs.items()
}
notebook.show(
    pictures.draw_scale(walks, title="Your loss scale on four models"),
    "Loss scale over 36 steps for four models. Large gradients: down in halves at the "
    "first steps, then up and down. Harmless and small gradients: up in doublings. "
    "Large activations: down at every step.",
    is_simulated=False,
)
notebook.show(
    pictures.draw_losses(
        {name: run.losses for name, run in runs.items()}, "What that does to training"
    ),
    "Mean loss over the epochs. Three models learn alike; the one with large "
    "activations has no line, for it made no step.",
    is_simulated=False,
)

# %% [markdown]
# *Above: the loss scale of each batch; below: the losses.* Three of the four train alike, though their gradients
# differ by a factor of 2²⁸; one of them is late by the steps it skipped. The fourth has no line below, since it
# never made a step. Would bfloat16 help it? Try `dtype=torch.bfloat16` and `loss_scale=None`, and say why in the
# report.
#
# ## 4. Your part: training in each precision (Task 2.1)
#
# Now everything together, on real handwriting. Expect three curves on top of each other, accuracies within one image
# in a hundred, no more than a few skipped steps in float16, and no scale for the other two.

# %%
trainings, rows = {}, []
for name, dtype in lab.readings.PRECISIONS.items():
    model = lab.workloads.classifier()
    trainings[name] = lab.amp_training.train_with_amp(
        model, train_batches, 6, device=device, dtype=dtype
    )
    accuracy = lab.amp_training.evaluate(model, test_batches, device=device, dtype=dtype)
    training = trainings[name]
    scale = "-" if training.final_scale is None else f"{training.final_scale:g}"
    rows.append(
        (name, f"{accuracy:.1%}", training.optimizer_steps, training.skipped_steps, scale)
    )
notebook.table(("precision", "accuracy", "steps", "skipped", "last scale"), rows)
notebook.show(
    pictures.draw_losses(
        {name: training.losses for name, training in trainings.items()},
        "Digits in three precisions",
    ),
    "Training loss over six epochs in float32, float16 and bfloat16: the three curves "
    "coincide.",
    is_simulated=False,
)

# %% [markdown]
# ### Is the clipping right?
#
# Clipping limits the length of the gradient. If it sees gradients that are still multiplied by 65 536, it finds every
# one of them far too long and shrinks it to almost nothing. No error is raised, and the loss simply does not fall. So
# compare a float16 run with a float32 run, both clipped, both with plain SGD (Adam would hide it): the lines must
# agree.

# %%
clipped = {}
for name in ("float32", "float16"):
    model = lab.workloads.classifier().to(device)
    clipped[name] = lab.amp_training.train_with_amp(
        model,
        train_batches,
        2,
        dtype=lab.readings.PRECISIONS[name],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        max_grad_norm=0.5,
    )
notebook.show(
    pictures.draw_losses(
        {name: training.losses for name, training in clipped.items()},
        "Clipped to a norm of 0.5, with SGD",
    ),
    "Loss over two epochs with clipping in float32 and in float16: the two lines fall "
    "together.",
    is_simulated=False,
)

# %% [markdown]
# ## 5. What it saves, and why not more
#
# You will read "twice as fast, half the memory". Look where the time of a forward pass of a larger model goes (four
# transformer blocks), in each precision:

# %%
from torch.profiler import ProfilerActivity, profile

PRODUCTS = ("mm", "attention")  # addmm, bmm, ..., and scaled dot-product attention
times = {}
with course.times_only():
    tokens, _ = lab.workloads.large_batch()
    tokens, model = tokens.to(device), lab.workloads.large_model(layers=4).to(device)
    for name, dtype in lab.readings.PRECISIONS.items():
        with (
            torch.no_grad(),
            torch.autocast(device.type, dtype=dtype, enabled=name != "float32"),
        ):
            model(tokens)  # warm-up
            with profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
            ) as profiler:
                model(tokens)
        times[name] = {"products": 0.0, "everything else": 0.0}
        for event in profiler.key_averages():
            if event.key.startswith("aten::"):
                kind = (
                    "products"
                    if any(word in event.key for word in PRODUCTS)
                    else "everything else"
                )
                times[name][kind] += event.self_device_time_total / 1e3
notebook.show(
    pictures.draw_kinds(times),
    "Device time of a forward pass by precision, products and everything else. On a "
    "T4 products take most of the time in float32, an eighth of that in float16, and "
    "in bfloat16 as much as in float32; everything else hardly changes.",
)

# %% [markdown]
# *Device time of one forward pass.* Only the blue part can use the units for 16-bit products. The orange part (norms,
# activations, additions, the casts themselves) waits for memory, and the optimizer, which is not in this picture,
# stays in float32 as a whole. The rest of a step cannot be faster than its orange part. And which precision has
# such units depends on the GPU. A T4 has none for bfloat16, and no fused attention either, so that there is even more
# of the rest.
#
# ### Your part: compare the precisions (Task 2.3)
#
# Speed and memory of a training step of that model, by your `compare_precisions`, and what follows by your
# `conclude`. On the virtual GPU it is measured on a T4 and on an H100. Expect another ranking on each of the two, and
# memory that shrinks by less than half: which parts of it are still float32? In bfloat16 on a T4 it hardly shrinks at
# all, for another reason: what does attention that is not fused keep for backward? (The accuracies are placeholders
# here; the program fills them in.)

# %%
import vgpu

accuracies = dict.fromkeys(lab.readings.PRECISIONS, 0.96)
machines = {course.hardware.name: course.times_only}
if course.simulated:
    machines["H100 (virtual)"] = lambda: vgpu.attach("H100", values=False, force=True)
compared, rows = {}, []
for name, machine in machines.items():
    with machine():
        compared[name] = lab.precision_comparison.compare_precisions(
            accuracies,
            lambda: lab.workloads.large_model(layers=4),
            device=device.type,
            steps=2,
            warmup=1,
        )
    conclusion = lab.precision_comparison.conclude(compared[name])
    rows.append(
        (
            name,
            *(f"{conclusion.speedups[each]:.2f}" for each in ("float16", "bfloat16")),
            conclusion.fastest,
            conclusion.recommended,
        )
    )
notebook.show(
    pictures.draw_comparison(compared),
    "Samples per second and peak memory by precision and GPU. On a T4 float16 is more "
    "than four times as fast and bfloat16 no faster than float32; on an H100 both are "
    "about eight times as fast. Peak memory in 16 bits is about two thirds of "
    "float32's, but hardly less in bfloat16 on a T4.",
)
notebook.table(
    ("GPU", "speed-up float16", "speed-up bfloat16", "fastest", "recommended"), rows
)

# %% [markdown]
# *Speed (left) and peak memory (right).* The same program, other conclusions: which is why `conclude` must follow the
# numbers it is given, and not what one has read.
#
# ## 6. Work in the notebook, if you like
#
# You can write a function here instead of in the file. Begin the cell with `# export:` and the name of the module,
# define the function with the same name and arguments as the stub, run it, and then, in a terminal,
#
#     .venv/bin/gpulabs notebook export notebooks/lab2.ipynb
#
# replaces the stub with it. It never overwrites something newer without asking.

# %%
# Take away the first "# " of each line below to use it.
# # export: lab2_mixed_precision/numerics.py
# def find_nonfinite(model):
#     ...

# %% [markdown]
# ## 7. How far you are
#
# The next cell grades this lab as `make grade LAB=2` does, and says what to do next. The four programs of the lab and
# the report are not in this notebook: run them in a terminal, with the same `--device` for all.
#
# While you work, a cell with `%grade lab2.amp` asks one criterion, again only what your last edit can have
# changed.

# %%
course.grade()
