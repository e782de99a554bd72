"""PyTorch models as programs: imported (`exporting`), or compiled (`backend`).

`exporting` gets a graph of ATen ops from `torch.export`, `backend` gets them from `torch.compile`
by way of AOTAutograd (`autograd`, `graphs`). `modules` finds the calls of `nn.Module` in a graph,
`translator` writes a graph of ours for each, by the `rules` for single ATen ops, `naming` and
`sources` make the text readable. `calling` runs the graphs of compiled models on PyTorch's tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt

findings: list[Hunt] = []  # of all compiled models of the process that are hunted, the latest last
