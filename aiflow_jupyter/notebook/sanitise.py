"""Makes a model's Markdown safe to show: a front end trusts a fresh output, so the kernel has to be the one to check.

What comes out holds no raw HTML but `<code>` with escaped content, no link with a scheme other than http, https or
mailto, and no image (an image becomes a link, so nothing is fetched by looking). It does not rely on reading Markdown
exactly as the front end does: outside of fenced blocks every `<` is escaped, and a fenced block is kept only where
every dialect agrees that it is one (at the left margin, closed, blank lines around it).
"""

from __future__ import annotations

import html
import re

_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)([^\n]*?[^`\n])\1(?!`)")
_IMAGE = re.compile(r"!\[([^\]\n]*)\]")
_LINK = re.compile(r"\]\(")
_DEFINITION = re.compile(r"\]:")
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.\-]*):")
_ALLOWED_SCHEMES = frozenset({"http", "https", "mailto"})
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_BETWEEN = re.compile(r"[\s\x00-\x20\\]+")


def sanitise(text: str) -> str:
    """The safe form of a model's Markdown; safe for any prefix of an answer, too.

    Args:
        text: what the model wrote so far.
    """
    out: list[str] = []
    prose: list[str] = []
    fence: list[str] | None = None
    mark = indent = info = ""
    for line in _UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n"):
        if fence is not None:
            bare = line.strip()
            if bare and len(bare) >= len(mark) and set(bare) == {mark[0]}:
                out.append(_fenced(fence, info))
                fence = None
            else:
                fence.append(line.removeprefix(indent))
            continue
        opening = _FENCE.match(line)
        if opening is None:
            prose.append(line)
            continue
        if prose:
            out.append(_prose("\n".join(prose)))
            prose = []
        mark, info = opening["mark"], opening["info"]
        indent = " " * len(opening["indent"].expandtabs(4))
        fence = []
    if fence is not None:
        out.append(_fenced(fence, info))
    elif prose:
        out.append(_prose("\n".join(prose)))
    return "\n".join(out)


def plain(text: str) -> str:
    """The text for a terminal: control characters, which could steer it, are taken out."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "", text.replace("\r\n", "\n"))


def _fenced(lines: list[str], info: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", "\n".join(lines))), default=0)
    mark = "`" * max(3, longest + 1)
    language = re.sub(r"[^\w+#.\-]", "", info.split(maxsplit=1)[0])[:30] if info.strip() else ""
    return "\n".join(["", mark + language, *lines, mark, ""])


def _prose(text: str) -> str:
    out: list[str] = []
    last = 0
    for span in _CODE_SPAN.finditer(text):
        out.append(_escape(text[last : span.start()]))
        code = span[2]
        out.append(
            span[0]
            if "<" not in code and "](" not in code and "]:" not in code and "![" not in code
            else f"<code>{_entities(code.strip())}</code>"
        )
        last = span.end()
    out.append(_escape(text[last:]))
    # Links are judged on the whole paragraph text, so that a code span can't hide the start of one.
    return _links("".join(out))


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def _entities(code: str) -> str:
    return re.sub(r"[^\w \-]", lambda match: f"&#{ord(match[0])};", code)


def _links(text: str) -> str:
    text = _IMAGE.sub(lambda match: f"[{match[1] or 'image'}]", text).replace("![", "&#33;[")
    text = _DEFINITION.sub("]&#58;", text)
    return _LINK.sub(lambda match: "](" if _safe(text[match.end() : match.end() + 2000]) else "]&#40;", text)


def _safe(destination: str) -> bool:
    """Whether a link's destination has an allowed scheme or none, however it is spelled."""
    decoded = destination
    for _ in range(3):
        decoded = html.unescape(decoded)
    bare = _BETWEEN.sub("", decoded).lstrip("<")
    scheme = _SCHEME.match(bare)
    if scheme is None:
        # A colon before any slash could still be read as a scheme by a laxer reader.
        return ":" not in re.split(r"[/?#)]", bare, maxsplit=1)[0]
    return scheme[1].lower() in _ALLOWED_SCHEMES
