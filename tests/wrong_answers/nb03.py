"""Wrong answers that learners of lesson 03 would give, each with a part of the message that must meet it."""

import torch


def _rounds(x, mantissa_bits, min_exponent, largest, beyond, to_whole=torch.round, least=True, after=True):
    wide = x.double()
    exponent = torch.frexp(wide).exponent - 1
    if least:
        exponent = exponent.clamp(min=min_exponent)
    spacing = torch.exp2((exponent - mantissa_bits).double())
    rounded = to_whole(wide / spacing) * spacing
    too_large = (rounded if after else wide).abs() > largest
    return torch.where(too_large, torch.full_like(wide, beyond).copysign(wide), rounded).float()


def cuts_off(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, beyond, to_whole=torch.trunc)


def rounds_half_up(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, beyond, to_whole=lambda y: torch.floor(y + 0.5))


def rounds_half_away(x, mantissa_bits, min_exponent, largest, beyond):
    away = lambda y: torch.sign(y) * torch.floor(y.abs() + 0.5)
    return _rounds(x, mantissa_bits, min_exponent, largest, beyond, to_whole=away)


def cuts_off_bits(x, mantissa_bits, min_exponent, largest, beyond):
    mask = -(1 << (23 - mantissa_bits))
    cut = (x.view(torch.int32) & mask).view(torch.float32)
    return torch.where(cut.abs() > largest, torch.full_like(cut, beyond).copysign(cut), cut)


def keeps_normal_spacing_below(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, beyond, least=False)


def loses_subnormals(x, mantissa_bits, min_exponent, largest, beyond):
    rounded = _rounds(x, mantissa_bits, min_exponent, largest, beyond)
    return torch.where(rounded.abs() < 2.0**min_exponent, torch.zeros_like(rounded), rounded)


def always_infinite(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, torch.inf)


def always_saturates(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, largest)


def looks_before_it_rounds(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x, mantissa_bits, min_exponent, largest, beyond, after=False)


def rounds_through_fp16(x, mantissa_bits, min_exponent, largest, beyond):
    if mantissa_bits > 10 or min_exponent < -14:
        return _rounds(x, mantissa_bits, min_exponent, largest, beyond)
    return _rounds(x.half().float(), mantissa_bits, min_exponent, largest, beyond)


def forgets_the_leading_one(x, mantissa_bits, min_exponent, largest, beyond):
    exponent = torch.frexp(x.double()).exponent.clamp(min=min_exponent)
    spacing = torch.exp2((exponent - mantissa_bits).double())
    return (torch.round(x / spacing) * spacing).float()


def clamps_first(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x.clamp(-largest, largest), mantissa_bits, min_exponent, largest, beyond)


def clamps_first_but_infinities(x, mantissa_bits, min_exponent, largest, beyond):
    rounded = clamps_first(x, mantissa_bits, min_exponent, largest, beyond)
    return torch.where(x.isinf(), torch.full_like(x, beyond).copysign(x), rounded)


def divides_infinities(x, mantissa_bits, min_exponent, largest, beyond):
    exponent = torch.floor(torch.log2(x.double().abs())).clamp(min=min_exponent)
    spacing = torch.exp2(exponent - mantissa_bits)
    rounded = torch.round(x / spacing) * spacing
    return torch.where(rounded.abs() > largest, torch.full_like(rounded, beyond).copysign(x), rounded).float()


def divides_infinities_by_pow(x, mantissa_bits, min_exponent, largest, beyond):
    exponent = x.double().abs().log2().floor().clamp(min=min_exponent)
    rounded = (x.double() * 2.0 ** (mantissa_bits - exponent)).round() * 2.0 ** (exponent - mantissa_bits)
    sign = torch.where(x < 0, -1.0, 1.0)
    return torch.where(rounded.abs() > largest, sign * beyond, rounded).float()


def clamps_lose_nan(x, mantissa_bits, min_exponent, largest, beyond):
    return _rounds(x.nan_to_num(0.0, torch.inf, -torch.inf), mantissa_bits, min_exponent, largest, beyond)


