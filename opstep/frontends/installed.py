"""Whether the package that a frontend is for is there, and new enough."""

from __future__ import annotations

from importlib import metadata

from opstep.runtime.ir.errors import InputError


def check_installed(package: str, title: str, what: str, oldest: tuple[int, int]) -> None:
    """Raises `InputError` where a package, which is called `title`, is missing or too old for
    `what`. The package and its extra have the same name.
    """
    hint = f"pip install 'opstep[{package}]'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise InputError(f"{what}, which is not installed", hint=hint) from None
    numbers = version.split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < oldest:
        needed = ".".join(map(str, oldest))
        raise InputError(f"{title} {version} is too old: {needed} or newer is needed", hint=hint)
