"""Operators that PyTorch asks of an accelerator but has no CPU kernel for: what they mean, on CPU tensors.

PyTorch sends convolutions of a PrivateUse1 device to ``convolution_overrideable``, and its LSTM and GRU layers to fused
cells that only accelerators have (native_functions.yaml; RNN.cpp and the formulas of its CUDA kernels).
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _convolution_backward(grad, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask):
    channels = grad.shape[1]
    return aten.convolution_backward(
        grad, input, weight, [channels], stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


def _lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad = grad_hy * o * (1 - tanh * tanh)
    grad = grad if grad_cy is None else grad + grad_cy
    gates = [grad * g * i * (1 - i), grad * cx * f * (1 - f), grad * i * (1 - g * g), grad_hy * tanh * o * (1 - o)]
    grad_gates = torch.cat(gates, 1)
    return grad_gates, grad * f, grad_gates.sum(0) if has_bias else torch.empty(0)


def _gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    if input_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    (ir, iz, new), (hr, hz, hn) = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, hx, hn = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * hn * r * (1 - r)
    grad_input = torch.cat([grad_r, grad_z, grad_n], 1)
    grad_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (torch.empty(0), torch.empty(0))
    return grad_input, grad_hidden, grad_hy * z, *biases


SUBSTITUTES = {
    aten.convolution_overrideable.default: aten.convolution.default,
    aten.convolution_backward_overrideable.default: _convolution_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
