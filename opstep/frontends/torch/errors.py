"""What cannot be imported, and why."""

from __future__ import annotations

import re

from opstep.frontends import missing
from opstep.frontends.missing import Missing
from opstep.runtime.ir.wording import Argument, Wording

_NOISE = re.compile(
    r"\s*(The error above occurred when calling|For more information|\(?Size-like symbols|"
    r"Caused by:|consider using data-dependent|Please check the warnings).*",
    re.DOTALL,
)
FALLBACK = Wording(Argument("fallback", "torch"), " lets PyTorch run it")
OF_DATA = "a size depends on data"
TYPES = "PyTorch refuses these element types"
# Ops that draw numbers: those of a model in training mode, mostly.
RANDOM = ("dropout", "rand", "bernoulli", "normal", "multinomial", "rrelu", "exponential")


def cause(error: BaseException, most: int = 300) -> str:
    """What a message of PyTorch's says, without its advice, on one line."""
    text = _NOISE.sub("", str(error)).strip() or type(error).__name__
    text = " ".join(text.split("\n\n")[0].split())
    return text if len(text) <= most else text[: most - 1] + "…"


class Untranslatable(Exception):
    """Raised by a rule or a conversion: this op, with these arguments, has no counterpart."""


class Disagreement(Untranslatable):
    """Our result has another shape than PyTorch says. One of the two is wrong, so PyTorch's
    definition by other ops is not tried (2.11 has a wrong shape, and definition, of LSTM).
    """


class Refused(Untranslatable):
    """PyTorch itself refuses these operands once the op runs; its shape rules, its definitions by
    other ops and ours would take them.
    """


class ImportFailed(missing.ImportFailed):
    """`missing` lists ATen ops."""

    def hint(self, missing: Missing) -> str:
        if missing.reason == OF_DATA:
            return "keep the shape: torch.where(mask, x, 0) in place of x[mask]"
        if missing.reason.startswith(TYPES):
            return "convert operands before: x.float(), or x.to(w.dtype)"
        is_random = any(word in missing.op for word in RANDOM)
        return "in training mode models draw numbers: call model.eval() first" if is_random else ""
