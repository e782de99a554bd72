"""Recurrent layers in AOTAutograd's graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LSTM = torch._VF.lstm
LAYERED = {LSTM, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}


class SingleLayers(TorchFunctionMode):
    """While it is entered, layers with dropout between them are traced one by one: PyTorch's own
    definition of several leaves it out.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in LAYERED and not kwargs:
            return _traced(func, args)
        return func(*args, **(kwargs or {}))


def _traced(func: Any, args: Any) -> Any:
    packed = isinstance(args[3], list | tuple)  # then sizes of batches are behind the input
    given, rest = args[: 1 + packed], args[1 + packed : 8 + packed]
    hidden, params, biases, count, dropout, train, both = rest
    if not (dropout and train and count > 1):
        return func(*args)
    first = not packed and args[-1]  # whether its axes are batch, time and features
    x = given[0].transpose(0, 1) if first else given[0]
    states = hidden if func == LSTM else [hidden]
    last: list[Any] = []
    for k in range(count):
        if k:
            x = torch.dropout(x, dropout, True)
        own = [s.chunk(count)[k] for s in states]
        weights = params[k * len(params) // count : (k + 1) * len(params) // count]
        how = (weights, biases, 1, 0.0, True, both, *(() if packed else (False,)))
        x, *ends = func(x, *given[1:], own if func == LSTM else own[0], *how)
        last.append(ends)
    x = x.transpose(0, 1) if first else x
    return (x, *(torch.cat(ends) for ends in zip(*last, strict=True)))
