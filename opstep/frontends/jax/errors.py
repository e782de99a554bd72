"""What cannot be imported, and why."""

from __future__ import annotations

from opstep.frontends.missing import Family

OF_DATA = "a size depends on data"


class Untranslatable(Exception):
    """Raised by a rule: this primitive, with these operands and parameters, has no counterpart."""


# Why whole families of primitives have no counterpart, by what their names begin with.
CALLBACK = Family("it calls back to Python", "leave the callback out of the function")
DEVICES = Family("it is of several devices", "import the function that each device runs")
FAMILIES: dict[str, Family] = {
    "pure_callback": CALLBACK, "io_callback": CALLBACK, "outside_call": CALLBACK,
    "psum": DEVICES, "pmax": DEVICES, "pmin": DEVICES, "ppermute": DEVICES, "pbroadcast": DEVICES,
    "all_gather": DEVICES, "all_to_all": DEVICES, "reduce_scatter": DEVICES, "axis_index": DEVICES,
    "xla_pmap": DEVICES, "shard_map": DEVICES, "pvary": DEVICES, "sharding_constraint": DEVICES,
    "mesh_cast": DEVICES, "reshard": DEVICES,
    "pallas_call": Family("it is a kernel of Pallas", "import a function that does the same"),
    "custom_call": Family("it is a kernel of another library"),
    "ffi_call": Family("it is a kernel of another library"),
    "fft": Family("complex numbers have no counterpart"),
    "complex": Family("complex numbers have no counterpart"),
    "real": Family("complex numbers have no counterpart"),
    "imag": Family("complex numbers have no counterpart"),
    "conj": Family("complex numbers have no counterpart"),
    "rng_bit_generator": Family("only the generator threefry is known"),
    "rng_uniform": Family("only the generator threefry is known"),
}  # fmt: skip

PRINTS = ("debug_print", "debug_callback")  # of jax.debug; nothing depends on them


def refusal(primitive: str) -> Family:
    """Why there is no rule for a primitive."""
    return FAMILIES.get(primitive, Family("there is no op for it"))
