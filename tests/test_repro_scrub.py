"""What looks like a secret is not recorded, and what does not is."""

from pathlib import Path

import pytest

from labkit.repro.scrub import REMOVED, scrub, scrub_command, scrubbed

ROOT = Path(__file__).parents[1]

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
        'os.environ["HF_TOKEN"] = "' + LONG + '"',
        'os.environ.setdefault("MY_TOKEN", "' + LONG + '")',
        "%env WANDB_API_KEY=" + LONG,
        "%env WANDB_API_KEY " + LONG,
        "!HF_TOKEN=" + LONG + " python train.py",
        "+MY_TOKEN=" + LONG,
        "wandb login " + LONG,
        'wandb.login(key="' + LONG + '")',
        '{"username": "me", "key": "0123456789abcdef0123456789abcdef"}  # ' + "ghp_" + LONG,
        "https://" + LONG + "@example.org/x.git",
        "https://x.blob.core.windows.net/a?sv=1&sig=" + LONG,
        "DefaultEndpointsProtocol=https;AccountKey=" + LONG,
        "sk_live_" + LONG,
        "npm_" + LONG,
        "https://hooks.slack.com/services/T0/B0/" + LONG,
        'token = "' + LONG + '"',
        'headers = {"Authorization": f"Bearer ' + LONG + '"}',
        r'    "os.environ[\"WANDB_API_KEY\"] = \"' + LONG + r'\"\n",',  # lines of a notebook's file
        r'    "wandb.login(key=\"' + LONG + r'\")\n",',
        r'    "headers = {\"Authorization\": \"Bearer ' + LONG + r'\"}\n",',
        'os.environ["KAGGLE_KEY"] = "' + LONG + '"',
        "export KAGGLE_KEY=" + LONG,
        "PGPASSWORD=" + LONG + " psql",
        "api_key: " + LONG,  # YAML
        "  password: " + LONG,
        "api_key=" + LONG,
        'clientSecret: "' + LONG + '"',
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
        'pad_token = "[PAD]"',
        'tokenizer.add_special_tokens({"pad_token": "<|endoftext|>", "eos_token": "</s>"})',
        "-token = tokens[i]",
        "-password = getpass()",
        'token = "hello world"',
        "MAX_TOKEN=1024",
        'headers = {"Authorization": f"Bearer {token}"}',
        'engine = f"postgresql://{user}:{password}@{host}/db"',
        'parser.add_argument("--api-key", help="--api-key KEY of the service")',
        'parser.add_argument("--token", default=os.environ["HF_TOKEN"])',
        "key = torch.randn(4, 8, generator=g)",
        "q, k, v = self.query(x), self.key(x), self.value(x)",
        'state_dict["encoder.layers.0.self_attn.in_proj_weight"]',
        'key = "d41d8cd98f00b204e9800998ecf8427e"',
        "task-specific-head-with-a-long-name-of-24-layers",
        "random_key, subkey = jax.random.split(random_key)",
        "hf_model_name_or_path_for_the_experiment",
    ],
)
def test_what_is_none_stays(text):
    assert scrubbed(text) == (text, 0)


def test_values_of_the_environment_by_the_names_of_their_variables(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", "plain-looking-words")
    monkeypatch.setenv("PGPASSWORD", "more-of-such-words")
    monkeypatch.setenv("PWD", "/home/me/course")
    monkeypatch.setenv("EDITOR", "an-editor-of-some-name")
    monkeypatch.setenv("PASSWORD", "short")
    assert scrubbed("x(plain-looking-words, more-of-such-words), an-editor-of-some-name, short, /home/me/course") == (
        f"x({REMOVED}, {REMOVED}), an-editor-of-some-name, short, /home/me/course",
        2,
    )


def test_values_under_a_key_that_says_it_is_secret():
    found = scrub({"password": "words", "lr": 0.1, "model": {"hf_token": "abc", "name": "gpt"}, "list": ["hf_" + LONG]})
    assert found == {
        "password": REMOVED,
        "lr": 0.1,
        "model": {"hf_token": REMOVED, "name": "gpt"},
        "list": [REMOVED],
    }


def test_bare_tokens_of_a_configuration_stay_and_random_ones_go():
    config = {"pad_token": "[PAD]", "eos_token": "<|endoftext|>", "token": LONG, "n_token": 3}
    assert scrub(config) == config | {"token": REMOVED}


def test_an_argument_after_an_option_of_a_secret_s_name_goes_whole():
    command = ["train.py", "--api-key", "plain", "--lr", "0.1", "--token=x", "--password", "--quiet", "--my-token", "y"]
    removed = {2: REMOVED, 9: REMOVED}
    assert scrub_command(command) == [removed.get(i, one) for i, one in enumerate(command)]


def test_the_course_s_own_sources_are_no_secrets():
    """A false alarm spoils a patch: tens of thousands of lines of ordinary code hold none."""
    sources = [path for folder in ("labkit", "solutions") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name for path in sources if scrubbed(path.read_text(encoding="utf-8"))[1]}
    assert found == set()
