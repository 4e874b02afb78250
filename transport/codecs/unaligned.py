"""Words at any byte of an array, for compiled code: numba itself has only aligned ones."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, word: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), word.as_pointer())


def _load_u64_be(_typing: Any, array: Any, at: Any) -> tuple[Any, Callable[..., Any]]:
    """The eight bytes from byte `at` of a uint8 array, first byte highest; bounds unchecked."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        loaded = builder.load(_pointer(context, builder, array, args[0], args[1], word))
        loaded.align = 1
        return builder.bswap(loaded)

    return types.uint64(array, types.uint64), code


def _store_u64_be(_typing: Any, array: Any, at: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Write eight bytes at byte `at` of a uint8 array, highest first; bounds unchecked."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], args[1], ir.IntType(64))
        builder.store(builder.bswap(args[2]), pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64), code


def _store_u32_le(_typing: Any, array: Any, at: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Write four bytes at byte `at` of a uint8 array, lowest first; bounds unchecked."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        pointer = _pointer(context, builder, array, args[0], args[1], word)
        builder.store(builder.trunc(args[2], word), pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64), code


load_u64_be: Callable[..., Any] = intrinsic(_load_u64_be)
store_u64_be: Callable[..., Any] = intrinsic(_store_u64_be)
store_u32_le: Callable[..., Any] = intrinsic(_store_u32_le)
