"""Infinities that a model writes itself, or is given as masks are: no alarm, and none is hidden."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from own_infinities import FUNCTIONS, INF, LABELS, upper
from own_infinities_in_modules import GIVEN, MODULES

from opstep.frontends.scripts.watching import NumericsWarning
from opstep.frontends.torch.outstanding import findings as found


@pytest.fixture(autouse=True)
def findings():
    found.told.clear()
    yield found
    found.told.clear()


def runs(fast, *more: torch.Tensor, steps: int = 2) -> list[list[torch.Tensor]]:
    """Steps on other data each; those of a loss with its gradient."""
    results = []
    for step in range(steps):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
        given = fast(x.requires_grad_(), *more)
        if isinstance(given, torch.Tensor) and not given.ndim and given.requires_grad:
            given.backward()
            given = given, x.grad
            assert all(t.isfinite().all() for t in given)
        results.append([given] if isinstance(given, torch.Tensor) else list(given))
    return results


def agrees_without_alarm(compiled, eager, fast, *more):
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericsWarning)
        ours = runs(compiled(fast, hunt=True, dynamic=False), *more)
    for a, b in zip(ours, runs(eager, *more), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert found == []


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_healthy_function_raises_no_alarm(compiled, function):
    agrees_without_alarm(compiled, function, function)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_a_healthy_module_raises_no_alarm(compiled, module):
    torch.manual_seed(0)
    eager, fast = module(), module()
    fast.load_state_dict(eager.state_dict())
    agrees_without_alarm(compiled, eager, fast)


@pytest.mark.parametrize("function, more", GIVEN, ids=lambda f: getattr(f, "__name__", ""))
def test_infinities_that_are_given_may_stay(compiled, function, more):
    agrees_without_alarm(compiled, function, function, more)


# --- and what is an error beside them ---


def overflow_beside(x):
    return torch.where(upper(6)[:, :5], -INF, x).softmax(-1), (x * 1e3).exp()


def difference(x):
    s = x.masked_fill(upper(6)[:, :5], -INF)
    return s - s.amin(0)


def all_masked(x):
    return x.masked_fill(torch.arange(6)[:, None] == 2, -INF).softmax(-1)


def zero_times(x):
    return (x.masked_fill(x < 0, -INF) * (x > 0)).sum()


def overflow_of_a_mask(x):
    return (x.masked_fill(x < 0, -INF) * 1e30 * 1e30).masked_fill(x < 0, 0.0)


def product_with_masked(x):
    return x.masked_fill(x < 0.5, -INF) @ torch.ones(5, 2)


def label_that_is_masked(x):
    return F.cross_entropy(x.index_fill(1, torch.tensor([0]), -INF), LABELS)


def log_of_nothing(x):
    return x.masked_fill(x < 0, -INF), (x - x.amax()).abs().log()


def missing_in_a_mean(x):
    return torch.where(x > 0, x, math.nan).mean()


def entropy_of_masked(x):
    p = x.masked_fill(torch.arange(5) == 2, -INF).softmax(-1)
    return (p * p.log()).sum(-1)


def underflow_beside(x):
    return (x * 200).masked_fill(torch.arange(5) == 2, -INF).softmax(-1).log()


@pytest.mark.parametrize(
    "function, told",
    [
        (overflow_beside, "infinity born in exp .*overflow of f32"),
        (difference, "NaN born in sub .*inf - inf"),
        (all_masked, "NaN born in softmax .*all elements of the row are -inf"),
        (zero_times, "NaN born in mul .*0 times infinity"),
        (overflow_of_a_mask, "infinity born in mul .*overflow of f32"),
        (product_with_masked, "literal -inf is infinite"),
        (label_that_is_masked, "-inf"),
        (log_of_nothing, "infinity born in log .*log of 0"),
        (missing_in_a_mean, "nan"),
        (entropy_of_masked, "NaN born in mul .*0 times infinity(.|\n)*the infinity is from: log"),
        (underflow_beside, "infinity born in log .*log of 0"),
    ],
)
def test_an_error_beside_own_infinities_is_an_alarm(compiled, function, told):
    with pytest.warns(NumericsWarning, match=f"(?s){told}"), torch.no_grad():
        runs(compiled(function, hunt=True, dynamic=False))


# --- what a forward keeps for its backward ---


def by_hand(x):
    e = torch.exp(x)
    return (1 / (1 + e)).sum()


def masked_log(x, z):
    logarithm = torch.log(x)
    return torch.where(x > 0, logarithm * z, 0.0).sum()


def test_an_infinity_that_is_kept_has_not_come_out(compiled):
    fast, x = compiled(by_hand, hunt=True), torch.tensor([1.0, 95.0], requires_grad=True)
    assert fast(x).isfinite()
    assert found == []


def test_what_a_backward_makes_of_it_is_found_with_the_line_of_the_forward(compiled):
    x = torch.tensor([1.0, 95.0], requires_grad=True)
    with pytest.warns(NumericsWarning, match=r"infinity born in exp e at forward.*overflow of f32"):
        compiled(by_hand, hunt=True)(x).backward()
    (hunt,) = found
    assert [(f.op, f.bad) for f in hunt.findings] == [("exp", "inf"), ("mul", "nan")]
    assert "A wider type" in hunt.report()
    assert "it follows from e, above" in hunt.report()


def test_of_a_step_that_was_not_looked_into_its_line_is_told(compiled):
    fast = compiled(by_hand, hunt=True)
    for _ in range(3):
        fast(torch.tensor([1.0, 95.0], requires_grad=True))
    loss = fast(torch.tensor([1.0, 95.0], requires_grad=True))
    with pytest.warns(NumericsWarning, match=r"e, kept by the forward \(test_own_infinities.py:"):
        loss.backward()


def test_an_infinity_below_that_is_kept_is_the_origin_too(compiled):
    x, z = (torch.tensor(v, requires_grad=True) for v in ([1.0, 0.0], [1.0, 1.0]))
    with pytest.warns(NumericsWarning, match=r"infinity born in log logarithm at forward"):
        compiled(masked_log, hunt=True)(x, z).backward()
    assert "reaches grad_z: mul grad_z" in found[0].report()


def test_an_overflow_among_own_infinities_is_found_in_a_later_call(compiled):
    fast = compiled(lambda x, by: torch.where(x < 0, -INF, x * by), hunt=True)
    x = torch.tensor([-1.0, 2.0, 3.0])
    for _ in range(5):
        fast(x, torch.tensor(1.0))
    assert found == []
    with pytest.warns(NumericsWarning, match="step 5 is bad(.|\n)*overflow of f32"):
        fast(x, torch.tensor(3e38))


@pytest.mark.parametrize(
    "function",
    [
        lambda p: p * -1e9,
        lambda p: 1e9 - p,
        lambda p: p / 1e9,
        lambda p: p > -1e9,
        lambda p: torch.where(p > 0, -1e9, p),
        lambda p: p.float() + 1e39,
    ],
)
def test_a_number_beyond_the_type_is_what_pytorch_makes_of_it(compiled, function):
    p = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float16)
    result, expected = compiled(function)(p), function(p)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)
