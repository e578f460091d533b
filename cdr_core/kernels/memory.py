"""Unaligned loads from byte arrays, and rotation: one machine instruction each, where assembling bytes would cost four
to eight, and shifts behind a multiplication become two multiplications.

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


@intrinsic
def _rotate_left(typingctx, word, bits):
    def codegen(context, builder, _signature, arguments):
        kind = ir.IntType(64)
        shift = builder.module.declare_intrinsic("llvm.fshl", [kind], ir.FunctionType(kind, [kind] * 3))
        return builder.call(shift, [arguments[0], arguments[0], arguments[1]])

    return types.uint64(types.uint64, types.uint64), codegen


rotate_left: Any = _rotate_left
"""``rotate_left(word, bits)`` inside a kernel: a 64-bit word with its top bits moved to the bottom."""
