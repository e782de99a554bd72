"""The backend of `torch.compile`.

torch.compile(model, backend="opstep", options={"hunt": True})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel

from opstep.frontends.torch.autograd import decompositions, partition
from opstep.frontends.torch.calling import Compiled
from opstep.frontends.torch.graphs import AtenGraph
from opstep.frontends.torch.labels import Labels, arguments_of
from opstep.frontends.torch.rules import all_rules
from opstep.frontends.torch.watching import Watch


def opstep(
    module: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's, forward and backward."""
    from opstep.api.settings import RunSettings

    all_rules()
    labels = Labels(arguments_of(module))
    watch = Watch(RunSettings())

    def compiler(name: str) -> Callable[..., Any]:
        return lambda graph, _: Compiled(AtenGraph(graph, name, labels), watch)

    compiled = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=partition,
    )
    with sdpa_kernel(SDPBackend.MATH):
        return compiled(module, inputs)
