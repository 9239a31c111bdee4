"""From FLOPs to a model and its tokens: fitted laws of the loss, and the pair that each calls best for a budget.

L(N, D) = floor + A / N^alpha + B / D^beta, for N parameters and D tokens, each seen once; training takes C = 6 N D.
Ignores what serving the model costs, other data and tokenisers than the fits', and models far larger than those fitted.
Sources: Hoffmann and others, Training Compute-Optimal Large Language Models (arXiv:2203.15556), section 3.3; Besiroglu
and others, Chinchilla Scaling: A replication attempt (arXiv:2404.10102), who also found the digits before rounding in
the first paper's TeX source.
"""

from dataclasses import dataclass
from math import sqrt

Number = float | int


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law of the loss, in nats per token."""

    floor: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, n_parameters: Number, n_tokens: Number) -> float:
        """The loss that it predicts after training, in nats per token."""
        return self.floor + self.A / n_parameters**self.alpha + self.B / n_tokens**self.beta

    def optimum(self, flops: Number) -> tuple[float, float]:
        """(parameters, tokens) of the least loss among all pairs that take `flops` FLOPs, by setting its slope to 0."""
        alpha, beta = self.alpha, self.beta
        scale = (alpha * self.A / (beta * self.B)) ** (1 / (alpha + beta))
        n_parameters = scale * (flops / 6) ** (beta / (alpha + beta))
        return n_parameters, flops / 6 / n_parameters


LAWS = {
    "Hoffmann 2022, as printed": Law(floor=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28),
    "Hoffmann 2022, unrounded": Law(floor=1.6934, A=406.4, alpha=0.3392, B=410.7, beta=0.2849),
    "Besiroglu 2024, refitted": Law(floor=1.8172, A=482.01, alpha=0.3478, B=2085.43, beta=0.3658),
}


def by_ratio(flops: Number, tokens_per_parameter: Number = 20) -> tuple[float, float]:
    """(parameters, tokens) in a fixed proportion that take `flops` FLOPs: C = 6 N D and D = ratio N.

    Twenty is the rule of thumb for Hoffmann and others' first two approaches (table 3).
    """
    n_parameters = sqrt(flops / 6 / tokens_per_parameter)
    return n_parameters, tokens_per_parameter * n_parameters
