"""A network of the size and shape of ResNet-50, for figures that want a usual one."""

from typing import Any

from torch import nn


class Block(nn.Module):
    """A bottleneck with its shortcut."""

    def __init__(self, wide: int, narrow: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(wide, narrow, 1, 1), nn.ReLU(), *_conv(narrow, narrow, 3, stride), nn.ReLU()
        )
        self.last = nn.Sequential(*_conv(narrow, 4 * narrow, 1, 1))
        is_same = wide == 4 * narrow and stride == 1
        self.short = nn.Identity() if is_same else nn.Sequential(*_conv(wide, 4 * narrow, 1, stride))

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.last(self.body(x)) + self.short(x))


def _conv(wide: int, narrow: int, size: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(wide, narrow, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(narrow),
    ]


def resnet50() -> nn.Module:
    """25.6 million parameters in 161 tensors."""
    layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    wide = 64
    for narrow, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Block(wide, narrow, 1 if number else stride))
            wide = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))
