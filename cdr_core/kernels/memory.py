"""Unaligned loads from byte arrays: one machine instruction each, where assembling bytes would cost four to eight.

No bounds are checked here: a kernel compares with the end of its input before it loads.
"""

# numba and llvmlite ship no type information, so the decorated functions are untyped by nature.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, operator, import-untyped"

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(bits: int, big_endian: bool):
    result = {16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    @intrinsic
    def load(typingctx, array, offset):
        signature = result(array, types.int64)

        def codegen(context, builder, _signature, arguments):
            proxy = cgutils.create_struct_proxy(array)(context, builder, value=arguments[0])
            address = builder.gep(proxy.data, [arguments[1]])
            word = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return builder.bswap(word) if big_endian else word

        return signature, codegen

    return load


load_be16 = _loader(16, True)
load_be32 = _loader(32, True)
load_be64 = _loader(64, True)
load_le16 = _loader(16, False)
load_le32 = _loader(32, False)
load_le64 = _loader(64, False)
