"""Networks of the size that GPUs are bought for. Not for the labs: theirs are in `labkit.models`."""

from torch import nn


def resnet18(channels: int, classes: int) -> nn.Module:
    """torchvision's ResNet-18 whose first layer suits small pictures: 3 x 3, stride 1, no pooling (He et al. 2016).

    Maps images [N, channels, height, width] to logits [N, classes].
    """
    from torchvision.models import resnet18 as build  # not at the top: it costs seconds

    net: nn.Module = build(num_classes=classes)
    net.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net
