"""Unaligned little-endian stores into byte arrays, the counterpart of the loads.

No bounds are checked here: a kernel knows that its target has room before it stores.
"""

# numba and llvmlite ship no type information, so the decorated functions are untyped by nature.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, call-overload"

from __future__ import annotations

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _storer(bits: int):
    word_type = {16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    @intrinsic
    def store(typingctx, array, offset, word):
        signature = types.void(array, types.int64, word_type)

        def codegen(context, builder, _signature, arguments):
            proxy = cgutils.create_struct_proxy(array)(context, builder, value=arguments[0])
            address = builder.gep(proxy.data, [arguments[1]])
            builder.store(arguments[2], builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return signature, codegen

    return store


store_le16 = _storer(16)
store_le32 = _storer(32)
store_le64 = _storer(64)
