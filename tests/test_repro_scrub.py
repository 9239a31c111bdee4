"""What looks like a secret is not recorded, and what does not is."""

import pytest

from labkit.repro.scrub import REMOVED, scrub, scrubbed

LONG = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA"


@pytest.mark.parametrize(
    "text",
    [
        "key = 'AKIA" + "ABCDEFGHIJKLMNOP'",
        "ghp_" + LONG,
        "github_pat_" + LONG,
        "glpat-" + LONG,
        "hf_" + LONG,
        "sk-" + LONG,
        "AIza" + LONG,
        "xoxb-" + LONG,
        "eyJhbGciOiJI." + "eyJzdWIiOiIx" + "." + LONG,
        "-----BEGIN RSA PRIVATE KEY-----\n" + LONG + "\n-----END RSA PRIVATE KEY-----",
        "https://me:" + LONG + "@example.org/x.git",
        "Authorization: Bearer " + LONG,
        'password = "' + LONG + '"',
        "api_key='" + LONG + "'",
        '{"wandb_token": "' + LONG + '"}',
        "--api-key " + LONG,
        "--hf-token=" + LONG,
        "+HF_TOKEN=" + LONG,
        "export AWS_SECRET_ACCESS_KEY=" + LONG,
    ],
)
def test_usual_shapes_are_taken_out(text):
    found, count = scrubbed(f"before\n{text}\nafter\n")
    assert LONG not in found
    assert count
    assert found.startswith("before\n")
    assert found.endswith("\nafter\n")


@pytest.mark.parametrize(
    "text",
    [
        "n_tokens = 1024",
        'tokenizer = "a-tokenizer-of-some-length"',
        "token = tokens[i]",
        'sha256 = "4c9c4f354e74153db012329d71c8562ec23e498148174b2c49de58f45d47cdbe"',
        "https://example.org:8080/a@b",
        "password = getpass()",
        "--tokens-per-step 8192",
        "the secret of a good recording",
        "key = lambda pair: pair[1]",
    ],
)
def test_what_is_none_stays(text):
    assert scrubbed(text) == (text, 0)


def test_values_of_the_environment_by_the_names_of_their_variables(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", "plain-looking-words")
    monkeypatch.setenv("EDITOR", "an-editor-of-some-name")
    monkeypatch.setenv("PASSWORD", "short")
    assert scrubbed("x(plain-looking-words), an-editor-of-some-name, short") == (
        f"x({REMOVED}), an-editor-of-some-name, short",
        1,
    )


def test_values_under_a_key_that_says_it_is_secret():
    found = scrub({"password": "words", "lr": 0.1, "model": {"hf_token": "abc", "name": "gpt"}, "list": ["hf_" + LONG]})
    assert found == {
        "password": REMOVED,
        "lr": 0.1,
        "model": {"hf_token": REMOVED, "name": "gpt"},
        "list": [REMOVED],
    }
