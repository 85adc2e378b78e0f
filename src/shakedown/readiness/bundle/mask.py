"""Secrets, people and machines, taken out of text before it is sent to somebody else.

A name that says "secret" hides its value, and that value is hidden wherever else it stands. Then come forms that give
themselves away: keys and tokens with the prefixes that their issuers publish, credentials in addresses, headers, private
keys. Home directories, user names, host names, addresses and mail addresses are replaced by what they are.

This finds what looks like something; a password in running prose looks like any word. The README of a bundle says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

MASKED = "<masked>"
_SHORTEST = 8  # characters of a secret that is replaced elsewhere, too: `1` and `true` stand everywhere
_WORDS = {
    *(
        "APIKEY",
        "AUTH",
        "AUTHORIZATION",
        "BEARER",
        "COOKIE",
        "CRED",
        "CREDENTIAL",
        "CREDENTIALS",
        "CREDS",
        "KEY",
        "PASS",
    ),
    *("PASSPHRASE", "PASSWD", "PASSWORD", "PW", "PWD", "SECRET", "SECRETS", "SIG", "SIGNATURE", "TOKEN"),
}
# What ends a name that says so: `HF_TOKEN`, `apiKey`, `db-password`; not `max_tokens`, `attention.key`. What is masked may be
# anybody's, so that no pattern here takes time with the square of the text: runs are bounded or begin at one place.
_NAMES = (
    r"(?:password|passwd|passphrase|secret|(?<![a-z0-9])(?:token|pwd|credentials?|session[ _-]?id"
    r"|(?:api|access|account|secret|private|signing|encryption|master|license|ssh|client|auth)[ _-]?key(?:[ _-]?id)?))"
)
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+)"
_GENERIC = frozenset(
    {"root", "user", "ubuntu", "admin", "ec2-user", "runner", "vscode", "home", "shared", "public", "tmp"}
)

_Replacement = str | Callable[[re.Match[str]], str]
_ASSIGNED = re.compile(rf"(?i)({_NAMES}[\"']?\s*+(?>=>|:=|[=:])\s*+)(?!<masked>)({_VALUE})")
_FLAG = re.compile(rf"(?i)(?<![\w-])(--[\w-]{{0,40}}?{_NAMES}\s++)(?!-|<masked>)({_VALUE})")
_IN_ADDRESS = re.compile(r"(?<=://)([^/\s\"'<>]{1,500})@")  # user and password
_FORMS: tuple[tuple[re.Pattern[str], _Replacement], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASKED),
    (_IN_ADDRESS, f"{MASKED}@"),
    (re.compile(r"(?i)([?&](?:X-Amz-[\w-]+|sig|signature|key|token|code)=)(?!<masked>)[^&\s\"'#]+"), rf"\1{MASKED}"),
    (re.compile(r"(?i)\b((?:proxy-)?authorization[\"']?\s*+[:=]\s*+)(?!<masked>)[^\n\"']+"), rf"\1{MASKED}"),
    (re.compile(r"(?i)\b((?:set-)?cookie[\"']?\s*+:\s*+)(?!<masked>)[^\n\"']+"), rf"\1{MASKED}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{MASKED}"),
    (re.compile(r"\b(Basic\s+)[A-Za-z0-9+/]{16,}=*"), rf"\1{MASKED}"),
    (_ASSIGNED, rf"\1{MASKED}"),
    (_FLAG, rf"\1{MASKED}"),
    (re.compile(r"\b(?:AKIA|ASIA|AIDA|AROA|ABIA|ACCA)[A-Z0-9]{16}\b"), MASKED),  # AWS: IAM identifiers
    (re.compile(r"\b(?:gh[pousr]_|github_pat_)\w{20,}"), MASKED),  # GitHub
    (re.compile(r"\bglpat-[\w-]{16,}"), MASKED),  # GitLab
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASKED),  # Hugging Face
    (re.compile(r"\b[srp]k[-_][\w-]{16,}"), MASKED),  # OpenAI, Anthropic, Stripe
    (re.compile(r"\bxox[abeprs]-[\w-]{10,}"), MASKED),  # Slack
    (re.compile(r"\b(?:pypi-|npm_|dckr_pat_|dop_v1_)[\w-]{16,}"), MASKED),  # PyPI, npm, Docker, DigitalOcean
    (re.compile(r"\bAIza[\w-]{35}"), MASKED),  # Google
    (re.compile(r"\bya29\.[\w-]{16,}"), MASKED),
    (re.compile(r"\bSG\.[\w-]{16,}\.[\w-]{16,}"), MASKED),  # SendGrid
    (re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"), MASKED),  # JSON web tokens
    (re.compile(r"(?<=arn:)([\w-]*:[\w-]*:[\w-]*:)\d{12}"), r"\1<account>"),
    (re.compile(r"\bi-[0-9a-f]{8,17}\b"), "<instance>"),
    (re.compile(r"(?<=s3://)[^/\s\"'<>]+"), "<bucket>"),
)
_HOME = re.compile(r"(?<![\w.~-])(?:/home/|/Users/|/var/home/|[A-Za-z]:\\+Users\\+)([^/\\\s\"':,;<>|]+)")
_ROOT = re.compile(r"(?<![\w./~-])/root(?=[/\s\"':,;)\]]|$)")
_PLACES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<![\w@.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"), "<email>"),
    (re.compile(r"(?<![\w@.+-])[\w.+-]+@[A-Za-z][\w.-]*(?=:)"), "<user>@<host>"),  # a prompt
    (re.compile(r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[\w.-]+)?"), "<host>"),
    (
        re.compile(r"\b[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.(?:internal|local|lan|corp|intranet|amazonaws\.com)\b"),
        "<host>",
    ),
    # Four numbers with dots are versions as often as addresses: private networks, and what stands where an address does.
    (
        re.compile(
            r"(?<![\w.+-])(?:10\.\d{1,3}|192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\w.+-])"
        ),
        "<ip>",
    ),
    (re.compile(r"(?<=//)(?!127\.0\.0\.1)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "<ip>"),
    (re.compile(r"(?<![\w.+-])(?!127\.0\.0\.1)\d{1,3}(?:\.\d{1,3}){3}(?=:\d{2,5}\b)"), "<ip>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"), "<mac>"),
)
_HASH = re.compile(r"[0-9a-f]{64}")


def secretive(name: str) -> bool:
    """Whether a name says that its value is a secret: `HF_TOKEN`, `aws_secret_access_key`, `apiKey`, and not `max_tokens`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).upper()
    return bool(_WORDS & set(re.split(r"[^A-Z0-9]+", words)))


