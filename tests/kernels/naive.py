"""The fingerprint's hash, written down a second time."""

from __future__ import annotations

from cdr_core.kernels import fingerprint as kernel

M = (1 << 64) - 1


def rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & M


def mix(value: int) -> int:
    value = ((value ^ (value >> 33)) * kernel.MIX_A) & M
    value = ((value ^ (value >> 29)) * kernel.MIX_B) & M
    return value ^ (value >> 32)


def naive_hash(data: bytes) -> tuple[int, int]:
    a, b = (kernel.SEED_A + len(data)) & M, kernel.SEED_B ^ ((len(data) * kernel.PRIME_C) & M)
    for number, at in enumerate(range(0, len(data), 8)):
        word = int.from_bytes(data[at : at + 8], "little")
        if number % 2 == 0:
            a = rotate(((a ^ word) * kernel.PRIME_A) & M, 31)
        else:
            b = rotate(((b ^ word) * kernel.PRIME_B) & M, 29)
    return mix((a + rotate(b, 17)) & M), mix(b ^ ((a * kernel.PRIME_C) & M))
