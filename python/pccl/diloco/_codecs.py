"""What the compressions of docs/diloco.md say of values, in numpy: the formulas of the documentation, not the library's
code."""

from typing import Any

import numpy

F32 = numpy.float32
Array = Any
#: Elements of a block.
BLOCKS = {"none": 1, "bf16": 1, "int8": 256, "int4": 128, "int2": 64}
LARGEST = 4096
LEAST_NORMAL = numpy.finfo(F32).tiny


def piece_of(compression: str) -> int:
    """A fragment is cut at multiples of this."""
    return BLOCKS.get(compression, LARGEST)


def mean_of(compression: str, contributors: int) -> str:
    """The compression of a mean."""
    if not compression.startswith("largest"):
        return compression
    one_of = one_of_largest(compression) // contributors
    return "int8" if one_of < 4 else f"largest 1/{one_of}"


def one_of_largest(compression: str) -> int:
    return int(compression.removeprefix("largest 1/"))


def said_of(compression: str, values: Array) -> Array:
    """The values, as their compressed form says them."""
    if compression == "none" or not values.size:
        return values.astype(F32)
    if compression == "bf16":
        bits = values.astype(F32).view("u4").astype("u8")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("u4").view(F32)
    if compression.startswith("largest"):
        return numpy.concatenate([largest(values[begin:begin + LARGEST], one_of_largest(compression))
                                  for begin in range(0, values.size, LARGEST)])
    block = BLOCKS[compression]
    # The last block is filled up with its last value, which changes neither its least nor its greatest one.
    filled = numpy.pad(values.astype(F32), (0, -values.size % block), mode="edge").reshape(-1, block)
    if compression == "int2":
        return two_bits(values, filled, block)
    return (symmetric(filled) if compression == "int8" else affine(filled)).reshape(-1)[:values.size]


def coarse(scale: Array, bits: int) -> Array:
    """Rounded up to a number of bits less."""
    mask = (1 << bits) - 1
    whole = numpy.maximum(scale, LEAST_NORMAL).astype(F32).view("u4")
    return ((whole + numpy.uint32(mask)) & ~numpy.uint32(mask)).view(F32)


def symmetric(blocks: Array) -> Array:
    least, greatest = (it[:, None] for it in (blocks.min(axis=1), blocks.max(axis=1)))
    scale = coarse(numpy.maximum(greatest, -least) / F32(127), 8)
    said = numpy.rint(blocks * (F32(1) / scale)) * scale
    return numpy.where(least == greatest, least + F32(0), said)


def affine(blocks: Array) -> Array:
    least, greatest = (it[:, None] for it in (blocks.min(axis=1), blocks.max(axis=1)))
    half = F32(7.5)
    middle = least * F32(0.5) + greatest * F32(0.5)
    scale = coarse(numpy.maximum(greatest - middle, middle - least) / half, 4)
    code = numpy.rint((blocks - middle) * (F32(1) / scale) + half)
    return numpy.where(least == greatest, least + F32(0), middle + (code - half) * scale)


def two_bits(values: Array, filled: Array, block: int) -> Array:
    magnitudes = numpy.abs(filled).astype(float)
    rest = values.size % block
    if rest:
        magnitudes[-1, rest:] = 0
    counts = numpy.full(len(filled), block)
    counts[-1] = rest or block
    # One after another: the order of a sum decides its last bit.
    sums = numpy.cumsum(magnitudes, axis=1)[:, -1]
    step = (F32(1.25) * (sums / counts).astype(F32))[:, None]
    code = numpy.where(filled < -step, 0, numpy.where(filled < 0, 1, numpy.where(filled <= step, 2, 3)))
    return ((code.astype(F32) - F32(1.5)) * step).reshape(-1)[:values.size]


def largest(block: Array, one_of: int) -> Array:
    """The elements of greatest magnitude, of equal ones those that come first."""
    places = numpy.argsort(-numpy.abs(block), kind="stable")[:-(-block.size // one_of)]
    scale = F32(numpy.abs(block[places]).max()) / F32(127)
    said = numpy.zeros(block.size, F32)
    if scale > 0:
        said[places] = numpy.clip(numpy.rint(block[places] / scale), -127, 127) * scale
    return said
