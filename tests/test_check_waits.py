"""The checks of 4.2 and 4.3: what a learner may rightly write in other words than the course."""

import ast
import inspect
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from labkit import course
from labkit.checker import find, generator_for, verdict
from labkit.checks import waitless
from labkit.checks.guard import NanGuard as Course


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("LABKIT_BUDGET", "smoke")  # without the bar, which is timed
    yield
    torch.set_num_threads(threads)


class AnswersWithTensors(Course):
    def after_step(self, loss):
        return torch.tensor(super().after_step(loss))


class CountsTheBad(Course):
    def after_step(self, loss):
        self.bad = self.bad + (loss != loss)
        self.n_steps += 1
        if self.n_steps % self.every == 0:
            if self.flag is not None and self.flag.get() > 0:
                return True
            self.flag = self.dev.fetch(self.bad)
            self.states = [*self.states[-2:], (self.n_steps, self.state())]
        return False


class AsksBeforeItGets(Course):
    def after_step(self, loss):
        if self.flag is not None and self.flag.done() and self.flag.get():
            return True
        return super().after_step(loss)


@pytest.mark.parametrize("guard", [AnswersWithTensors, CountsTheBad, AsksBeforeItGets])
def test_other_guards_are_right_too(guard):
    found = verdict(guard, find("NanGuard"), generator=generator_for(find("NanGuard"), 0), time_limit_s=60.0)
    assert found.status == "passed", found.message


def never_stalls(dev, model, optimizer, batches, every):
    coming, losses, n_right = [], [], 0
    for x, y in batches:
        x, y = dev.put(x, non_blocking=True), dev.put(y, non_blocking=True)
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        coming.append(dev.fetch(loss.detach()))
        n_right = n_right + (logits.argmax(1) == y).sum()
        if len(coming) == every:
            losses.append(_number(coming.pop(0)))
    losses += [_number(each) for each in coming]
    return tuple(losses), float(n_right)


def _number(pending):
    value = pending.get().item()
    if math.isnan(value):
        raise FloatingPointError
    return value


def looks_before_it_steps(dev, model, optimizer, batches, every):
    losses, recent, n_right = [], [], 0
    ready = [(dev.put(x, non_blocking=True), dev.put(y, non_blocking=True)) for x, y in batches]  # all at once
    for n, (x, y) in enumerate(ready, 1):
        logits = model(x)
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        recent.append(loss)
        n_right += (logits.argmax(1) == y).sum()
        if n % every == 0 or n == len(ready):
            values, recent = torch.stack(recent).cpu(), []
            if values.isnan().any():
                raise FloatingPointError
            losses.append(values.detach())
        optimizer.step()
    return torch.cat(losses), n_right.cpu()


@pytest.mark.parametrize("loop", [never_stalls, looks_before_it_steps])
def test_other_loops_are_right_too(loop):
    found = verdict(loop, find("quick_loop"), generator=generator_for(find("quick_loop"), 0), time_limit_s=60.0)
    assert found.status == "passed", found.message


def test_the_slow_loop_that_the_bar_times_is_the_one_in_the_lesson():
    lesson = next(each for each in course.lessons() if each.number == "04")
    shown = {node.name: node for node in ast.parse(lesson.source.read_text("utf-8")).body if hasattr(node, "name")}
    timed = ast.parse(inspect.getsource(waitless.slow_loop)).body[0]
    assert [ast.dump(line) for line in timed.body[1:]] == [ast.dump(line) for line in shown["slow_loop"].body]
