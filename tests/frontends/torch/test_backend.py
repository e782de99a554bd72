"""`torch.compile(model, backend="opstep")` computes what eager mode does, forward and backward."""

from __future__ import annotations

import copy
import importlib.metadata
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from opstep.frontends.torch.backend import opstep
from opstep.runtime.ir.diagnostics import OpstepError


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return F.log_softmax(self.head(self.features(x).flatten(1)), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)
        self.out, self.mlp = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 32), nn.GELU(),
                                                              nn.Linear(32, 16))  # fmt: skip

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 11)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 8)
        for k in range(x.shape[1]):
            h, c = self.cell(x[:, k], (h, c))
        return self.head(h)


MODELS = {
    "mlp": (mlp, lambda: torch.randn(5, 6)),
    "convolutional": (Convolutional, lambda: torch.randn(4, 3, 12, 12)),
    "channels last": (
        lambda: Convolutional().to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last),
    ),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (3, 7))),
    "recurrent": (Recurrent, lambda: torch.randn(3, 4, 6)),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3)), lambda: torch.randn(5, 6)),
    "attention with dropout": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True),
        lambda: torch.randn(2, 5, 16),
    ),
}


def trained(model, x):
    """Loss, gradients, buffers and weights after five steps of an optimiser."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(7)
    for _ in range(5):
        optimiser.zero_grad()
        loss = model(x).sin().mean()
        loss.backward()
        optimiser.step()
    params = list(model.parameters())
    return [loss.detach(), *(p.grad for p in params), *model.buffers(), *params]


def assert_all_close(found, expected, rtol=1e-5, atol=2e-6):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_eager_mode(compiled, name):
    make, data = MODELS[name]
    model, x = make(), data()
    eager = copy.deepcopy(model)
    assert_all_close(trained(compiled(model), x), trained(eager, x))


def test_a_model_in_eval_mode(compiled):
    model, x = Convolutional().eval(), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-6)


def test_it_is_found_by_its_name():
    entries = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert entries["opstep"].load() is opstep
    assert "opstep" in torch._dynamo.list_backends()


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformers_in_eval_mode(compiled, norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(),
        torch.randn(2, 5, 8),
    )
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        found = compiled(model)(x, src_key_padding_mask=padding)
        assert_all_close([found], [model(x, src_key_padding_mask=padding)])


def test_what_a_policy_draws(compiled):
    def act(logits):
        chosen = torch.distributions.Categorical(logits=logits, validate_args=False)
        return chosen.log_prob(chosen.sample()), F.gumbel_softmax(logits, hard=True)

    logits = torch.randn(20, 6)
    torch.manual_seed(3)
    expected = act(logits)
    torch.manual_seed(3)
    assert_all_close(compiled(act)(logits), expected)


def test_equations(compiled):
    def likelihood(x, y):
        covariance = torch.exp(-torch.cdist(x, x).square()) + 0.1 * torch.eye(len(x))
        root = torch.linalg.cholesky(covariance)
        solved = torch.cholesky_solve(y[:, None], root)[:, 0]
        whitened = torch.linalg.solve_triangular(root.mT, x.mT, upper=True, left=False)
        return y @ solved + root.diagonal().log().sum() + whitened.cos().sum()

    x, y = torch.randn(6, 2, requires_grad=True), torch.randn(6)
    found = torch.autograd.grad(compiled(likelihood)(x, y), x)
    assert_all_close(found, torch.autograd.grad(likelihood(x, y), x), rtol=1e-4, atol=1e-4)


def test_a_graph_without_results(compiled):
    """What is before the break is nothing but an input of what is behind it."""
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        y = torch.tanh(x * weight)
        if y.sum() > 0:
            y = y * 2
        torch._dynamo.graph_break()
        return y[y > 0].mean() + y.max().item()

    x = torch.arange(3.0)
    (found,) = torch.autograd.grad(compiled(f)(x), [weight])
    assert_all_close([found], torch.autograd.grad(f(x), [weight]))


def test_layers_of_pytorchs_own_that_recur(compiled):
    model, x = nn.LSTM(6, 8, 2, batch_first=True), torch.randn(3, 5, 6)
    params = list(model.parameters())
    f = lambda x: model(x)[0].pow(2).sum()  # noqa: E731
    with torch._dynamo.config.patch(allow_rnn=True):
        found = torch.autograd.grad(compiled(f)(x), params)
    assert_all_close(found, torch.autograd.grad(f(x), params), atol=1e-5)


def test_an_optimiser(compiled):
    model, x = mlp(), torch.randn(5, 6)
    eager = copy.deepcopy(model)
    for m, compile in ((model, compiled), (eager, lambda step: step)):
        optimiser = torch.optim.AdamW(m.parameters(), lr=0.01)
        step = compile(optimiser.step)
        for _ in range(3):
            m(x).sum().backward()
            step()
    assert_all_close(model.parameters(), eager.parameters())


@pytest.mark.parametrize(
    "layer", [nn.LogSigmoid(), nn.PReLU(), nn.GLU(), nn.GroupNorm(2, 6)], ids=str
)
def test_layers(compiled, layer):
    model, x, y = (
        nn.Sequential(nn.Linear(4, 6), layer),
        torch.randn(5, 4),
        torch.tensor([1, 0, 2, 1, 2]),
    )
    f = lambda: F.cross_entropy(model(x), y)  # noqa: E731
    params = list(model.parameters())
    found = torch.autograd.grad(compiled(f)(), params)
    assert_all_close(found, torch.autograd.grad(f(), params))


# --- what Dynamo does ---


def test_other_sizes_use_the_same_program(compiled):
    model = mlp()
    fast = compiled(model, dynamic=True)
    for n in (4, 7, 1, 0, 7):
        x = torch.randn(n, 6, requires_grad=True)
        wrt = [x, *model.parameters()]
        found = torch.autograd.grad(fast(x).sum(), wrt)
        assert_all_close(found, torch.autograd.grad(model(x).sum(), wrt))


def test_a_batch_that_changes_is_compiled_twice(compiled):
    model, counter = mlp(), CompileCounterWithBackend("opstep")
    fast = torch.compile(model, backend=counter)
    for n in (4, 7, 9, 11):
        x = torch.randn(n, 6)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 2


def test_sizes_that_are_numbers(compiled):
    def f(x, scale):
        b, n, d = x.shape
        return x.view(b * n, d).mean(0) * b + n * scale, x.transpose(0, 1).reshape(n, b * d), b * n

    fast = compiled(f, dynamic=True)
    for shape, scale in (((2, 3, 4), 2), ((5, 2, 3), 3), ((4, 4, 4), 5)):
        x = torch.randn(shape)
        *found, count = fast(x, scale)
        *expected, n = f(x, scale)
        assert_all_close(found, expected)
        assert count == n


def test_a_graph_break(compiled):
    def f(x):
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return (y * 2 if y.sum() > 5 else y).exp()

    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=1e-5, atol=1e-6)


def test_the_same_graph_has_its_program_again(compiled):
    from opstep.frontends.torch import graphs

    model, x = mlp(), torch.randn(5, 6)
    compiled(model)(x)
    known = len(graphs._programs)
    torch._dynamo.reset()
    compiled(copy.deepcopy(model))(x)
    assert len(graphs._programs) == known


def checked(x):
    torch._assert_async((x > 0).all(), "x is positive")
    return x.log()


def compared(x):
    least = x.min().item()
    torch._check(least > 0)
    return x.log() + least


@pytest.mark.parametrize("f", [checked, compared], ids=lambda f: f.__name__)
def test_checks_of_what_is_computed(compiled, f):
    told = {compared: "the model's check of a number it computes"}.get(f, "x is positive")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fast, x = compiled(f), torch.rand(4) + 1
        for _ in range(2):
            torch.testing.assert_close(fast(x), f(x))
            with pytest.raises(OpstepError, match=f"assert failed: {told}") as e:
                fast(-x)
            assert __file__ in str(e.value)


def test_a_check_of_sizes(compiled):
    def f(x):
        torch._check(x.shape[0] % 2 == 0)
        return x.view(2, -1).exp()

    fast = compiled(f, dynamic=True)
    for n in (4, 6, 2):
        x = torch.randn(n)
        torch.testing.assert_close(fast(x), f(x))
    with pytest.raises(Exception, match="Mod"):
        fast(torch.randn(5))


def test_a_batch_of_one_comes_first(compiled):
    model, counter = mlp(), CompileCounterWithBackend("opstep")
    fast = torch.compile(model, backend=counter)
    for n in (1, 5, 1, 7, 0):
        x = torch.randn(n, 6)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 3  # of one, of none, of more


# --- tensors ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_element_types(compiled, dtype):
    def f(x, index, mask):
        return torch.where(mask, x, x * 2).sum(0), index * 2 + 1, index > 1, x[index]

    args = torch.randn(4, 3).to(dtype), torch.tensor([0, 2, 3]), torch.rand(4, 3) > 0.5
    for a, b in zip(compiled(f)(*args), f(*args), strict=True):
        torch.testing.assert_close(a, b)


def test_training_in_bf16(compiled):
    model, x = mlp().bfloat16(), torch.randn(4, 6, dtype=torch.bfloat16)
    eager = copy.deepcopy(model)
    assert_all_close(trained(compiled(model), x), trained(eager, x), rtol=2e-2, atol=2e-2)


def test_autocast(compiled):
    model, x = mlp(), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(model)(x), model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_tensors_that_are_not_contiguous(compiled):
    def f(x, y):
        return x @ y + 1, x.t(), (x @ y).t()

    args = torch.randn(4, 5).t(), torch.randn(8, 4)[::2, 1:3]
    for a, b in zip(compiled(f)(*args), f(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert a.stride() == b.stride()


def test_updates_in_place(compiled):
    def f(x, count):
        count.add_(1)
        y = x * count
        y[0] = 0
        return y

    x, count, eager = torch.randn(3, 3), torch.ones(3), torch.ones(3)
    torch.testing.assert_close(compiled(f)(x, count), f(x, eager))
    assert torch.equal(count, eager)


def test_results_share_memory_where_they_do_in_eager_mode(compiled):
    def f(x):
        y = x.exp()
        return x, x.view(-1), x.clone(), y, y.view(-1), y.clone()

    x = torch.randn(3, 3)
    same, view, clone, y, of_y, clone_of_y = (t.data_ptr() for t in compiled(f)(x))
    assert same == view == x.data_ptr()
    assert y == of_y
    assert len({same, clone, y, clone_of_y}) == 4


def test_inputs_and_results_are_where_pytorch_has_them(compiled, monkeypatch):
    """Nothing is copied: the addresses that a run gets are those of the tensors."""
    from opstep.api.executable import Executable

    seen, run = [], Executable.run

    def watched(self, inputs, results, stream=None):
        seen.append((inputs, results))
        return run(self, inputs, results, stream)

    monkeypatch.setattr(Executable, "run", watched)
    layer, x = nn.Linear(64, 64), torch.randn(32, 64)
    fast = compiled(layer)
    y = fast(x)
    y.sum().backward()
    (inputs, results), (_, gradients) = seen
    assert {t.data_ptr() for t in (x, layer.weight, layer.bias)} <= set(inputs)
    assert results == [y.data_ptr()]
    assert {layer.weight.grad.data_ptr(), layer.bias.grad.data_ptr()} <= set(gradients)


def test_the_backward_lets_go_of_what_the_forward_kept(compiled):
    """As in eager mode: once a backward is over, its activations are gone."""
    import gc
    import weakref

    kept = []

    def pack(tensor):
        kept.append(weakref.ref(tensor))
        return tensor

    fast = compiled(mlp())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = fast(torch.randn(5, 6)).sum()
    loss.backward()
    assert kept
    del loss
    gc.collect()
    alive = [ref() for ref in kept if ref() is not None]
    assert all(isinstance(t, nn.Parameter) or t.is_leaf for t in alive)


def test_several_threads(compiled):
    model, x = mlp(), torch.randn(5, 6)
    fast = compiled(model)
    expected = fast(x)
    wrong = []

    def work():
        for _ in range(20):
            y = fast(x)
            if not torch.equal(y, expected):
                wrong.append(y)
            y.sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_scalar_of_the_model(compiled):
    table = torch.arange(4.0)
    x = torch.randn(3, 4)
    f = lambda x: x * table + torch.tensor([1.0, 2, 3, 4])  # noqa: E731
    torch.testing.assert_close(compiled(f)(x), f(x))


# --- random numbers ---


def test_random_numbers_are_those_of_pytorchs_generator(compiled):
    def f(x):
        p = x.sigmoid()
        several = torch.normal(x, p), torch.normal(x, 2.0), torch.normal(2.0, p).T
        binary = torch.bernoulli(p), torch.bernoulli(p.double().T), torch.ones(3, 4).bernoulli_(p)
        return (
            x + torch.rand(3, 4),
            torch.randn_like(x) * x,
            torch.normal(0, 2, (3,)),
            *several,
            *binary,
        )

    fast, x = compiled(f), torch.randn(3, 4)
    draws = []
    for g in (fast, torch.compile(f, backend="aot_eager"), fast):
        torch.manual_seed(11)
        draws.append(g(x))
    assert_all_close(draws[0], draws[1])
    assert_all_close(draws[0], draws[2])
    assert not torch.equal(fast(x)[0], fast(x)[0])


def test_random_numbers_fill_memory_with_gaps_as_in_eager_mode(compiled):
    """It is given other numbers than a contiguous tensor."""

    def draw(x):
        return x.normal_() + x.exponential_()

    x, fast = torch.empty(20, 40)[:, ::2], compiled(draw)
    draws = []
    for g in (draw, fast):
        torch.manual_seed(11)
        draws.append(g(x))
    assert torch.equal(*draws)
