"""The block all others are compared with while measuring, so that a machine that slows down slows both."""

from __future__ import annotations

from edgecompress.core.types import Block, Op, Size

_CONV = Op(kind="conv2d", inputs=32, outputs=32, kernel=(3, 3), padding=(1, 1), bias=True)
BLOCK = Block(branches=((_CONV,),))
IN_SIZE: Size = (28, 28)
