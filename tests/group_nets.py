"""Networks with groups written by hand, and what is common to tests of gates, scores and selection."""

import torch
from torch import nn

from edgecompress.core.types import Cut, Group
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.nets.sources import load_model


def cut(module, axis, **places):
    return Cut(module=module, axis=axis, **places)


def group(name, kind, width, cuts, gates):
    return Group(name=name, kind=kind, width=width, cuts=tuple(cuts), gates=tuple(gates))


def conv_group(name, width, conv, norm, *readers):
    """Returns the channels a convolution makes, a batch norm passes on and others read."""
    cuts = [cut(conv, "outputs"), cut(norm, "channels"), *(cut(reader, "inputs") for reader in readers)]
    return group(name, "channels", width, cuts, [cut(norm, "channels")])


def hidden_group(name, width, first, second, run=1):
    cuts = [cut(first, "outputs"), cut(second, "inputs", run=run)]
    return group(name, "hidden", width, cuts, [cut(first, "outputs")])


class TinyNet(nn.Module):
    """Three convolutions, one depthwise, then a flattened map; two groups of channels and one hidden."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.depthwise, self.bn3 = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12)
        self.fc1, self.fc2 = nn.Linear(12 * 4, 16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        x = nn.functional.adaptive_avg_pool2d(self.bn3(self.depthwise(x)).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


TINY_SHAPE = (2, 6, 6)
TINY_GROUPS = (
    conv_group("conv1", 8, "conv1", "bn1", "conv2"),
    group(
        "conv2",
        "channels",
        12,
        [
            cut("conv2", "outputs"),
            cut("bn2", "channels"),
            cut("depthwise", "channels"),
            cut("bn3", "channels"),
            cut("fc1", "inputs", run=4),
        ],
        [cut("bn3", "channels")],
    ),
    hidden_group("fc1", 16, "fc1", "fc2"),
)


def tiny_net(seed=0):
    """Returns a network whose norms know their inputs and whose classes are told apart."""
    torch.manual_seed(seed)
    net = TinyNet().double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        net(torch.randn(64, *TINY_SHAPE, dtype=torch.float64))  # in training mode, for the statistics
        net.fc1.weight.mul_(3)
        net.fc2.weight.mul_(5)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return net.eval()


def resnet_groups(model):
    """Returns the inner channels of every block of the embedded residual network."""
    blocks = [
        f"{stage}.{i}" for stage in ("stage1", "stage2", "stage3") for i in range(len(getattr(model, stage)))
    ]
    return tuple(
        conv_group(
            f"{name}.conv1",
            model.get_submodule(name).conv1.out_channels,
            f"{name}.conv1",
            f"{name}.bn1",
            f"{name}.conv2",
        )
        for name in blocks
    )


def vit_groups(model):
    """Returns dimensions of heads and hidden units of every block of the embedded transformer."""
    found = []
    for i, block in enumerate(model.blocks):
        heads, width, at = block.attn.heads, block.attn.q.out_features, f"blocks.{i}.attn"
        made = [cut(f"{at}.{part}", "outputs", repeats=heads) for part in "qkv"]
        read = cut(f"{at}.proj", "inputs", repeats=heads)
        found.append(group(f"{at}.q", "head_dim", width // heads, [*made, read], made))
        hidden = block.mlp.fc1.out_features
        found.append(
            hidden_group(f"blocks.{i}.mlp.fc1", hidden, f"blocks.{i}.mlp.fc1", f"blocks.{i}.mlp.fc2")
        )
    return tuple(found)


def embedded(name):
    """Returns an embedded network with its groups."""
    model = load_model(f"zoo:{name}").module.eval()
    return model, (resnet_groups if name == "fashion_resnet" else vit_groups)(model)


def fashion_batches(count, *, size=64, report=0):
    """Returns batches of images to learn from and the images to report on."""
    loaded = load_model("zoo:fashion_resnet")
    source = open_source("fashion-mnist", loaded.ref.preprocess)
    splits = make_splits(source, calibration=count, selection=0, report=report or 1, seed=0)
    return list(splits.calibration.batches(size)), splits.report


@torch.no_grad()
def accuracy(model, split, size=250):
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in split.batches(size))
    return right / len(split)
