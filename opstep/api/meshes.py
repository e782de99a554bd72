"""The mesh of a run: what its text declares, for as many ranks as there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.mesh import MOST_RANKS, WORLD, Mesh
from opstep.runtime.ir.verified import Verified
from opstep.runtime.ir.verify import verify_with_diagnostics
from opstep.runtime.ir.wording import Argument, Wording


def mesh_for(declared: Mesh | None, given: Mapping[str, int] | None, ranks: int | None) -> Mesh:
    """The mesh of a run: what its text declares, with the extents `given` in their place, for so
    many ranks; of one rank where nobody says how many. Raises `InputError`.
    """
    mesh = declared or Mesh()
    if given:
        unknown = [name for name in given if declared and name not in declared.names]
        if unknown:
            hint = did_you_mean(unknown[0], mesh.names) or f"it has {', '.join(mesh.names)}"
            raise InputError(f"the mesh has no axis {unknown[0]}", hint=hint)
        extents = dict(mesh.axes) | dict(given) if declared else dict(given)
        mesh = Mesh(tuple(extents.items()), True)
    elif given is None and (ranks is None or ranks == 1):
        return mesh.alone()
    elif declared is None and ranks is not None:
        mesh = Mesh(((WORLD, ranks),))
    if ranks is not None and mesh.ranks != ranks:
        example = dict.fromkeys(mesh.names, 1) | {mesh.names[0]: ranks}
        hint = Wording(Argument("mesh", example), " gives it other extents")
        message = f"the mesh ({mesh}) is of {mesh.ranks:,} ranks, not {ranks:,}"
        raise InputError(message, hint=hint)
    if mesh.ranks > MOST_RANKS:
        raise InputError(
            f"the mesh ({mesh}) is of {mesh.ranks:,} ranks; {MOST_RANKS:,} are the most"
        )
    return mesh


def verified_on(mesh: Mesh, module: Module, library: Sequence[Module]) -> Verified:
    """What is known about a module on a mesh. Raises `OpstepError`: where it is right on the mesh
    that it declares, it says so.
    """
    verified, errors = verify_with_diagnostics(module, library=library, mesh=mesh)
    if not errors:
        return verified
    declared = module.mesh
    if declared not in (None, mesh) and not verify_with_diagnostics(module, library=library)[1]:
        first, wanted = errors[0], declared.ranks if declared else 1
        hint = Wording(Argument("ranks", wanted), f" has the mesh {declared}")
        errors = [replace(first, message=f"on the mesh {mesh}: {first.message}", hint=hint)]
    raise OpstepError(errors)
