"""Functions in a box, asked from outside: how a call ended is told in words, and what only a forger sends is known."""

import pytest
from boxes import judged
from test_grading_verdicts import BY_NUMBER, Reply

from labkit.grading.asked import Asked, BoxError
from labkit.grading.verdicts import Judging
from labkit.grading.wire import encode

EXERCISE = BY_NUMBER["1.1"]


class Answers:
    """A session that says what the name is, and answers every call in one way."""

    def __init__(self, reply):
        self.reply, self.outcomes, self.n_calls = reply, [], 0

    def call(self, name, payload, timeout_s):  # noqa: ARG002
        self.n_calls += 1
        look = {"callable": True, "kind": "a function", "parameters": None}
        return Reply("ok", encode(look)) if self.n_calls == 1 else self.reply


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("timeout", "did not return within 30 s, all cases together"),
        ("memory", "took more memory than there is for it"),
        ("died", "ended the process that it ran in"),
        ("output-limit", "printed or returned more than is taken"),
    ],
)
def test_how_a_call_ended_is_the_headline_and_the_case_below_it(status, said):
    found = judged(Answers(Reply(status)), EXERCISE, seed=1)
    assert (found.status, found.points) == (status, 0)
    headline, call = found.message.splitlines()
    assert headline.startswith(f"{said} (case 1 of ")
    assert call.startswith("call  warmup_stable_decay(step=0")


def test_what_was_printed_until_a_call_was_ended_is_told_of_a_case_of_class_alone():
    said = "17 MB before it was ended, and last 'still at 7'"
    found = judged(Answers(Reply("timeout", said=said)), EXERCISE, seed=1)
    assert found.message.splitlines()[-1] == f"printed  {said}"
    private = Judging(Answers(Reply("timeout", said=said)), EXERCISE, seed=1).private()
    assert said not in private.message


FORGED = (b"", b"\0" * 8, b"nonsense", encode([1]), encode({"value": 1.0}), encode({"value": 1.0, "args": 2}))


@pytest.mark.parametrize("payload", FORGED, ids=str)
def test_what_the_graders_part_never_sends_was_forged(payload):
    found = judged(Answers(Reply("ok", payload)), EXERCISE, seed=1)
    assert (found.status, found.points) == ("tampered", 0)
    assert found.message.startswith("answered with what the grader's part of the process never sends")


def test_too_much_may_well_be_an_honest_answer():
    honest = encode({"value": {(i,): i for i in range(20_000)}, "args": []})
    asked = Asked(Answers(Reply("ok", honest)), EXERCISE, 30.0)
    asked.look()
    with pytest.raises(BoxError, match="keys that are no text"):
        asked(1, 2, 3, 4, 5)
    assert asked.ended == "error"
