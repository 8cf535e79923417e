"""From stored pixels to the tensor a model takes: resize, crop, scale. Decoding is PIL's."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from edgecompress.core.types import Preprocess
from edgecompress.errors import DataError

Pixels = npt.NDArray[np.uint8]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
"""PIL goes by a file's content, and of the many kinds it knows some run other programs. What phones write as
MPO and call .jpg is opened as JPEG."""
DECODING_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What PIL ends in where a byte is not what it should be, or where a picture has over 179 million pixels."""
_EIGHT_BIT_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}


def decode(path: Path, preprocess: Preprocess) -> Pixels:
    """Returns an image file resized and cropped, as bytes (H, W, C).

    Raises:
        DataError: the file is missing, damaged, not an 8-bit image, or has the wrong size.
    """
    try:
        # PIL warns of odd metadata and large images before it gives the pixels or an error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                image.load()
                return fit(image, preprocess)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except DECODING_ERRORS as error:
        raise DataError(f"{path}: cannot be decoded ({error}); replace or remove the file") from None


def fit(image: Image.Image, preprocess: Preprocess) -> Pixels:
    """Returns an image with the channels and the size that `preprocess` asks for, as bytes (H, W, C).

    Rounds as torchvision's `Resize` and `CenterCrop` do.

    Raises:
        DataError: it has more than 8 bits, or another size and `preprocess` does not resize.
    """
    if image.mode not in _EIGHT_BIT_MODES:
        raise DataError(f"pixels of type {image.mode!r}; convert the image to 8 bits per channel")
    channels = len(preprocess.mean)
    image = image.convert("L" if channels == 1 else "RGB")
    if preprocess.resize is not None:
        image = _resize_short_side(image, preprocess.resize, preprocess.interpolation)
    image = _crop_centre(image, preprocess)
    return np.asarray(image).reshape(*preprocess.size, channels)


def _resize_short_side(image: Image.Image, side: int, interpolation: str) -> Image.Image:
    short = min(image.size)
    width, height = (side if extent == short else side * extent // short for extent in image.size)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), _FILTERS[interpolation])


def _crop_centre(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    (height, width), (has_width, has_height) = preprocess.size, image.size
    if (has_height, has_width) == (height, width):
        return image
    if preprocess.resize is None or has_height < height or has_width < width:
        raise DataError(f"{has_width}x{has_height} pixels; the model takes {width}x{height}")
    left, top = round((has_width - width) / 2), round((has_height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def fit_array(pixels: Pixels, preprocess: Preprocess) -> Pixels:
    """Returns one image (H, W) or (H, W, C) with the channels and the size asked for, as (H, W, C).

    An array of the right size is taken as it is; another one is resized even where `preprocess` does not.
    """
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    right_size = pixels.shape[:2] == preprocess.size
    image = Image.fromarray(flat)
    if not right_size and preprocess.resize is None:
        image = image.resize(preprocess.size[::-1], _FILTERS[preprocess.interpolation])
    return fit(image, preprocess.model_copy(update={"resize": None}) if right_size else preprocess)


def normalise(images: Sequence[Pixels] | Pixels, preprocess: Preprocess) -> Tensor:
    """Returns images (H, W, C) of the right size as float32 (N, C, H, W): (x / 255 - mean) / std."""
    shape = (len(images), *preprocess.size, len(preprocess.mean))
    stacked = np.array(images, dtype=np.uint8).reshape(shape)
    scaled = (
        torch.from_numpy(stacked).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    )
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (preprocess.mean, preprocess.std))
    return scaled.div_(255).sub_(mean).div_(std)
