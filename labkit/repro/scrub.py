"""Keys, tokens and passwords taken out of a text before it is recorded.

What is found: values of this process's own environment whose names say that they are secret; the shapes that services
give their keys; what is assigned to a name such as `password` or `api_key`, and to a bare `token` where it looks drawn
at random (for `pad_token = "[PAD]"` is none); credentials in an address; private keys. A secret of no known shape under
a plain name is not found, and no program could: a record is read before it is shared.
"""

import os
import re
from collections.abc import Mapping, Sequence

REMOVED = "[removed: looked like a secret]"
_STRONG = r"(?:api[_-]?key|access[_-]?key|secret[_-]?(?:access[_-]?)?key|private[_-]?key|account[_-]?key"
_STRONG += r"|secret|password|passwd|passphrase|credentials?"
_STRONG += r"|(?:access|auth|api|bearer|refresh|session|hf|hub|github|gitlab|wandb|kaggle|slack|bot)[_-]?token)"
_STRONG_NAME = re.compile(rf"(?:^|[_-]){_STRONG}$", re.IGNORECASE)
_TOKEN_NAME = re.compile(r"(?:^|[_-])token$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(  # PWD is the current folder, and ASKPASS a program that asks
    r"^(?!(?:OLD)?PWD$).*(?:key|token|secret|(?<!ask)pass|passw(?:or)?d|passphrase|pwd|_pat|credentials?)s?$",
    re.IGNORECASE,
)
_LEAST = 8  # a shorter value of the environment is likelier a word of the text than a secret
_LEAST_OF_LETTERS = 12  # and so is a longer one that may be a word
_RANDOM = r"(?=[A-Za-z_.~+/=-]*\d)(?=[^A-Za-z\s]*[A-Za-z])[A-Za-z0-9_.~+/=-]{16,}"  # letters and figures, and long
_WRITTEN = r"(?![{$<%])(?:[^\"'\\\n]|\\(?![\"'])){4,}"  # between quotes, and no place that is filled in later
_QUOTED = r"\\?[\"']?\]?\s*[:=]\s*[rbuf]?\\?[\"']"  # from a name to its value: `name = "`, `"name": "`, `["name"] = "`
_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")
# A line without any of these (its letters made small) is not looked at: that saves nearly all of the time.
_HINTS = ("token", "key", "secret", "pass", "pwd", "credential", "://", "authorization", "login", "sig", "akia")
_HINTS += ("asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "glpat-", "hf_", "sk-", "sk_", "rk_", "aiza")
_HINTS += ("ya29.", "gocspx", "xox", "hooks.slack", "npm_", "pypi-", "dop_v1", "dapi", "r8_", "sg.", "eyj", "env(")
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # Amazon
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})",
        r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
        r"\bsk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}",  # OpenAI and those who followed
        r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
        r"\b(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})",  # Google
        r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}",
        r"\b(?:npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,})",
        r"\b(?:dop_v1_[0-9a-f]{40,}|dapi[0-9a-f]{32}\b|r8_[A-Za-z0-9]{30,})",  # DigitalOcean, Databricks, Replicate
        r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",  # a JSON web token
    )
)
_AFTER = tuple(  # the first group stays
    re.compile(shape)
    for shape in (
        r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:)(?![{$<])[^\s/@]+(?=@)",  # an address with name and password
        r"(\b[A-Za-z][A-Za-z0-9+.-]*://)(?=[^\s/@]*\d)[A-Za-z0-9_-]{20,}(?=@)",  # scheme://token@host
        r"([?&](?i:sig|signature|x-amz-signature|x-amz-security-token|access_token|api_?key|token)=)[^\s&\"']{8,}",
        r"((?i:authorization)\\?[\"']?\]?\s*[:=]\s*[rbuf]?\\?[\"']?(?i:bearer|basic|token)\s+)(?![{$<%])[^\s\"'\\]+",
        rf"((?<![A-Za-z0-9])(?i:{_STRONG}){_QUOTED}){_WRITTEN}(?=\\?[\"'])",
        rf"((?<![A-Za-z0-9])(?i:token){_QUOTED}){_RANDOM}(?=\\?[\"'])",
        rf"((?i:{_STRONG}|(?<![a-z])(?:pass|pwd|token)|[a-z0-9]_key)(?:{_QUOTED}|=|:\s*)){_RANDOM}",
        rf"((?:putenv|setenv|setdefault)\([\"'](?i:[a-z_]*(?:{_STRONG}|token))[\"'],\s*[\"']){_WRITTEN}(?=\\?[\"'])",
        r"(\"key\"\s*:\s*\")[0-9a-f]{32}(?=\")",  # kaggle.json
        r"(\blogin\((?:[^)\n]*\b(?:key|token)\s*=\s*|)\\?[\"'])[^\"'\\\n]{16,}(?=\\?[\"'])",  # wandb.login(key="...")
        r"(\bAccountKey=)[A-Za-z0-9+/=]{20,}",  # Azure
        r"(\bwandb login (?:--\S+ )*)[A-Za-z0-9-]{20,}",
        rf"((?<![\w-])--(?i:(?:[a-z]+[_-])*(?:{_STRONG}|token))(?:=| +(?!-)))(?![A-Z_]+\b)[^\s\"'=(<{{$\[]{{6,}}",
        rf"((?<![A-Za-z0-9_])(?:[A-Z0-9]+_)*{_STRONG.upper()}=)[^\s\"'()\[\]{{}}$=,;]{{4,}}",
        rf"((?<![A-Za-z0-9_])(?:[A-Z0-9]+_)*TOKEN=){_RANDOM}",  # a line of a .env file, or before a command
        rf"(^[+ -]?%env (?:[A-Z0-9]+_)*(?:{_STRONG.upper()}|TOKEN)[ =])\S+",
    )
)


