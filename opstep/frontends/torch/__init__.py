"""PyTorch models as programs: imported (`exporting`), or compiled (`backend`).

`importing` is what users call to import; `exporting` gets a graph of ATen ops from `torch.export`,
or `pt2` from a file, and `refusals` words what PyTorch refuses. `backend` gets graphs from
`torch.compile` by way of AOTAutograd (`autograd`, `attention`, `recurrent`, `graphs`); `calling`
runs them on PyTorch's tensors, `watching` does what is around that, and `outstanding` keeps hunted
calls that a GPU is still at. `modules` finds the calls of `nn.Module` in a graph, `translator`
writes a graph of ours for each, by the `rules` for single ATen ops; those without are written as
others, by PyTorch's `definitions` or our `compositions`. `naming`, `sources` and `writing` make the
text readable. `assembling` puts an imported program together, with the conditions on `sizes` that
PyTorch exported the model for.

`script` runs a Python script as Python does; `module_calls` puts the backend under the modules that
it calls.

`comparing` runs a program beside PyTorch (`evaluating`) and says which op is wrong on which side
(`judging`).
"""

from __future__ import annotations

from opstep.frontends.torch.outstanding import findings

__all__ = ["findings"]
