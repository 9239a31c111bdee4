"""Right answers to lesson 01's exercises, each written by itself in a way of its own, and what copying does to one."""

import re

RATE = [
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    if step < n_warmup:
        return peak * (step + 1) / n_warmup
    if step >= n_steps - n_decay:
        return peak * (n_steps - step) / n_decay
    return peak
""",
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    factor = 1.0
    if n_warmup > 0:
        factor = min(factor, (step + 1) / n_warmup)
    if n_decay > 0:
        factor = min(factor, (n_steps - step) / n_decay)
    return factor * peak
""",
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    left = n_steps - step
    lr = peak
    if step + 1 <= n_warmup:
        lr = peak / n_warmup * (step + 1)
    elif left <= n_decay:
        lr = peak / n_decay * left
    return lr
""",
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    ups = [(i + 1) / n_warmup for i in range(n_warmup)]
    downs = [(n_decay - i) / n_decay for i in range(n_decay)]
    plateau = [1.0] * (n_steps - n_warmup - n_decay)
    return peak * (ups + plateau + downs)[step]
""",
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    start_of_decay = n_steps - n_decay
    warm = np.interp(step, [-1, n_warmup - 1], [0, 1]) if n_warmup else 1
    cool = np.interp(step, [start_of_decay, n_steps], [1, 0]) if n_decay else 1
    return float(peak * min(warm, cool))
""",
    """
def warmup_stable_decay(step, peak, n_steps, n_warmup, n_decay):
    up = peak if n_warmup == 0 else peak * (step + 1) / n_warmup
    down = peak if n_decay == 0 else peak * (n_steps - step) / n_decay
    return min(up, peak, down)
""",
]
PICK = [
    """
def pick_rate(rates, losses):
    losses = losses.clone()
    losses[~torch.isfinite(losses)] = float("inf")
    return rates[torch.argmin(losses)].item() / 10
""",
    """
def pick_rate(rates, losses):
    mask = losses.isfinite()
    return (rates[mask][losses[mask].argmin()] / 10).item()
""",
    """
def pick_rate(rates, losses):
    clean = torch.nan_to_num(losses, nan=math.inf, posinf=math.inf)
    best = clean.min(dim=0).indices
    return float(rates[best] * 0.1)
""",
    """
def pick_rate(rates, losses):
    pairs = [(l, r) for l, r in zip(losses.tolist(), rates.tolist()) if math.isfinite(l)]
    return min(pairs)[1] / 10
""",
    """
def pick_rate(rates, losses):
    best_loss = None
    best_rate = None
    for i in range(len(losses)):
        if torch.isnan(losses[i]) or torch.isinf(losses[i]):
            continue
        if best_loss is None or losses[i] < best_loss:
            best_loss = losses[i]
            best_rate = rates[i]
    return float(best_rate) / 10
""",
    """
def pick_rate(rates, losses):
    order = np.argsort(losses.numpy())
    good = [i for i in order if np.isfinite(losses[i])]
    return float(rates[int(good[0])]) / 10.0
""",
]
SHARP = [
    """
def sharpness(loss_at, w, n_iterations):
    w = w.clone().detach()
    w.requires_grad = True
    loss = loss_at(w)
    g = torch.autograd.grad(loss, w, create_graph=True)[0]
    v = torch.randn(w.shape)
    v = v / torch.norm(v)
    for i in range(n_iterations):
        hv = torch.autograd.grad(g @ v, w, retain_graph=True)[0]
        lam = torch.dot(v, hv)
        v = hv / torch.norm(hv)
    return lam.item()
""",
    """
def sharpness(loss_at, w, n_iterations):
    point = w.detach().requires_grad_(True)
    v = torch.rand_like(point)
    for _ in range(n_iterations):
        v /= v.norm()
        _, hv = torch.autograd.functional.hvp(loss_at, point, v)
        rayleigh = (v * hv).sum()
        v = hv
    return float(rayleigh)
""",
    """
def sharpness(loss_at, w, n_iterations):
    def hessian_times(vector):
        x = w.detach().clone().requires_grad_(True)
        grad, = torch.autograd.grad(loss_at(x), x, create_graph=True)
        product = (grad * vector).sum()
        out, = torch.autograd.grad(product, x)
        return out

    v = torch.ones(len(w), dtype=w.dtype) + 0.1 * torch.randn(len(w), dtype=w.dtype)
    for k in range(n_iterations):
        v = hessian_times(v)
        v = v / v.pow(2).sum().sqrt()
    return (v @ hessian_times(v)).item()
""",
    """
def sharpness(loss_at, w, n_iterations):
    gradient = torch.func.grad(loss_at)
    direction = torch.nn.functional.normalize(torch.randn_like(w), dim=0)
    eigenvalue = 0.0
    for _ in range(n_iterations):
        product = torch.func.jvp(gradient, (w.detach(),), (direction,))[1]
        eigenvalue = float(direction.dot(product))
        direction = torch.nn.functional.normalize(product, dim=0)
    return eigenvalue
""",
    """
def sharpness(loss_at, w, n_iterations):
    w0 = w.detach().clone()
    w0.requires_grad_()
    first = torch.autograd.grad(loss_at(w0), [w0], create_graph=True)
    u = torch.randn_like(w0)
    curvature = None
    while n_iterations > 0:
        u = u.div(u.norm(p=2))
        (second,) = torch.autograd.grad(outputs=first, inputs=[w0], grad_outputs=[u], retain_graph=True)
        curvature = torch.sum(u * second).item()
        u = second.detach()
        n_iterations -= 1
    return curvature
""",
    """
def sharpness(loss_at, w, n_iterations):
    torch.manual_seed(0)
    with torch.enable_grad():
        p = torch.tensor(w.tolist(), dtype=w.dtype, requires_grad=True)
        (dp,) = torch.autograd.grad(loss_at(p), p, create_graph=True)
        rows = [torch.autograd.grad(each, p, retain_graph=True)[0] for each in dp]
    H = torch.stack(rows)
    q = torch.randn(p.numel(), dtype=w.dtype)
    for _ in range(n_iterations):
        q = H @ (q / torch.linalg.norm(q))
    q = q / torch.linalg.norm(q)
    return float(q @ H @ q)
""",
]
SHORTEST = (RATE[5], PICK[1], SHARP[1])  # in each list, of as few tokens as any


def renamed(source):
    """The same with other names for all that is bound in it."""
    names = dict.fromkeys(re.findall(r"\b([^\W\d]\w*)(?= =|,? in |, )", source))
    for n, name in enumerate(one for one in names if one not in ("w", "loss_at", "torch", "dim", "p")):
        source = re.sub(rf"(?<![.\w]){name}\b(?!=)", f"name_{n}", source)
    return source


def laid_out(source):
    """The same with comments, a docstring, blank lines, brackets and line ends of another person."""
    head, _, body = source.strip().partition("\n")
    lines = [f"{line}  # step {n}\n" for n, line in enumerate(body.split("\n"))]
    text = f'{head}\n    """What it does."""\n' + "\n".join(lines)
    return re.sub(r"return (.+?)  #", r"return (\1)  #", text)