def scrubbed(text: str) -> tuple[str, int]:
    """The text without what looks like a secret, and how many places there were."""
    count = 0
    for value in _environment():
        count += text.count(value)
        text = text.replace(value, REMOVED)
    text, blocks = _BLOCK.subn(REMOVED, text) if "PRIVATE KEY" in text else (text, 0)
    lines = text.split("\n")
    for i, line in enumerate(lines):
        small = line.lower()
        if any(hint in small for hint in _HINTS):
            lines[i], n = _line(line)
            count += n
    return "\n".join(lines), count + blocks


def _line(text: str) -> tuple[str, int]:
    """One line without what looks like a secret, and how many places there were."""
    count = 0
    for shape in _SHAPES:
        text, n = shape.subn(REMOVED, text)
        count += n
    for shape in _AFTER:
        text, n = shape.subn(lambda found: found.group(1) + REMOVED, text)
        count += n
    return text, count


def _environment() -> list[str]:
    """Values of variables whose names say that they are secret, the longest first. They are looked for, never kept."""
    named = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    long = {value for value in named if len(value) >= (_LEAST_OF_LETTERS if value.isalpha() else _LEAST)}
    return sorted(long, key=lambda value: (-len(value), value))


def scrub(value: object) -> object:
    """A value as JSON holds it, with every text in it scrubbed, and the values of keys that say they are secret.

    Not-a-numbers and infinities become text: JSON has no word for them.
    """
    if isinstance(value, Mapping):
        return {scrubbed(str(key))[0]: _entry(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return scrubbed(value)[0] if isinstance(value, str) else value


def _entry(key: str, item: object) -> object:
    """One entry of a mapping: a text under a secret's name goes whole."""
    if not isinstance(item, str):
        return scrub(item)
    secret = _STRONG_NAME.search(key) or _TOKEN_NAME.search(key) and re.fullmatch(_RANDOM, item)
    return REMOVED if item and secret else scrubbed(item)[0]


def scrub_command(arguments: Sequence[str]) -> list[str]:
    """A command's arguments; one that follows an option of a secret's name goes whole."""
    found = []
    for before, one in zip(["", *arguments], arguments, strict=False):
        option = before.lstrip("-") if before.startswith("-") else ""
        secret = _STRONG_NAME.search(option) or _TOKEN_NAME.search(option)
        found.append(REMOVED if secret and not one.startswith("-") else scrubbed(one)[0])
    return found
