"""Machine code of kernels on disk, loaded and called without numba.

Importing numba and restoring its own cache costs half a second, which a client of a federation would pay for
each message, since Flower starts a process for each. An object file loads in a millisecond. The files lie in
the user's cache folder, or in `SOTTOVOCE_KERNELS`, in a directory that only its owner may enter, named after
the sources of all kernels, the versions of the compiler and the CPU. A file appears complete or not at all;
one that is damaged is made anew.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import stat
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np

if TYPE_CHECKING:
    from sottovoce.channel.kernel import Kernel

log = logging.getLogger("sottovoce.channel")

Form = tuple[str, int]
"""An argument as a kernel sees it: type character of numpy and number of dimensions, 0 for a number."""

_NUMBERS: dict[str, Any] = {"q": ctypes.c_int64, "d": ctypes.c_double, "?": ctypes.c_bool}
_Result = ctypes.c_int64 * 9  # words that the largest result takes, an array of two dimensions
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p)


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel for arguments of certain forms."""

    symbol: str
    returns: Form | None
    externals: list[str]  # functions of the process that it calls
    machine_code: bytes


class Entry:
    """A kernel in memory: status = f(result, words), a word being a number, or for arrays data and shape.

    `result` is what numba's functions write there: a number, or an array as its owner, parent, size, item
    size, data, shape and strides.
    """

    def __init__(self, address: int, forms: tuple[Form, ...], returns: Form | None) -> None:
        self._function = _PROTOTYPE(address)
        self._pack = struct.Struct("".join("P" + "q" * n if n else kind for kind, n in forms)).pack
        self._returns = returns

    def __call__(self, words: list[Any]) -> Any:
        result = _Result()
        if self._function(result, self._pack(*words)):
            raise MemoryError("a kernel could not have the memory it needs")  # no kernel of ours raises
        if self._returns is None:
            return None
        character, dimensions = self._returns
        if not dimensions:
            return _NUMBERS[character].from_buffer(result).value
        owner, _, _, _, data, *shape = result[: 5 + dimensions]
        array = np.asarray(_Memory(owner, data, tuple(shape), np.dtype(character).str))
        return array if owner else array.copy()  # without an owner it lies in one of the arguments


class _Memory:
    """An array that a kernel has made, freed when numpy no longer needs it."""

    def __init__(self, owner: int, data: int, shape: tuple[int, ...], kind: str) -> None:
        self._owner = ctypes.c_void_p(owner)
        self.__array_interface__ = {"data": (data, False), "shape": shape, "typestr": kind, "version": 3}

    def __del__(self, free: Any = ctypes.pythonapi.PyMem_RawFree) -> None:
        free(self._owner)  # of nothing, it does nothing


def entry(kernel: Kernel, forms: tuple[Form, ...]) -> Entry | None:
    """The kernel for such arguments, loaded or else compiled; None if only numba itself can call it."""
    if not kernel.function.__module__.startswith(__package__):
        return None  # a change of it would go unnoticed
    file = _folder() / name(kernel, forms)
    code = _read(file)
    if code is None:
        from sottovoce.channel.compiling import machine_code

        code = machine_code(kernel, forms)
        if code is None:
            return None
        _write(file, code)
    engine = _engine()
    if any(llvm.address_of_symbol(name) is None for name in code.externals):
        return None  # LLVM would end the process
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
    engine.finalize_object()
    return Entry(engine.get_function_address(code.symbol), forms, code.returns)


def target_machine() -> llvm.TargetMachine:
    """What machine code is made for: this CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


@functools.cache
def _folder() -> Path:
    chosen = os.environ.get("SOTTOVOCE_KERNELS")
    if chosen is None:
        import platformdirs

        chosen = platformdirs.user_cache_dir("sottovoce/kernels")
    key = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        key.update(source.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")]
    cpu = [platform.machine(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    key.update(json.dumps([platform.python_version(), versions, cpu]).encode())
    return Path(chosen).expanduser() / key.hexdigest()[:16]


def name(kernel: Kernel, forms: tuple[Form, ...]) -> str:
    """The name of a kernel for such arguments, unlike that of any other."""
    arguments = "".join(f"{character}{dimensions or ''}" for character, dimensions in forms)
    place = kernel.function.__module__.removeprefix(f"{__package__}.")
    return f"{place}.{kernel.function.__name__}-{arguments}"


def _read(file: Path) -> Code | None:
    """What the file holds; None if there is none, it is damaged, or others could have written it."""
    try:
        head, _, machine_code = _read_checked(file).partition(b"\n")
        fields = json.loads(head)
        if fields.pop("digest") != _digest(fields, machine_code):
            return None
        returns = fields["returns"]
        return Code(fields["symbol"], returns and (returns[0], returns[1]), fields["externals"], machine_code)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, code: Code) -> None:
    """Keeps the code for later processes; where that is not possible they compile it again."""
    fields = asdict(code)
    machine_code = fields.pop("machine_code")
    head = json.dumps({**fields, "digest": _digest(fields, machine_code)}).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_owner(file.parent.stat())
        descriptor, draft = mkstemp(dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as new:
                new.write(head + b"\n" + machine_code)
            os.replace(draft, file)
        except OSError:
            os.unlink(draft)
            raise
    except OSError as error:
        log.warning("compiled kernels cannot be kept (%s): set SOTTOVOCE_KERNELS to a folder of yours", error)


def _read_checked(file: Path) -> bytes:
    """The bytes of a file in a folder that was looked at and could not be exchanged in between."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _check_owner(os.stat(folder))
        with open(file.name, "rb", opener=functools.partial(os.open, dir_fd=folder)) as opened:
            return opened.read()
    finally:
        os.close(folder)


def _check_owner(folder: os.stat_result) -> None:
    """What is loaded from there is run."""
    if folder.st_uid != os.getuid() or stat.S_IMODE(folder.st_mode) & 0o077:
        raise PermissionError("the folder is open to others")


def _digest(fields: dict[str, Any], machine_code: bytes) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode() + machine_code).hexdigest()
