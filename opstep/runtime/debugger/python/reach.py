"""The reach of a variable's value: what may assign it again, or change it in place.

Of the path that was taken only the lines are known whose ops are in the graph. So anything that may
have been executed between two of them counts, whether it was or not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from opstep.runtime.debugger.python.files import Function, Lines, PythonFile
from opstep.runtime.debugger.python.matching import PLAIN_METHODS

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_HARMLESS = frozenset({
    "bool", "dict", "enumerate", "float", "getattr", "hasattr", "int", "isinstance", "issubclass",
    "len", "list", "max", "min", "print", "range", "repr", "reversed", "set", "slice", "str",
    "sum", "super", "tuple", "type", "zip",
})  # fmt: skip

# Of tensors, and of what holds some: they change nothing.
METHODS = PLAIN_METHODS | frozenset({
    "all", "any", "argmax", "argmin", "bool", "chunk", "dim", "double", "expand", "float", "half",
    "item", "int", "keys", "long", "ne", "norm", "numel", "repeat", "size", "sort", "split",
    "std", "to", "topk", "type", "unbind", "unfold", "var", "items", "values", "get",
})  # fmt: skip


class Reach:
    """Of a function's variables. `changed`: lines on which a tensor was changed in place, where the
    importer has seen that; None: any call that may do so counts.
    """

    def __init__(self, file: PythonFile, function: Function, changed: Collection[int] | None):
        self._file = file
        self._loops: list[tuple[int, int]] = []
        self._bound: dict[str, set[int]] = {}
        self._changing: set[int] = set(changed or ())
        self.names = dict.fromkeys(function.arguments)
        self.changes_any = True
        self.open: set[str] = set()  # names that others assign
        self.arguments: list[str] = []
        node = file.node(function)
        if node is None:
            return
        self.arguments = _all_arguments(node)
        self.names |= dict.fromkeys(self.arguments)
        for child in node.body:
            self._read(child, changed is None)
        self.names |= dict.fromkeys(self._bound)
        self.changes_any = bool(self._changing)

    def _read(self, node: ast.AST, by_text: bool) -> None:
        for name in _bound_by(node):
            self._bound.setdefault(name, set()).add(getattr(node, "lineno", 0))
        if isinstance(node, ast.Global | ast.Nonlocal):
            self.open.update(node.names)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loops.append((node.lineno, node.end_lineno or node.lineno))
        if by_text and _may_change(node, self._file):
            self._changing.add(node.lineno)  # pyright: ignore
        if isinstance(node, _SCOPES):
            inner = (n for n in ast.walk(node) if isinstance(n, ast.Nonlocal))
            self.open.update(name for n in inner for name in n.names)
            return
        within = _COMPREHENSIONS if isinstance(node, _COMPREHENSIONS) else ()
        for child in ast.iter_child_nodes(node):
            if within and isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    self._read(part, by_text)
            else:
                self._read(child, by_text)

    # --- what may happen ---

    def may_be_there(self, name: str, at: Lines) -> bool:
        """Whether a name may have a value where a statement begins."""
        before = [(0, at.first - 1), *(r for r in self._loops if _is_in(at, r))]
        lines = self._bound.get(name, ())
        return name in self.arguments or any(a <= line <= b for line in lines for a, b in before)

    def assigns(self, name: str, at: Lines) -> bool:
        """Whether a statement may assign a name."""
        return any(at.first <= line <= at.last for line in self._bound.get(name, ()))

    def changes(self, at: Lines) -> bool:
        """Whether a statement may change tensors in place."""
        return any(at.first <= line <= at.last for line in self._changing)

    def is_kept(self, name: str, start: Lines, end: Lines, in_place: bool = True) -> bool:
        """Whether nothing between two statements that were executed, the second next after the
        first, may assign a name; or, with `in_place`, change tensors.
        """
        if not self.follows(start, end):
            return False
        lines = self._bound.get(name, set()) | (self._changing if in_place else set())
        ranges = [(start.last + 1, end.first - 1)]
        ranges += [r for r in self._loops if _is_in(start, r) or _is_in(end, r)]
        return not any(a <= line <= b for line in lines for a, b in ranges)

    def follows(self, start: Lines, end: Lines) -> bool:
        """Whether a statement may be executed after another in one call of the function."""
        together = any(_is_in(start, r) and _is_in(end, r) for r in self._loops)
        return together or end.first > start.last


def _is_in(lines: Lines, loop: tuple[int, int]) -> bool:
    return loop[0] <= lines.first and lines.last <= loop[1]


def _all_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    a = node.args
    several = [a.vararg, a.kwarg]
    return [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, several))]


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a part of a function's text assigns, or deletes, itself."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for alias in names:
                yield (alias.asname or alias.name).partition(".")[0]


def _may_change(node: ast.AST, file: PythonFile) -> bool:
    """Whether it may change a tensor that it is given, or a view of one."""
    match node:
        case ast.AugAssign() | ast.Await() | ast.Yield() | ast.YieldFrom():
            return True
        case ast.Subscript(ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(attr=name, value=base, ctx=ast.Store()):
            return name == "data" or not (isinstance(base, ast.Name) and base.id == "self")
        case ast.Call(func=function, args=args, keywords=keywords):
            if any(k.arg in ("out", "inplace", None) for k in keywords):
                return True
            return not _is_harmless(function, [*args, *(k.value for k in keywords)], file)
    return False


def _is_harmless(function: ast.expr, given: list[ast.expr], file: PythonFile) -> bool:
    match function:
        case ast.Name(id=name):
            return name in _HARMLESS or (name in file.library and not name.endswith("_"))
        case ast.Attribute(attr=name) if name.endswith("_") and not name.endswith("__"):
            return False
        case ast.Attribute(value=base) if file.is_library(base):
            return True
        case ast.Attribute(attr=name, value=base):
            return name in METHODS and not (_is_path(base) and any(map(_is_named, given)))
    return False


def _is_path(e: ast.expr) -> bool:
    """``a.b[0].c``, which may be a module whose name is that of a method of tensors."""
    while isinstance(e, ast.Attribute | ast.Subscript):
        e = e.value
    return isinstance(e, ast.Name)


def _is_named(e: ast.expr) -> bool:
    return not isinstance(e, ast.Constant | ast.UnaryOp)
