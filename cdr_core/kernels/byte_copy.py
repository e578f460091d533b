"""Copying byte ranges as the machine does it best: what numba makes of a slice assignment is a loop, several times
slower.

No bounds are checked here: a kernel compares with both ends before it copies. The ranges must not overlap.
"""

# numba and llvmlite ship no type information, so the decorated functions are untyped by nature.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped"

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _copy(typingctx, target, target_at, source, source_at, count):
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def codegen(context, builder, _signature, arguments):
        to = cgutils.create_struct_proxy(target)(context, builder, value=arguments[0])
        origin = cgutils.create_struct_proxy(source)(context, builder, value=arguments[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(to.data, [arguments[1]]),
            builder.gep(origin.data, [arguments[3]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    return signature, codegen


copy_bytes: Any = _copy
"""``copy_bytes(target, target_at, source, source_at, count)`` inside a kernel, for arrays of bytes."""


@intrinsic
def _copy_from(typingctx, target, target_at, address, count):
    signature = types.void(target, types.int64, types.int64, types.int64)

    def codegen(context, builder, _signature, arguments):
        to = cgutils.create_struct_proxy(target)(context, builder, value=arguments[0])
        origin = builder.inttoptr(arguments[2], to.data.type)
        cgutils.raw_memcpy(builder, builder.gep(to.data, [arguments[1]]), origin, arguments[3], 1)
        return context.get_dummy_value()

    return signature, codegen


copy_from: Any = _copy_from
"""``copy_from(target, target_at, address, count)`` inside a kernel: from an address to an array of bytes."""
