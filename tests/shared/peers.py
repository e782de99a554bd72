"""The networks of `examples/` in PyTorch: `network(x, params)`, with the params by their names."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def lenet(x, p):
    """For 8x8 images: two convolutions of 3x3, three linear layers."""
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"{name}.w"], p[f"{name}.b"], padding=1)), 2)
    x = x.flatten(1)
    x = F.relu(F.linear(x, p["fc1.w"], p["fc1.b"]))
    x = F.relu(F.linear(x, p["fc2.w"], p["fc2.b"]))
    return F.linear(x, p["fc3.w"], p["fc3.b"])


def alexnet(x, p, masks=None):
    """The well-known listing, for one-channel images. `masks`: what the dropouts multiply with."""
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.w"], p["conv1.b"], stride=4)), 3, 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2.w"], p["conv2.b"], padding=2)), 3, 2)
    for name in ("conv3", "conv4", "conv5"):
        x = F.relu(F.conv2d(x, p[f"{name}.w"], p[f"{name}.b"], padding=1))
    x = F.max_pool2d(x, 3, 2).flatten(1)
    x = F.relu(F.linear(x, p["fc1.w"], p["fc1.b"]))
    x = F.relu(F.linear(x if masks is None else x * masks[0], p["fc2.w"], p["fc2.b"]))
    return F.linear(x if masks is None else x * masks[1], p["fc3.w"], p["fc3.b"])


def unet_block(x, p, name: str, training: bool):
    """Without batch norm where there is a bias."""
    c = F.conv2d(x, p[f"{name}.w"], p.get(f"{name}.b"), padding=1)
    if f"{name}.scale" in p:
        statistics = p[f"{name}.mean"], p[f"{name}.var"], p[f"{name}.scale"], p[f"{name}.bias"]
        c = F.batch_norm(c, *statistics, training=training, eps=1e-5)
    return F.relu(c)


def unet(x, p, training=False):
    def block(x, name: str):
        return unet_block(x, p, name, training)

    skip1 = block(x, "down1")
    skip2 = block(F.max_pool2d(skip1, 2), "down2")
    deep = block(F.max_pool2d(skip2, 2), "middle")
    up2 = block(torch.cat([skip2, F.interpolate(deep, scale_factor=2)], 1), "up2")
    up1 = block(torch.cat([skip1, F.interpolate(up2, scale_factor=2)], 1), "up1")
    return F.conv2d(up1, p["head.w"], p["head.b"])


def unet_two(a, b, p):
    def block(x, w: str, bias: str):
        return F.relu(F.conv2d(x, p[w], p[bias], padding=1))

    def down(x, name: str):
        full = block(x, f"{name}.w1", f"{name}.b1")
        half = block(F.max_pool2d(full, 2), f"{name}.w2", f"{name}.b2")
        return full, half, block(F.max_pool2d(half, 2), f"{name}.w3", f"{name}.b3")

    def up(name: str):
        up2 = torch.cat([half, F.interpolate(deep, scale_factor=2)], 1)
        up2 = block(up2, f"{name}.w2", f"{name}.b2")
        up1 = torch.cat([full, F.interpolate(up2, scale_factor=2)], 1)
        return F.conv2d(block(up1, f"{name}.w1", f"{name}.b1"), p[f"{name}.w"], p[f"{name}.b"])

    full, half, quarter = (
        torch.cat(pair, 1) for pair in zip(down(a, "a"), down(b, "b"), strict=True)
    )
    deep = block(quarter, "deep.w", "deep.b")
    return up("mask"), up("edge")


def recurrent(x, p):
    h = x.new_zeros(x.shape[1], len(p["step.b"]))
    for now in x:
        h = torch.tanh(h @ p["step.w"].T + p["step.b"] + now @ p["step.u"].T)
    return h @ p["out.w"].T + p["out.b"]


def gpt(text, p):
    b, length = text.shape
    x = p["token"][text] + p["place"][:length]
    for name in (f"h{k}" for k in range(1, 7)):
        n = F.layer_norm(x, (384,), p[f"{name}.norm1.scale"], p[f"{name}.norm1.bias"])
        qkv = F.linear(n, p[f"{name}.qkv.w"], p[f"{name}.qkv.b"])
        q, k, v = qkv.view(b, length, 3, 6, 64).permute(2, 0, 3, 1, 4)
        looked = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        rows = looked.transpose(1, 2).reshape(b, length, 384)
        x = x + F.linear(rows, p[f"{name}.join.w"], p[f"{name}.join.b"])
        n = F.layer_norm(x, (384,), p[f"{name}.norm2.scale"], p[f"{name}.norm2.bias"])
        wide = F.gelu(F.linear(n, p[f"{name}.up.w"], p[f"{name}.up.b"]))
        x = x + F.linear(wide, p[f"{name}.down.w"], p[f"{name}.down.b"])
    return F.linear(F.layer_norm(x, (384,), p["last.scale"], p["last.bias"]), p["token"])