class _Base:
    """The right scaler, written as a learner would, for wrong ones to inherit from."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.growth_interval, self.good_steps, self.unscaled = growth_interval, 0, False

    def gradients(self, optimizer):
        return [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]

    def scale_loss(self, loss):
        return loss * self.scale

    def unscale(self, optimizer):
        if not self.unscaled:
            for gradient in self.gradients(optimizer):
                gradient /= self.scale
        self.unscaled = True

    def finite(self, optimizer):
        return all(gradient.isfinite().all() for gradient in self.gradients(optimizer))

    def step(self, optimizer):
        self.unscale(optimizer)
        finite = self.finite(optimizer)
        if finite:
            optimizer.step()
        self.update(finite)
        self.unscaled = False
        return finite

    def update(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class StepsOnInf(_Base):
    def step(self, optimizer):
        self.unscale(optimizer)
        finite = self.finite(optimizer)
        optimizer.step()
        self.update(finite)
        self.unscaled = False
        return finite


class ForgetsToReset(_Base):
    def update(self, finite):
        self.good_steps += finite
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class GrowsEverAfter(_Base):
    def update(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps >= self.growth_interval:
            self.scale *= self.growth


class UnscalesTwice(_Base):
    def unscale(self, optimizer):
        for gradient in self.gradients(optimizer):
            gradient /= self.scale


class StaysUnscaled(_Base):
    def step(self, optimizer):
        self.unscale(optimizer)
        finite = self.finite(optimizer)
        if finite:
            optimizer.step()
        self.update(finite)
        return finite


class ChecksTheLoss(_Base):
    def scale_loss(self, loss):
        self.loss = loss
        return loss * self.scale

    def finite(self, optimizer):
        return bool(self.loss.isfinite())


class ChecksTheFirst(_Base):
    def finite(self, optimizer):
        return bool(self.gradients(optimizer)[0].isfinite().all())


class SeesOnlyInf(_Base):
    def finite(self, optimizer):
        return not any(gradient.isinf().any() for gradient in self.gradients(optimizer))


class NeverGrows(_Base):
    def update(self, finite):
        if not finite:
            self.scale *= self.backoff


class NeverBacksOff(_Base):
    def update(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class StepsWithZeros(_Base):
    def step(self, optimizer):
        self.unscale(optimizer)
        finite = self.finite(optimizer)
        for gradient in self.gradients(optimizer):
            gradient.copy_(gradient if finite else torch.zeros_like(gradient))
        optimizer.step()
        self.update(finite)
        self.unscaled = False
        return finite


class NeverUnscales(_Base):
    def unscale(self, optimizer):
        self.unscaled = True


class GrowsOneLate(_Base):
    def update(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps > self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class LosesTheGraph(_Base):
    def scale_loss(self, loss):
        return torch.tensor(float(loss.detach()) * self.scale)


class DetachesTheLoss(_Base):
    def scale_loss(self, loss):
        return (loss.detach() * self.scale).requires_grad_()


class ScalesInPlace(_Base):
    def scale_loss(self, loss):
        loss *= self.scale
        return loss


class AlwaysDoubles(_Base):
    def update(self, finite):
        self.growth = 2.0
        super().update(finite)


class AlwaysHalves(_Base):
    def update(self, finite):
        self.backoff = 0.5
        super().update(finite)


class DoublesAndHalves(_Base):
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=2000):
        super().__init__(scale, 2.0, 0.5, growth_interval)


class SeesOneGroup(_Base):
    def gradients(self, optimizer):
        return [p.grad for g in optimizer.param_groups[:1] for p in g["params"] if p.grad is not None]


class ChecksOneGroup(_Base):
    def finite(self, optimizer):
        return all(p.grad.isfinite().all() for p in optimizer.param_groups[0]["params"] if p.grad is not None)


class DividesCopies(_Base):
    def unscale(self, optimizer):
        if not self.unscaled:
            for gradient in self.gradients(optimizer):
                gradient = gradient / self.scale  # noqa: PLW2901 - the mistake
        self.unscaled = True


class DividesOnlyInStep(_Base):
    def unscale(self, optimizer):
        pass

    def step(self, optimizer):
        _Base.unscale(self, optimizer)
        finite = self.finite(optimizer)
        if finite:
            optimizer.step()
        self.update(finite)
        self.unscaled = False
        return finite


class ForgetsAfterAGoodStepOnly(_Base):
    def step(self, optimizer):
        finite = super().step(optimizer)
        self.unscaled = not finite
        return finite


class ForgetsAfterASkipOnly(_Base):
    def step(self, optimizer):
        finite = super().step(optimizer)
        self.unscaled = finite
        return finite


class NeedsEveryGradient(_Base):
    def unscale(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.scale
        self.unscaled = True


def adds_in_bf16(chunks):
    total = torch.tensor(0.0, dtype=torch.bfloat16)
    for chunk in chunks:
        total += chunk.sum()
    return total.float()


def adds_one_by_one_in_bf16(chunks):
    total = torch.tensor(0.0, dtype=torch.bfloat16)
    for chunk in chunks:
        for value in chunk:
            total += value
    return total.float()


def sums_each_chunk_in_bf16(chunks):
    total = torch.tensor(0.0)
    for chunk in chunks:
        total += chunk.sum()
    return total


def upcasts_only_the_result(chunks):
    return torch.cat(chunks).sum().float()


def returns_bf16(chunks):
    return torch.cat(chunks).sum()


def copies_everything(chunks):
    return torch.cat(chunks).float().sum()


def stacks_copies(chunks):
    return torch.cat([chunk.float() for chunk in chunks]).sum()


def rounds_the_right_total(chunks):
    return sum(chunk.float().sum() for chunk in chunks).bfloat16().float()


def _chosen(machine, job, *, batch_first=True, fp8=(8, 9), bf16=(8, 0), checked=True, scaler=("fp16",), always=False):
    if batch_first and job["batch"] == 1:
        return "measure", False
    if machine["kind"] == "cpu":
        if "amx_bf16" in machine["features"]:
            return "bf16", False
        return ("measure" if "avx512_bf16" in machine["features"] else "fp32"), False
    capability = machine["capability"]
    if capability >= fp8 and not job["training"] and (job["accuracy_checked"] or not checked):
        return "fp8", False
    chosen = "bf16" if capability >= bf16 else "fp16" if capability >= (7, 0) else "fp32"
    return chosen, chosen in scaler and (job["training"] or always)


def forgets_batch_1(machine, job):
    return _chosen(machine, job, batch_first=False)


def believes_in_bf16_on_a_t4(machine, job):
    return _chosen(machine, job, bf16=(7, 0))


def scales_bf16_too(machine, job):
    return _chosen(machine, job, scaler=("fp16", "bf16"))


def scales_in_inference(machine, job):
    return _chosen(machine, job, always=True)


def never_scales(machine, job):
    return _chosen(machine, job, scaler=())


def fp8_on_an_a100(machine, job):
    return _chosen(machine, job, fp8=(8, 0))


def fp8_unchecked(machine, job):
    return _chosen(machine, job, checked=False)


def capability_as_text(machine, job):
    if machine["kind"] == "cpu" or job["batch"] == 1:
        return _chosen(machine, job)
    text = ".".join(map(str, machine["capability"]))
    return _chosen({**machine, "capability": (9, 0) if text >= "8.9" else machine["capability"]}, job) if (
        text >= "7"
    ) else ("fp32", False)


WRONG = {
    "3.1": [
        ("cuts the digits off", cuts_off, "cut off"),
        ("cuts the bits off", cuts_off_bits, "cut off"),
        ("rounds half up", rounds_half_up, "even mantissa"),
        ("rounds half away from zero", rounds_half_away, "even mantissa"),
        ("no least exponent", keeps_normal_spacing_below, "no longer shrinks"),
        ("loses subnormal numbers", loses_subnormals, "Subnormal numbers are lost"),
        ("always overflows to inf", always_infinite, "inf"),
        ("always saturates", always_saturates, "not `largest` in every format"),
        ("looks before it rounds", looks_before_it_rounds, "Round first, then compare"),
        ("clamps before it rounds", clamps_first, "clamping at `largest`"),
        ("clamps all but infinities", clamps_first_but_infinities, "clamping at `largest`"),
        ("divides inf by inf", divides_infinities, "inf / inf is NaN"),
        ("multiplies inf by zero", divides_infinities_by_pow, "inf / inf is NaN"),
        ("rounds twice", rounds_through_fp16, "Rounded twice"),
        ("one bit too few", forgets_the_leading_one, "One bit too few"),
        ("loses NaN", clamps_lose_nan, "65504"),
    ],
    "3.2": [
        ("steps on inf", StepsOnInf, "inf|NaN"),
        ("forgets to reset after a skip", ForgetsToReset, "breaks the row"),
        ("does not reset after growth", GrowsEverAfter, "count from 0|counts from 0"),
        ("unscales twice", UnscalesTwice, "second must change nothing"),
        ("stays unscaled", StaysUnscaled, "self.unscaled to False"),
        ("checks the loss", ChecksTheLoss, "inf|NaN"),
        ("checks the first gradient only", ChecksTheFirst, "inf|NaN"),
        ("sees only inf", SeesOnlyInf, "NaN"),
        ("never grows", NeverGrows, "set the scale anew"),
        ("never backs off", NeverBacksOff, "set the scale anew"),
        ("steps with zeros", StepsWithZeros, "momentum"),
        ("never unscales", NeverUnscales, "in place"),
        ("divides copies", DividesCopies, "the gradients themselves, in place"),
        ("divides only in step", DividesOnlyInStep, "8 times too large"),
        ("loses the graph", LosesTheGraph, "No gradient arrives"),
        ("detaches the loss", DetachesTheLoss, "No gradient arrives"),
        ("scales the loss in place", ScalesInPlace, "changes the loss itself"),
        ("always doubles", AlwaysDoubles, "growth and backoff are given"),
        ("always halves", AlwaysHalves, "growth and backoff are given"),
        ("always doubles and halves", DoublesAndHalves, "growth and backoff are given"),
        ("sees one group only", SeesOneGroup, "param_groups"),
        ("checks one group only", ChecksOneGroup, "NaN|inf"),
        ("stays unscaled after a skip", ForgetsAfterAGoodStepOnly, "after a skipped one too"),
        ("stays unscaled but after a skip", ForgetsAfterASkipOnly, "self.unscaled to False"),
        ("grows one step late", GrowsOneLate, "not with the one after"),
        ("needs every gradient", NeedsEveryGradient, "TypeError"),
    ],
    "3.3": [
        ("adds in bf16", adds_in_bf16, "kept in bf16"),
        ("adds one by one in bf16", adds_one_by_one_in_bf16, "kept in bf16"),
        ("sums each chunk in bf16", sums_each_chunk_in_bf16, "Each chunk's sum"),
        ("upcasts only the result", upcasts_only_the_result, "rounded to bf16 at the end|kept in bf16"),
        ("returns bf16", returns_bf16, "wrong dtype"),
        ("copies everything", copies_everything, "not in the way asked for"),
        ("stacks float32 copies", stacks_copies, "not in the way asked for"),
        ("rounds the right total", rounds_the_right_total, "at the end|kept in bf16"),
    ],
    "3.4": [
        ("forgets batch 1", forgets_batch_1, "Rule 1"),
        ("bf16 on a T4", believes_in_bf16_on_a_t4, "emulate"),
        ("scales bf16 too", scales_bf16_too, "no scaler"),
        ("scales in inference", scales_in_inference, "without training there are none"),
        ("never scales", never_scales, "needs the scaler"),
        ("fp8 on an A100", fp8_on_an_a100, "8.9"),
        ("fp8 unchecked", fp8_unchecked, "accuracy has been checked"),
        ("compares capability as text", capability_as_text, "capability"),
    ],
}
