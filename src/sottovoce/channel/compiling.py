"""Turns kernels into machine code with numba; imported only where a kernel was never compiled before."""

from __future__ import annotations

import itertools
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types

from sottovoce.channel.kernel import Kernel
from sottovoce.channel.native import Code, Form, name, target_machine

# Stands in for numba's runtime, of which kernels need frexp and the memory of temporary arrays. A block of
# memory begins with its reference count, destructor, what that wants, and the address of its data.
_RUNTIME = """
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
declare double @frexp(double, ptr)

define double @numba_frexp(double %number, ptr %exponent) {
  %mantissa = call double @frexp(double %number, ptr %exponent)
  ret double %mantissa
}

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %alignment = zext i32 %align to i64
  %head = add i64 %alignment, 48
  %room = add i64 %size, %head
  %block = call ptr @PyMem_RawMalloc(i64 %room)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %end, label %fill
fill:
  %start = ptrtoint ptr %block to i64
  %after = add i64 %start, %head
  %past = urem i64 %after, %alignment
  %at = sub i64 %after, %past
  %data = inttoptr i64 %at to ptr
  store i64 1, ptr %block
  %place = getelementptr i64, ptr %block, i64 3
  store ptr %data, ptr %place
  br label %end
end:
  ret ptr %block
}

define void @NRT_MemInfo_call_dtor(ptr %block) {
  call void @PyMem_RawFree(ptr %block)
  ret void
}
"""
_RETURNS = {types.int64: "q", types.float64: "d", types.boolean: "?"}


def compiled(kernel: Kernel, **options: Any) -> Any:
    """A kernel as a function of numba's."""
    return numba.njit(error_model="numpy", **kernel.options, **options)(kernel.function)


def machine_code(kernel: Kernel, forms: tuple[Form, ...]) -> Code | None:
    """A kernel and all that it calls for arguments of these forms; None if C cannot express its result."""
    arguments = tuple(_type(*form) for form in forms)
    dispatcher = compiled(kernel, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    dispatcher.compile(arguments)
    result = dispatcher.overloads[arguments]
    returned = result.signature.return_type
    returns: Form | None
    if returned == types.none:
        returns = None
    elif returned in _RETURNS:
        returns = (_RETURNS[returned], 0)
    elif isinstance(returned, types.Array) and returned.layout == "C":
        returns = (numba.np.numpy_support.as_dtype(returned.dtype).char, returned.ndim)
    else:
        return None
    module = llvm.parse_assembly(dispatcher.inspect_llvm(arguments))
    symbol = name(kernel, forms)
    for text in (_RUNTIME, _door(symbol, result.fndesc.llvm_func_name, forms)):
        addition = llvm.parse_assembly(text)
        addition.triple, addition.data_layout = module.triple, module.data_layout
        module.link_in(addition)
    for defined in [*module.functions, *module.global_variables]:
        if not defined.is_declaration and defined.name != symbol:
            defined.linkage = "internal"  # many such modules are loaded side by side
    externals = [
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.")
    ]
    return Code(symbol, returns, externals, target_machine().emit_object(module))


def _door(symbol: str, inside: str, forms: tuple[Form, ...]) -> str:
    """A function with the signature of `native.Entry` that calls numba's.

    Numba passes an array as its owner, parent, size, item size, data, shape and strides.
    """
    lines: list[str] = []
    places = itertools.count()

    def put(expression: str) -> str:
        lines.append(f"  %v{len(lines)} = {expression}")
        return f"%v{len(lines) - 1}"

    def word(kind: str) -> str:
        return put(f"load {kind}, ptr {put(f'getelementptr i64, ptr %words, i64 {next(places)}')}")

    arguments = ["ptr %result", f"ptr {put('alloca ptr')}"]
    for character, dimensions in forms:
        if not dimensions:
            kind = "double" if character == "d" else "i64"
            arguments.append(f"{kind} {word(kind)}")
            continue
        data, shape = word("ptr"), [word("i64") for _ in range(dimensions)]
        item = np.dtype(character).itemsize
        strides = [str(item)]
        for length in reversed(shape):
            strides.insert(0, put(f"mul i64 {strides[0]}, {length}"))
        size = put(f"udiv i64 {strides.pop(0)}, {item}")
        arguments += ["ptr null", "ptr null", f"i64 {size}", f"i64 {item}", f"ptr {data}"]
        arguments += [f"i64 {number}" for number in (*shape, *strides)]
    types_only = ", ".join(argument.split()[0] for argument in arguments)
    return "\n".join(
        [
            f'declare i32 @"{inside}"({types_only})',
            f'define i32 @"{symbol}"(ptr %result, ptr %words) {{',
            *lines,
            f'  %status = call i32 @"{inside}"({", ".join(arguments)})',
            "  ret i32 %status",
            "}",
        ]
    )


def _type(character: str, dimensions: int) -> types.Type:
    scalar = numba.from_dtype(np.dtype(character))
    return types.Array(scalar, dimensions, "C") if dimensions else scalar


@numba.extending.typeof_impl.register(Kernel)
def _kernel_type(value: Kernel, context: Any) -> Any:
    """Lets kernels call kernels."""
    return numba.extending.typeof_impl(value.compiled, context)
