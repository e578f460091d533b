"""Unaligned loads and stores, and rotation: one machine instruction each, where assembling bytes would cost four to
eight, and shifts behind a multiplication become two multiplications.

Memory is an array or its address. A kernel that hands an array to a function of its own, inlined or not, mostly counts
a reference to it before and after, which is an atomic operation and takes longer than hashing a few words; an address
is only a number. The caller keeps the array referenced for as long as it uses the address.

No bounds are checked here: a kernel compares with the end of its input before it loads.
"""

# numba and llvmlite ship no type information, so the decorated functions are untyped by nature.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, operator, import-untyped"

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _pointer(context, builder, kind, memory, offset, bits):
    """To ``offset`` bytes behind the beginning of an array, or behind an address."""
    if isinstance(kind, types.Array):
        begin = cgutils.create_struct_proxy(kind)(context, builder, value=memory).data
        begin = builder.bitcast(begin, ir.IntType(8).as_pointer())
    else:
        begin = builder.inttoptr(memory, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(begin, [offset]), ir.IntType(bits).as_pointer())


def _loader(bits: int, big_endian: bool):
    result = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    @intrinsic
    def load(typingctx, memory, offset):
        signature = result(memory, types.int64)

        def codegen(context, builder, _signature, arguments):
            word = builder.load(_pointer(context, builder, memory, arguments[0], arguments[1], bits), align=1)
            return builder.bswap(word) if big_endian else word

        return signature, codegen

    return load


load_byte = _loader(8, False)
load_be16 = _loader(16, True)
load_be32 = _loader(32, True)
load_be64 = _loader(64, True)
load_le16 = _loader(16, False)
load_le32 = _loader(32, False)
load_le64 = _loader(64, False)


def _storer(big_endian: bool):
    @intrinsic
    def store(typingctx, memory, offset, word):
        def codegen(context, builder, _signature, arguments):
            address, offset, word = arguments
            word = builder.bswap(word) if big_endian else word
            builder.store(word, _pointer(context, builder, memory, address, offset, 64), align=1)
            return context.get_dummy_value()

        return types.void(memory, types.int64, types.uint64), codegen

    return store


store_64: Any = _storer(False)
"""``store_64(memory, offset, word)`` inside a kernel."""
store_be64: Any = _storer(True)
"""The same, highest byte first."""


@intrinsic
def _address_of(typingctx, array):
    if array.layout != "C":  # users of the address rely on contiguous elements
        return None

    def codegen(context, builder, _signature, arguments):
        proxy = cgutils.create_struct_proxy(array)(context, builder, value=arguments[0])
        return builder.ptrtoint(proxy.data, ir.IntType(64))

    return types.int64(array), codegen


address_of: Any = _address_of
"""``address_of(array)`` inside a kernel: where its first element lies."""


@intrinsic
def _rotate_left(typingctx, word, bits):
    def codegen(context, builder, _signature, arguments):
        kind = ir.IntType(64)
        shift = builder.module.declare_intrinsic("llvm.fshl", [kind], ir.FunctionType(kind, [kind] * 3))
        return builder.call(shift, [arguments[0], arguments[0], arguments[1]])

    return types.uint64(types.uint64, types.uint64), codegen


rotate_left: Any = _rotate_left
"""``rotate_left(word, bits)`` inside a kernel: a 64-bit word with its top bits moved to the bottom."""
