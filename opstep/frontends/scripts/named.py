"""A thing that a Python file names: ``net.py:model``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from traceback import extract_tb
from typing import Any

from opstep.frontends.missing import source_line
from opstep.frontends.scripts.script import Script, search_path
from opstep.runtime.ir.errors import InputError, UnknownName


def named(file: str, name: str) -> Any:
    """What a file calls by a name, once it was imported as a module is: what it does only where it
    is run as a program is left out. Raises `InputError`.
    """
    path = Path(Script.find(file).path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        with search_path(str(path.parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # of any class: it is the user's code
        raise _failed(file, path, error) from None
    finally:  # others may import another file of that name
        if before is None:
            sys.modules.pop(path.stem, None)
        else:
            sys.modules[path.stem] = before
    found = vars(module)
    if name not in found:
        names = [n for n in found if not n.startswith("_")]
        raise UnknownName(f"{file} has nothing called {name}", name, names)
    return found[name]


def _failed(file: str, path: Path, error: BaseException) -> InputError:
    reason = f"{type(error).__name__}: {error}"
    message = f"{file} cannot be imported: {' '.join(reason.split())[:300]}"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        source, span = source_line(str(path), error.lineno or 0)
        return InputError(message, source=source, span=span)
    own = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    source, span = source_line(str(path), own[-1].lineno or 0) if own else (None, None)
    return InputError(message, source=source, span=span)
