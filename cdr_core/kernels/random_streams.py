"""Random streams inside of kernels: the numbers that ``numpy.random.default_rng`` of the same entropy gives.

Making a generator of NumPy takes longer than filling a small channel, and a checkpoint has a stream for each of its
channels. A stream is a row of six words: state and increment of a PCG-64 (high, low), and the half of a word that is
left over when numbers of 32 bits were drawn, behind a flag.
"""

# numba and llvmlite ship no type information, so the decorated functions are untyped by nature.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
from numba import njit, types, uint64
from numba.extending import intrinsic

STREAM_WORDS = 6
_HIGH, _LOW, _INCREMENT_HIGH, _INCREMENT_LOW, _HAS_HALF, _HALF = range(STREAM_WORDS)

_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_POOL_SIZE = 4
_FIRST_MIX, _MIX_STEP = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_FIRST_DRAW, _DRAW_STEP = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_LEFT, _RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_32_BITS = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(16)

Stream = npt.NDArray[np.uint64]


def entropy_words(*numbers: int) -> Stream:
    """Return the seed of a stream: each number in as many words of 32 bits as it needs, lowest first."""
    words = [number >> shift & 0xFFFFFFFF for number in numbers for shift in range(0, number.bit_length() or 1, 32)]
    return np.array(words, np.uint64)


@intrinsic
def _multiply_high(typingctx, first, second):
    def codegen(context, builder, _signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


multiply_high: Any = _multiply_high
"""``multiply_high(first, second)`` inside a kernel: the upper half of a product of two 64-bit words."""


@njit(cache=True)
def seed_stream(stream: Stream, entropy: Stream) -> None:
    """Begin a stream, as a ``SeedSequence`` of these words would seed it."""
    pool, constant = np.zeros(_POOL_SIZE, np.uint64), _FIRST_MIX
    for i in range(_POOL_SIZE):
        word = entropy[i] if i < entropy.shape[0] else uint64(0)
        pool[i], constant = _hashed(word, constant, _MIX_STEP)
    for i in range(max(_POOL_SIZE, entropy.shape[0])):
        for j in range(_POOL_SIZE):
            if i != j:
                word, constant = _hashed(pool[i] if i < _POOL_SIZE else entropy[i], constant, _MIX_STEP)
                mixed = (pool[j] * _LEFT - word * _RIGHT) & _32_BITS
                pool[j] = mixed ^ mixed >> _SHIFT
    drawn, constant = np.empty(4, np.uint64), _FIRST_DRAW
    for i in range(4):
        low, constant = _hashed(pool[2 * i % _POOL_SIZE], constant, _DRAW_STEP)
        high, constant = _hashed(pool[(2 * i + 1) % _POOL_SIZE], constant, _DRAW_STEP)
        drawn[i] = high << uint64(32) | low
    stream[_INCREMENT_HIGH] = drawn[2] << uint64(1) | drawn[3] >> uint64(63)
    stream[_INCREMENT_LOW] = drawn[3] << uint64(1) | uint64(1)
    stream[_HIGH], stream[_LOW] = stream[_INCREMENT_HIGH], stream[_INCREMENT_LOW]  # a step from zero
    stream[_LOW] += drawn[1]
    stream[_HIGH] += drawn[0] + uint64(stream[_LOW] < drawn[1])
    _step(stream)
    stream[_HAS_HALF] = uint64(0)


@njit()
def _hashed(word: int, constant: int, step: int) -> tuple[int, int]:
    after = constant * step & _32_BITS
    mixed = (word ^ constant) * after & _32_BITS
    return mixed ^ mixed >> _SHIFT, after


@njit()
def _step(stream: Stream) -> None:
    low, high = stream[_LOW], stream[_HIGH]
    product = low * _MULTIPLIER_LOW
    above = multiply_high(low, _MULTIPLIER_LOW) + low * _MULTIPLIER_HIGH + high * _MULTIPLIER_LOW
    stream[_LOW] = product + stream[_INCREMENT_LOW]
    stream[_HIGH] = above + stream[_INCREMENT_HIGH] + uint64(stream[_LOW] < product)


@njit()
def _next_word(stream: Stream) -> int:
    _step(stream)
    word, turn = stream[_HIGH] ^ stream[_LOW], stream[_HIGH] >> uint64(58)
    return word >> turn | word << (uint64(64) - turn & uint64(63))


@njit()
def _next_half(stream: Stream) -> int:
    if stream[_HAS_HALF]:
        stream[_HAS_HALF] = uint64(0)
        return stream[_HALF]
    word = _next_word(stream)
    stream[_HAS_HALF], stream[_HALF] = uint64(1), word >> uint64(32)
    return word & _32_BITS


@njit()
def next_float(stream: Stream) -> float:
    """Return a number from 0 to below 1, as ``random()`` draws it."""
    return (_next_word(stream) >> uint64(11)) * (1.0 / 9007199254740992.0)


@njit()
def next_below(stream: Stream, limit: int) -> int:
    """Return a whole number from 0 to below ``limit``, as ``integers(limit)`` draws it; the limit is less than 2³²."""
    if limit <= 1:
        return 0
    width = uint64(limit)
    product = _next_half(stream) * width
    if product & _32_BITS < width:
        least = (_32_BITS - width + uint64(1)) % width
        while product & _32_BITS < least:
            product = _next_half(stream) * width
    return np.int64(product >> uint64(32))
