"""Two blocks beside those of a search space: one to compare with, one with next to nothing in it."""

from __future__ import annotations

from edgecompress.core.types import Block, Op, Size

_CONV = Op(kind="conv2d", inputs=32, outputs=32, kernel=(3, 3), padding=(1, 1), bias=True)
BLOCK = Block(branches=((_CONV,),))
"""Measured in between all others: a machine that slows down slows both."""
IN_SIZE: Size = (28, 28)

NOTHING = Block(branches=((Op(kind="conv2d", inputs=1, outputs=1, bias=True),),))
"""What starting an inference takes; a network pays it once, not once for every block."""
NOTHING_SIZE: Size = (1, 1)
