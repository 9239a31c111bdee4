"""Keys, tokens and passwords taken out of a text before it is recorded.

What is found: values of this process's own environment whose names say that they are secret; the shapes that services
give their keys; what is assigned to a name such as `password` or `api_key`; credentials in an address; private keys. A
secret of no known shape under a plain name is not found, and no program could: a record is read before it is shared.
"""

import os
import re
from collections.abc import Mapping

REMOVED = "[removed: looked like a secret]"
_NAMES = r"(?:api[_-]?key|access[_-]?key|secret[_-]?(?:access[_-]?)?key|private[_-]?key"
_NAMES += r"|secret|password|passwd|passphrase|credentials?"
_NAMES += r"|(?:access|auth|api|bearer|refresh|hf|github|wandb)[_-]?token|token)"
_SECRET_NAME = re.compile(rf"(?:^|[_-]){_NAMES}$", re.IGNORECASE)
_LEAST = 8  # a shorter value of the environment is likelier a word of the text than a secret
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # Amazon
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})",
        r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
        r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI and those who followed
        r"\bAIza[A-Za-z0-9_-]{30,}",  # Google
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",  # a JSON web token
    )
)
_AFTER = tuple(  # the first group stays
    re.compile(shape, re.IGNORECASE | re.MULTILINE)
    for shape in (
        r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)",  # scheme://user:password@host
        r"(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"']+",
        rf"((?<![a-z0-9]){_NAMES}[\"']?\s*[:=]\s*[rbuf]?[\"'])[^\"'\n]{{4,}}(?=[\"'])",  # password = "..."
        rf"(--?(?:[a-z]+[_-])*{_NAMES}[= ])(?!-)\S+",  # --api-key ...
        rf"(^[+ -]?(?:export )?(?:[A-Z]+_)*{_NAMES}=)(?![\"'(])\S+$",  # a line of a .env file
    )
)


def scrubbed(text: str) -> tuple[str, int]:
    """The text without what looks like a secret, and how many places there were."""
    count = 0
    for value in _environment():
        count += text.count(value)
        text = text.replace(value, REMOVED)
    for shape in _SHAPES:
        text, n = shape.subn(REMOVED, text)
        count += n
    for shape in _AFTER:
        text, n = shape.subn(lambda found: found.group(1) + REMOVED, text)
        count += n
    return text, count


def _environment() -> list[str]:
    """Values of variables whose names say that they are secret, the longest first. They are looked for, never kept."""
    named = {value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= _LEAST}
    return sorted(named, key=lambda value: (-len(value), value))


def scrub(value: object) -> object:
    """A value as JSON holds it, with every text in it scrubbed, and the values of keys that say they are secret."""
    if isinstance(value, Mapping):
        return {scrubbed(str(key))[0]: _entry(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return scrubbed(value)[0] if isinstance(value, str) else value


def _entry(key: str, item: object) -> object:
    """One entry of a mapping: a text under a secret's name goes whole."""
    return REMOVED if isinstance(item, str) and item and _SECRET_NAME.search(key) else scrub(item)
