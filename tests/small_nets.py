"""A small network with every kind of layer the engine meets, images for it, and a count of hooks."""

import torch
from torch import nn

INPUT_SHAPE = (3, 12, 12)
TARGETS = ("narrow", "wide", "depthwise", "biased", "hidden")


class SmallNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.narrow, self.norm1 = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.wide, self.norm2 = nn.Conv2d(12, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.biased = nn.Conv2d(16, 20, 3, padding=1)
        self.hidden = nn.Linear(20, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        x = self.norm1(self.narrow(self.stem(x))).relu()
        x = self.norm2(self.wide(x)).relu()
        x = self.biased(self.depthwise(x)).relu()
        return self.head(self.hidden(x.mean((2, 3))).relu())


def small_net(*, seed=0, classes=6):
    """Returns a network whose batch norms know their inputs and whose classes are told apart."""
    torch.manual_seed(seed)
    net = SmallNet(classes)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        net(images(64, seed=9))  # in training mode: the running statistics become those of the images
        net.biased.weight.mul_(3)
        net.hidden.weight.mul_(4)
        net.head.weight.mul_(30)
    return net.eval()


def images(count, *, seed=0, shape=INPUT_SHAPE, dtype=None):
    """Returns smooth random images of one size with unlike brightness."""
    generator = torch.Generator().manual_seed(seed)
    dtype = dtype or torch.get_default_dtype()
    noise = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    smooth = nn.functional.avg_pool2d(noise, 3, stride=1, padding=1) * 2
    shift = torch.randn(count, shape[0], 1, 1, generator=generator, dtype=torch.float64)
    return (smooth + 0.3 * noise + shift).to(dtype)


def hooks_of(model):
    """Returns how many forward hooks a network carries."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_state(model, state):
    now = model.state_dict()
    return now.keys() == state.keys() and all(torch.equal(now[name], state[name]) for name in state)
