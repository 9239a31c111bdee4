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


def asks_the_wrong_way_round(dev, keep_busy, call):
    call()
    dev.synchronize()
    marker = dev.fetch(keep_busy())
    call()
    return not marker.done()


def counts_recorded_waits(dev, keep_busy, call):
    call()
    with dev.recording() as spans:
        call()
    return any(span.kind == "wait" for span in spans)


def fetches_what_is_on_the_host(dev, keep_busy, call):
    call()
    dev.synchronize()
    keep_busy()
    marker = dev.fetch(torch.tensor([1.0]))
    call()
    return marker.done()


def returns_nothing(dev, keep_busy, call):
    call()
    dev.fetch(keep_busy()).done()


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


class ForgetsOldLosses(_Base):
    def note(self, loss):
        self.bad = loss.detach().isnan()


class NotesOnlyWhenItLooks(_Base):
    def note(self, loss):
        if (self.n_steps + 1) % self.every == 0:
            self.bad = self.bad | loss.detach().isnan()


class LooksAtTheWeights(_Base):
    def note(self, loss):
        for p in self.model.parameters():
            self.bad = self.bad | p.detach().isnan().any()


class AsksWithOr(_Base):
    def note(self, loss):
        self.bad = self.bad or loss.detach().isnan()


class StopsAtOnce(_Base):
    def after_step(self, loss):
        if loss.isnan():
            return True
        return super().after_step(loss)


class KeepsAllStates(_Base):
    def keep(self):
        self.states = [*self.states, (self.n_steps, self.state())]


class ReturnsNone(_Base):
    def after_step(self, loss):
        return super().after_step(loss) or None


class ReturnsTheFlag(_Base):
    def after_step(self, loss):
        super().after_step(loss)
        return self.bad


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


def _quick(dev, model, optimizer, batches, every, last=True, look=True, late=False, blocking=False, one_more=False):
    losses, recent, n_right = [], [], 0
    for n, (x, y) in enumerate(batches, 1):
        x, y = dev.put(x, non_blocking=not blocking), dev.put(y, non_blocking=not blocking)
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.detach())
        n_right = n_right + (logits.argmax(1) == y).sum()
        if (not late and (len(recent) > every if one_more else n % every == 0)) or (last and n == len(batches)):
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


def looks_every_one_more(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every, one_more=True)


def raises_another_error(dev, model, optimizer, batches, every):
    try:
        return _quick(dev, model, optimizer, batches, every)
    except FloatingPointError as error:
        raise ValueError("NaN") from error


def prints_the_pair(dev, model, optimizer, batches, every):
    str(_quick(dev, model, optimizer, batches, every))


def returns_only_losses(dev, model, optimizer, batches, every):
    return _quick(dev, model, optimizer, batches, every)[0]


def leaves_the_count_there(dev, model, optimizer, batches, every):
    losses, n_right = _quick(dev, model, optimizer, batches, every)
    return losses, dev.put(torch.tensor(n_right))


def leaves_the_losses_there(dev, model, optimizer, batches, every):
    losses, n_right = _quick(dev, model, optimizer, batches, every)
    return [dev.put(torch.tensor(each)) for each in losses], n_right


def counts_one_too_many(dev, model, optimizer, batches, every):
    losses, n_right = _quick(dev, model, optimizer, batches, every)
    return losses, n_right + 1


def takes_one_step_more(dev, model, optimizer, batches, every):
    given = _quick(dev, model, optimizer, batches, every)
    optimizer.step()
    return given


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
        ("takes the time", takes_the_time, "A clock does so|not a clock"),
        ("waits itself", waits_itself, "asks when all is done already"),
        ("asks the wrong way round", asks_the_wrong_way_round, "wrong way round"),
        ("counts recorded waits", counts_recorded_waits, "of paper, has fetch and synchronize, and no recording"),
        ("fetches what is on the host", fetches_what_is_on_the_host, "what keep_busy\\(\\) returned"),
        ("returns nothing", returns_nothing, "Is the `return` missing"),
    ],
    "4.2": [
        ("checks each step", ChecksEachStep, "in the way asked for.*\n.*in `bool`.*`if`, `or`, `and`"),
        ("waits for the fresh flag", WaitsForTheFreshFlag, "waited for young work.*copy to host|fetched `every` steps"),
        ("synchronizes", Synchronizes, "in `synchronize`.*That empties the queue"),
        ("never looks", NeverLooks, "never stopped"),
        ("polls only", PollsOnly, "done\\(\\) alone|It forgets|`every` steps later"),
        ("trusts the newest state", TrustsTheNewest, "put back NaN"),
        ("trusts the last but one", TrustsTheLastButOne, "put back NaN"),
        ("keeps the first state", KeepsTheFirst, "too old a state"),
        ("keeps all states", KeepsAllStates, "too old a state"),
        ("keeps no copies", KeepsNoCopies, "memory of the live weights(.|\n)*which clones"),
        ("counts one too many", CountsOneTooMany, "put back another state"),
        ("stops always", StopsAlways, "Look at what the flag held"),
        ("forgets old losses", ForgetsOldLosses, "keep the old flag"),
        ("notes a loss only when it looks", NotesOnlyWhenItLooks, "at each step|Note each loss"),
        ("looks at the weights", LooksAtTheWeights, "look at the losses only"),
        ("asks with or", AsksWithOr, "`\\|` does not"),
        ("stops at once", StopsAtOnce, "in `bool`"),
        ("returns None", ReturnsNone, "after_step returned None"),
        ("returns the flag", ReturnsTheFlag, "after_step returned a tensor on the device"),
    ],
    "4.3": [
        ("the loop unchanged", unchanged, "the host waited .* times \\(80 in copy to device, "),
        ("blocking copies", still_blocking_copies, "the host waited 8. times \\(80 in copy to device"),
        ("forgets the last steps", forgets_the_last_steps, "6 for 7 batches"),
        ("drops the check", drops_the_check, "raised nothing: batch 0"),
        ("checks at the end", checks_at_the_end, "raised too late: after 12 steps"),
        ("looks every `every + 1` steps", looks_every_one_more, "at most `every - 1` steps later"),
        ("raises another error", raises_another_error, "is to raise FloatingPointError"),
        ("prints the pair", prints_the_pair, "Is the `return` missing"),
        ("returns only losses", returns_only_losses, "number of right answers"),
        ("leaves the count there", leaves_the_count_there, "int\\(n_right\\)"),
        ("leaves the losses there", leaves_the_losses_there, "torch.stack\\(losses\\).tolist\\(\\)"),
        ("counts one too many", counts_one_too_many, "count differ"),
        ("takes one step more", takes_one_step_more, "weights differ"),
        ("rounds the losses", rounds_the_losses, "losses differ: losses\\[0\\]"),
        ("only some losses", only_every_loss, "too few losses"),
        ("quick where it is counted", quick_where_it_is_counted, "times as fast as the loop with all its waits"),
    ],
}
