"""The flags that load a model again, as printed commands have them."""

import pytest

from edgecompress.core.model_flags import model_flags
from edgecompress.core.types import ModelRef, Preprocess

GREY = Preprocess(size=(96, 64), mean=(0.5,), std=(0.5,))
OWN_MEAN = Preprocess(size=(8, 8), mean=(0.1,), std=(0.25,))


@pytest.mark.parametrize(
    ("ref", "flags"),
    [
        (ModelRef(source="zoo:resnet20", preprocess=GREY), ""),
        (ModelRef(source="zoo:resnet20", weights="/w s.pth", preprocess=GREY), " --weights '/w s.pth'"),
        (ModelRef(source="/a/net.py:build", classes=7, preprocess=GREY), " --input-size 96x64 --channels 1"),
        (
            ModelRef(source="timm:vit", classes=7, preprocess=Preprocess(size=(224, 224))),
            " --input-size 224x224 --classes 7",
        ),
        (
            ModelRef(source="/a/net.py:build", preprocess=OWN_MEAN),
            " --input-size 8x8 --channels 1 --mean 0.1 --std 0.25",
        ),
    ],
)
def test_flags_are_those_the_source_does_not_know(ref, flags):
    assert model_flags(ref) == flags
