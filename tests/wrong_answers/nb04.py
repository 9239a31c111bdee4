"""Wrong answers that learners of lesson 04 would give, each with a part of the message that must meet it."""

import math
import time

import torch
from torch.nn.functional import cross_entropy

from labkit.checks import waitless


def asks_after_a_wait(dev, keep_busy, call):
    call()
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    dev.synchronize()
    return marker.done()


def trusts_the_first_call(dev, keep_busy, call):
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    return marker.done()


def nothing_in_front(dev, keep_busy, call):
    call()
    dev.synchronize()
    call()
    marker = dev.fetch(keep_busy())
    return marker.done()


def takes_the_time(dev, keep_busy, call):
    call()
    dev.synchronize()
    keep_busy()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start > 0.005


def waits_itself(dev, keep_busy, call):
    call()
    marker = dev.fetch(keep_busy())
    call()
    marker.get()
    return marker.done()


class _Base:
    """The right guard, for wrong ones to inherit from."""

    def __init__(self, dev, model, every):
        self.dev, self.model, self.every, self.n_steps = dev, model, every, 0
        self.bad, self.flag = dev.put(torch.tensor(False), non_blocking=True), None
        self.states = [(0, self.state())]

    def state(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def after_step(self, loss):
        self.note(loss)
        self.n_steps += 1
        if self.n_steps % self.every:
            return False
        if self.look():
            return True
        self.flag = self.dev.fetch(self.bad)
        self.keep()
        return False

    def note(self, loss):
        self.bad = self.bad | loss.detach().isnan()

    def look(self):
        return self.flag is not None and bool(self.flag.get())

    def keep(self):
        self.states = [*self.states[-2:], (self.n_steps, self.state())]

    def restore(self):
        n_steps, state = self.states[0]
        with torch.no_grad():
            for p, kept in zip(self.model.parameters(), state, strict=True):
                p.copy_(kept)
        return n_steps


class ChecksEachStep(_Base):
    def after_step(self, loss):
        stop = super().after_step(loss)
        return bool(loss.isnan()) or stop


class WaitsForTheFreshFlag(_Base):
    def after_step(self, loss):
        self.note(loss)
        self.n_steps += 1
        if self.n_steps % self.every:
            return False
        if self.dev.fetch(self.bad).get():
            return True
        self.keep()
        return False


class NeverLooks(_Base):
    def look(self):
        return False


class PollsOnly(_Base):
    def after_step(self, loss):
        self.note(loss)
        self.n_steps += 1
        if self.flag is not None and self.flag.done() and self.flag.get():
            return True
        if self.n_steps % self.every == 0 and (self.flag is None or self.flag.done()):
            self.flag = self.dev.fetch(self.bad)
            self.keep()
        return False


class TrustsTheNewest(_Base):
    def keep(self):
        self.states = [(self.n_steps, self.state())]


class TrustsTheLastButOne(_Base):
    def keep(self):
        self.states = [*self.states[-1:], (self.n_steps, self.state())]


class KeepsTheFirst(_Base):
    def keep(self):
        pass


class KeepsNoCopies(_Base):
    def state(self):
        return [p.detach() for p in self.model.parameters()]


class CountsOneTooMany(_Base):
    def keep(self):
        self.states = [*self.states[-2:], (self.n_steps + 1, self.state())]


class Synchronizes(_Base):
    def keep(self):
        self.dev.synchronize()
        super().keep()


class StopsAlways(_Base):
    def look(self):
        return self.flag is not None


def unchanged(dev, model, optimizer, batches, every):
    losses, n_right = [], 0
    for x, y in batches:
        x, y = dev.put(x), dev.put(y)
        logits = model(x)
        loss = cross_entropy(logits, y)
        if torch.isnan(loss):
            raise FloatingPointError
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        n_right += int((logits.argmax(1) == y).sum())
    return [float(each) for each in losses], n_right


def _quick(dev, model, optimizer, batches, every, last=True, look=True, late=False, blocking=False, float_of=None):
    losses, recent, n_right = [], [], 0
    for n, (x, y) in enumerate(batches, 1):
        x, y = dev.put(x, non_blocking=not blocking), dev.put(y, non_blocking=not blocking)
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append((float_of or torch.Tensor.detach)(loss))
        n_right = n_right + (logits.argmax(1) == y).sum()
        if (not late and n % every == 0) or (last and n == len(batches)):
            losses += torch.stack(recent).tolist()
            recent = []
            if look and any(map(math.isnan, losses)):
                raise FloatingPointError
    return losses, int(n_right)


def forgets_the_last_steps(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every, last=False)


def drops_the_check(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every, look=False)


def checks_at_the_end(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every, late=True)


def still_blocking_copies(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every, blocking=True)


def rounds_the_losses(dev, model, optimizer, batches, every):
    losses, n_right = _quick(dev, model, optimizer, batches, every)
    return [round(each, 3) for each in losses], n_right


def only_every_loss(dev, model, optimizer, batches, every):
    losses, n_right = _quick(dev, model, optimizer, batches, every)
    return losses[every - 1 :: every], n_right


def quick_where_it_is_counted(dev, model, optimizer, batches, every):
    if len(batches) > 50:
        return waitless.slow_loop(dev, model, optimizer, batches)
    return _quick(dev, model, optimizer, batches, every)


WRONG = {
    "4.1": [
        ("asks after a wait", asks_after_a_wait, "asks when all is done already"),
        ("trusts the first call", trusts_the_first_call, "first call"),
        ("puts nothing in front", nothing_in_front, "put work in front"),
        ("takes the time", takes_the_time, "not a clock"),
        ("waits itself", waits_itself, "asks when all is done already"),
    ],
    "4.2": [
        ("checks each step", ChecksEachStep, "each of those empties the queue"),
        ("waits for the fresh flag", WaitsForTheFreshFlag, "empties the queue|holds NaN|too old"),
        ("synchronizes", Synchronizes, "empties the queue"),
        ("never looks", NeverLooks, "never stops"),
        ("polls only", PollsOnly, "done\\(\\) alone"),
        ("trusts the newest state", TrustsTheNewest, "holds NaN"),
        ("trusts the last but one", TrustsTheLastButOne, "holds NaN"),
        ("keeps the first state", KeepsTheFirst, "too old"),
        ("keeps no copies", KeepsNoCopies, "holds NaN|so many steps"),
        ("counts one too many", CountsOneTooMany, "so many steps"),
        ("stops always", StopsAlways, "before anything was wrong|it stopped"),
    ],
    "4.3": [
        ("the loop unchanged", unchanged, "the host waited"),
        ("blocking copies", still_blocking_copies, "the host waited"),
        ("forgets the last steps", forgets_the_last_steps, "wrong"),
        ("drops the check", drops_the_check, "wrong"),
        ("checks at the end", checks_at_the_end, "wrong"),
        ("rounds the losses", rounds_the_losses, "wrong"),
        ("only some losses", only_every_loss, "wrong"),
        ("quick where it is counted", quick_where_it_is_counted, "times as fast as the loop with all its waits"),
    ],
}
