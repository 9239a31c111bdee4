"""Wrong answers that learners of lesson 01 would give, each with a part of the message that must meet it."""

import torch


def starts_at_zero(step, peak, n_steps, n_warmup, n_decay):
    up = step / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)


def divides_by_zero(step, peak, n_steps, n_warmup, n_decay):
    return peak * min(1.0, (step + 1) / n_warmup, (n_steps - step) / n_decay)


def decays_over_the_whole_run(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    return peak * min(1.0, up, (n_steps - step) / n_steps)


def multiplies_the_pieces_without_a_cap(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return peak * up * down


def forgets_the_peak(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - step) / n_decay if n_decay else 1.0
    return min(1.0, up, down)


def argmin_takes_nan(rates, losses):
    return float(rates[losses.argmin()]) / 10


def takes_the_minimum_itself(rates, losses):
    return float(rates[torch.nan_to_num(losses, nan=torch.inf).argmin()])


def takes_the_steepest_place(rates, losses):
    finite = torch.nan_to_num(losses, nan=1e9, posinf=1e9)
    return float(rates[finite.diff().argmin()])


def returns_the_loss(rates, losses):
    return float(losses[losses.isfinite()].min()) / 10


def norm_instead_of_quotient(loss_at, w, n_iterations):
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v = torch.randn_like(w)
    for _ in range(n_iterations):
        v = v / v.norm()
        (v,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
    return float(v.norm())


def never_normalised(loss_at, w, n_iterations):
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v = torch.randn_like(w)
    for _ in range(n_iterations):
        previous = v
        (v,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
    return float(previous @ v)


def no_create_graph(loss_at, w, n_iterations):
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w)
    v = torch.randn_like(w)
    for _ in range(n_iterations):
        v = v / v.norm()
        (v,) = torch.autograd.grad(gradient, w, grad_outputs=v, retain_graph=True)
    return float(v.norm())


def one_iteration_only(loss_at, w, n_iterations):
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    v = torch.randn_like(w)
    v = v / v.norm()
    (hv,) = torch.autograd.grad(gradient, w, grad_outputs=v)
    return float(v @ hv)


def builds_the_hessian(loss_at, w, n_iterations):
    values = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_at, w))
    return float(values[values.abs().argmax()])


def builds_the_hessian_at_once(loss_at, w, n_iterations):
    values = torch.linalg.eigvalsh(torch.func.hessian(loss_at)(w))
    return float(values[values.abs().argmax()])


def the_largest(loss_at, w, n_iterations):
    return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss_at, w)).max())


def no_gradients_of_w(loss_at, w, n_iterations):
    (gradient,) = torch.autograd.grad(loss_at(w), w, create_graph=True)
    return float(gradient.norm())


def last_step_stands_still(step, peak, n_steps, n_warmup, n_decay):
    up = (step + 1) / n_warmup if n_warmup else 1.0
    down = (n_steps - 1 - step) / n_decay if n_decay else 1.0
    return peak * min(1.0, up, down)


WRONG = {
    "1.1": [
        ("starts at zero", starts_at_zero, "step=0"),
        ("divides by zero", divides_by_zero, "ZeroDivisionError"),
        ("decays over the whole run", decays_over_the_whole_run, "n_decay=0"),
        ("no cap at the peak", multiplies_the_pieces_without_a_cap, "Three straight pieces"),
        ("forgets the peak", forgets_the_peak, "peak=0.5"),
        ("the last step stands still", last_step_stands_still, "It is zero"),
    ],
    "1.2": [
        ("argmin takes NaN", argmin_takes_nan, "lowest loss that is a real number"),
        ("the minimum itself", takes_the_minimum_itself, "divided by ten"),
        ("the steepest place", takes_the_steepest_place, "lowest loss"),
        ("the loss instead of the rate", returns_the_loss, "its rate"),
    ],
    "1.3": [
        ("a norm loses the sign", norm_instead_of_quotient, "The sign is lost"),
        ("never normalised", never_normalised, "inf|NaN|too large"),
        ("no create_graph", no_create_graph, "does not require grad"),
        ("one iteration only", one_iteration_only, "are all iterations done"),
        ("builds the Hessian row by row", builds_the_hessian, "the whole Hessian"),
        ("builds the Hessian at once", builds_the_hessian_at_once, "the whole Hessian"),
        ("the largest, not the largest in size", the_largest, "here is negative"),
        ("w without gradients", no_gradients_of_w, "does not require grad"),
    ],
}
