"""NVIDIA's driver, with errors that say what to do.

`driver()` is `cuda.bindings.driver`, whose functions here raise instead of returning a code. A
process has one primary context for each GPU; every thread that calls the driver makes it current
first (`Gpu.enter`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.wording import Argument, Wording

OLDEST_DRIVER = 12020  # CUDA 12.2: libraries, lazily loaded, and stream-ordered pools
OLDEST_GPU = (7, 0)

# After these nothing can be done on the GPU by this process.
_STICKY = {214, 217, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
_MEANING = {
    214: "the GPU's memory has an error that cannot be corrected",
    700: "a kernel read or wrote memory that is not its own",
    702: "a kernel ran longer than the system allows",
    710: "an assertion in a kernel failed",
    715: "a kernel ran an illegal instruction",
    716: "a kernel used an address that is not a multiple of what it reads or writes",
    719: "a kernel failed",
}


ON_THE_CPU = ("run on the CPU with ", Argument("device", "cpu"))
START_AGAIN = Wording(
    "start the program again; ", Argument("mode", "debug"), " stops at the op that is to blame"
)


class OutOfMemory(DeviceError):
    """The GPU has no room for what was asked."""


class LostDevice(DeviceError):
    """The process can do nothing more on the GPU."""


class Driver:
    """Functions of `cuda.bindings.driver`, by name, that raise `DeviceError`."""

    def __init__(self, module: Any):
        self.module = module
        self.lost: LostDevice | None = None

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.module, name)
        if not name[2:3].isupper() or not name.startswith("cu"):
            return function  # an enumeration or a number type

        def call(*args: Any) -> Any:
            code, *values = function(*args)
            if code:
                raise self.error(name, int(code))
            return values[0] if len(values) == 1 else values

        setattr(self, name, call)  # found at once the next time
        return call

    def error(self, name: str, code: int) -> DeviceError:
        """The meaning of a code that a function returned."""
        if code == 2:
            return OutOfMemory("the GPU is out of memory")
        _, text = self.module.cuGetErrorString(self.module.CUresult(code))
        told = _MEANING.get(code) or (text.decode() if text else f"error {code}")
        if code in _STICKY:
            return self.lose(f"{told} ({name}, error {code})")
        return DeviceError(f"{name}: {told} (error {code})")

    def lose(self, why: str, hint: str = "") -> LostDevice:
        """Notes that the process can do nothing more on its GPUs; the error to raise."""
        self.lost = self.lost or LostDevice(
            f"the GPU is lost to this process: {why}",
            hint=hint or START_AGAIN,
        )
        return self.lost


@cache
def driver() -> Driver:
    """The driver, initialised. Raises `DeviceError` where there is none, or no GPU."""
    try:
        from cuda.bindings import driver as module  # pyright: ignore
    except ImportError as error:
        raise DeviceError(
            Wording(Argument("device", "cuda"), f" needs packages that are not there: {error}"),
            hint="pip install 'opstep[cuda]'",
        ) from None
    try:
        (code,) = module.cuInit(0)
    except Exception as error:  # the loader's own, where there is no libcuda
        raise DeviceError(
            "there is no NVIDIA driver on this machine",
            hint=Wording.any_of(ON_THE_CPU, ("install the driver from nvidia.com/drivers",)),
        ) from error
    if code:
        raise _unusable(int(code))
    made = Driver(module)
    version = made.cuDriverGetVersion()
    if version < OLDEST_DRIVER:
        raise DeviceError(
            f"the NVIDIA driver is too old: it knows CUDA {_named(version)}, and "
            f"{_named(OLDEST_DRIVER)} is needed",
            hint="install a newer driver from nvidia.com/drivers",
        )
    return made


def _unusable(code: int) -> DeviceError:
    if code == 100:
        return DeviceError(
            "there is no NVIDIA GPU on this machine, or none that this process may see",
            hint=Wording.any_of(ON_THE_CPU, ("look at CUDA_VISIBLE_DEVICES",)),
        )
    if code in (35, 803, 804):
        return DeviceError(
            "the NVIDIA driver does not fit the CUDA libraries",
            hint="install a newer driver from nvidia.com/drivers, or restart after an update",
        )
    return DeviceError(f"the NVIDIA driver does not start: error {code}")


def _named(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class Gpu:
    """One GPU: what it is, and its context. `ordinal` counts those that the process may see."""

    def __init__(self, ordinal: int):
        self.driver = driver()
        count = self.driver.cuDeviceGetCount()
        if not 0 <= ordinal < count:
            known = ", ".join(f"cuda:{k}" for k in range(count))
            raise DeviceError(f"there is no GPU cuda:{ordinal}", hint=f"there are: {known}")
        self.ordinal = ordinal
        self.handle = self.driver.cuDeviceGet(ordinal)
        self.name = self.driver.cuDeviceGetName(256, self.handle).split(b"\0")[0].decode()
        major, minor = (
            self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            self._attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        if (major, minor) < OLDEST_GPU:
            raise DeviceError(
                f"{self.name} (compute capability {major}.{minor}) is too old: "
                f"{OLDEST_GPU[0]}.{OLDEST_GPU[1]} is needed",
                hint=Wording(*ON_THE_CPU),
            )
        self.arch = f"sm_{major}{minor}"
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self.context = self.driver.cuDevicePrimaryCtxRetain(self.handle)
        self.spare_events: list[Any] = []

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.driver.module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self.driver.cuDeviceGetAttribute(attribute, self.handle)

    def enter(self) -> Driver:
        """Makes the context current in this thread; gives the driver."""
        if self.driver.lost:
            raise self.driver.lost
        if _current.__dict__.get("gpu") is not self:
            self.driver.cuCtxSetCurrent(self.context)
            _current.gpu = self
        return self.driver

    def enter_again(self) -> None:
        """`enter` where another library may have made another context current."""
        _current.gpu = None
        self.enter()

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        free, total = self.enter().cuMemGetInfo()
        return free, total


_current = threading.local()  # the GPU whose context each thread has


@cache
def gpu(ordinal: int) -> Gpu:
    return Gpu(ordinal)


def current() -> int:
    """The ordinal of the GPU whose context is current."""
    return int(driver().cuCtxGetDevice())


@cache
def launcher() -> int:
    """The address of `cuLaunchKernel`, for native code."""
    import ctypes

    function: Callable = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return ctypes.cast(function, ctypes.c_void_p).value or 0