class Mask:
    """What is replaced in one bundle. `hosts` are names of machines that are known; more is learned by :meth:`learn`."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._hosts = {host for host in hosts if len(host) > 1 and host not in ("localhost", "none")}
        self._users: set[str] = set()

    def learn(self, value: Any, name: str = "") -> None:
        """Remember the values of secretive names in a document, and names of users in paths, so that they are replaced in
        every other file, too.
        """
        if isinstance(value, dict):
            if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
                self.learn(value["value"], value["name"])  # a fact
            for key, inner in value.items():
                self.learn(inner, key)
        elif isinstance(value, list):
            for inner in value:
                self.learn(inner)
        elif isinstance(value, str):
            if _hidden(name, value) and len(value) >= _SHORTEST and value != MASKED:
                self._secrets.add(value)
            for form in (_ASSIGNED, _FLAG):
                self._secrets |= {bare for m in form.finditer(value) if len(bare := m[2].strip("\"'")) >= _SHORTEST}
            parts = (m[1].rpartition(":")[2] for m in _IN_ADDRESS.finditer(value))  # a password, or a token alone
            self._secrets |= {part for part in parts if len(part) >= _SHORTEST}
            self._users |= {m[1] for m in _HOME.finditer(value) if len(m[1]) > 2 and m[1].lower() not in _GENERIC}

    def text(self, text: str) -> tuple[str, int]:
        """`text` without them, and how many were replaced."""
        count = 0

        def replaced(pattern: re.Pattern[str], instead: _Replacement, text: str) -> str:
            nonlocal count
            made, n = pattern.subn(instead, text)
            count += n
            return made

        for pattern, instead in _FORMS:
            text = replaced(pattern, instead, text)
        for secret in sorted(self._secrets, key=lambda s: (-len(s), s)):
            text = replaced(re.compile(re.escape(secret)), MASKED, text)
        text = replaced(_ROOT, "~", replaced(_HOME, "~", text))
        for pattern, instead in _PLACES:
            text = replaced(pattern, instead, text)
        for names, instead in ((self._hosts, "<host>"), (self._users, "<user>")):
            for name in sorted(names, key=lambda n: (-len(n), n)):
                text = replaced(re.compile(rf"(?<![\w<-]){re.escape(name)}(?![\w>-])"), instead, text)
        return text, count

    def document(self, value: Any, name: str = "") -> tuple[Any, int]:
        """Parsed JSON without them, keys included, and how many were replaced."""
        if isinstance(value, str):
            return (MASKED, 1) if _hidden(name, value) and value not in ("", MASKED, "masked") else self.text(value)
        if isinstance(value, list):
            parts = [self.document(inner) for inner in value]
            return [part for part, _ in parts], sum(n for _, n in parts)
        if not isinstance(value, dict):
            return value, 0
        of = value.get("name") if isinstance(value.get("value"), str) else None
        made, count = {}, 0
        for key, inner in value.items():
            shown, n = self.text(key)
            part, m = self.document(inner, of if key == "value" and isinstance(of, str) else key)
            made[shown], count = part, count + n + m
        return made, count


def _hidden(name: str, value: str) -> bool:
    """Hashes of tensors are not secrets, even those of a weight that is called `attention.key`."""
    return secretive(name) and (name.isupper() or not _HASH.fullmatch(value))
