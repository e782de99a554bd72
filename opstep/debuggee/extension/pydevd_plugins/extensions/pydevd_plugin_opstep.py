"""pydevd loads this before the script begins. Without opstep in this Python it does nothing, and
the proxy says so.
"""

import sys

from _pydevd_bundle.pydevd_extension_api import (  # pyright: ignore[reportMissingImports]
    DebuggerEventHandler,
    StrPresentationProvider,
    TypeResolveProvider,
)

try:
    from opstep.debuggee import helper
except Exception:  # it is not installed, or broken: Python is debugged all the same
    helper = None

__all__ = ["Begin", "TensorChildren", "TensorText"]


def _is_tensor(type_object):
    """PyTorch may be half imported."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return helper and isinstance(tensor, type) and issubclass(type_object, tensor)


class Begin(DebuggerEventHandler):
    def on_debugger_modules_loaded(self, **kwargs):
        if helper:
            helper.begin()


class TensorText(StrPresentationProvider):
    def can_provide(self, type_object, type_name):
        return _is_tensor(type_object)

    def get_str(self, val):
        from opstep.frontends.torch.debugging import values

        return values.text_of(val)

    def get_str_in_context(self, val, context):
        return repr(val) if context in ("repl", "clipboard") else self.get_str(val)


class TensorChildren(TypeResolveProvider):
    def can_provide(self, type_object, type_name):
        return _is_tensor(type_object)

    def get_dictionary(self, var):
        from opstep.frontends.torch.debugging import values

        return values.children_of(var)

    def resolve(self, var, attribute):
        return self.get_dictionary(var).get(attribute)
