"""Makes a model's Markdown safe to show: a front end trusts a fresh output, so the kernel has to be the one to check.

What comes out holds no raw HTML but `<code>` and `<pre>` with escaped content, no link with a scheme other than http,
https or mailto, and no image (an image becomes a link, so nothing is fetched by looking). It does not rely on reading
Markdown exactly as the front end does: outside of fenced blocks every `<`, every `"` and every other mark of a fence is
escaped. A fenced block stays one, for the sake of its colours, only if its text would do nothing as prose either, and
with a language only if that merely colours it. Else it comes out as `<pre>` with entities for all but letters, digits
and spaces: it looks the same without the colours, and is text wherever a reader takes it for. So a fence may be lost,
to whatever stands before it, and nothing in it acts.

The `"` matters because JupyterLab takes mathematics out before it reads the Markdown and puts it back into the finished
HTML: inside a link's address a quote would end the attribute, and what follows would be attributes of the model's own.
A fenced block keeps its quotes, and hence none of the signs of mathematics. JupyterLab holds the place of mathematics
with `@@0@@`, so no text may come out as that either.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from aiflow_jupyter.errors import encodable

_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_ACTS = re.compile(r"[<\"]|\]\(|\]:|!\[|ftp://|@(?![a-z0-9])", re.IGNORECASE)
_AT = re.compile(r"@(?![a-zA-Z0-9])")
_FTP = re.compile(r"(ftp)://", re.IGNORECASE)
_FENCE_MARK = re.compile(r"`{3,}|~{3,}")
# Every pattern is linear on any text: a hostile answer may not hold the loop. (Of the runs of one length
# at most one is left without its partner, so that two lengths make at most two searches of a line.)
_CODE_SPAN = re.compile(r"(?<![`\\])(`{1,2})(?!`)([^\n]*?[^`\n])\1(?!`)")
_IMAGE = re.compile(r"(?<!!)(!*)!\[(\]?)")
_LINK = re.compile(r"\]\((\s*)")
_DEFINITION = re.compile(r"\]:")
# What would act in a fenced block that a reader takes for prose: tags, mathematics and its places, images, fences.
_ACTS_UNFENCED = re.compile(
    r"<(?![\s=])|\$|\\(?![\w\s'\"])|\\(?:begin|end)|@(?![a-zA-Z0-9\s])|!\[|ftp://|`{3}|~{3}", re.IGNORECASE
)
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.\-]*):")
_ALLOWED_SCHEMES = frozenset({"http", "https", "mailto"})
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_COLOURED = frozenset(
    """asm awk bash bibtex c c++ clojure cmake console cpp cs csharp css csv cuda cython diff dockerfile elixir erlang
    f90 fish fortran fsharp go graphql haskell html http ini ipython java javascript js json jsx julia kotlin latex
    less lisp lua make makefile markdown matlab md nginx nim objc ocaml octave pascal perl php plaintext powershell
    prolog py pycon python python3 r rb ruby rust sas scala scheme scss sh shell sql stata swift tcl tex text toml ts
    tsx txt typescript vb verilog vhdl vim xml yaml yml zig zsh""".split()  # noqa: SIM905 - a list would fill a screen
)
"""Languages that a front end colours; others (mermaid, vega, ...) it may draw, and fetch what is in them."""
_AFTER_SCHEME = re.compile(r"[/?#)]")
_FAR = 300
# Where a link or a definition of a fenced block leads; a definition's destination ends at white space.
_DESTINATION = re.compile(rf"\](?:\((?=([\s\S]{{0,{_FAR}}}))|:\s*(?=(\S{{0,{_FAR}}})))")
_BETWEEN = re.compile(r"[\s\x00-\x20\\]+")


def sanitise(text: str) -> str:
    """The safe form of a model's Markdown; safe for any prefix of an answer, too.

    Args:
        text: what the model wrote so far.
    """
    return "\n".join(f"\n{part}\n" if fenced else part for fenced, part in _parts(text))


def quoted(text: str) -> str:
    """The safe form as a quotation: one for each part, as only a blank line keeps mathematics out of a fenced block."""
    return "\n\n".join("> " + part.replace("\n", "\n> ") for _, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The parts in their safe form, each with whether it is a fenced block."""
    prose: list[str] = []
    fence: list[str] | None = None
    mark = indent = info = ""
    for line in _UNSEEN.sub("", encodable(text).replace("\r\n", "\n").replace("\r", "\n")).split("\n"):
        if fence is not None:
            bare = line.strip()
            if bare and len(bare) >= len(mark) and set(bare) == {mark[0]}:
                yield True, _fenced(fence, info)
                fence = None
            else:
                fence.append(line.removeprefix(indent))
            continue
        opening = _FENCE.match(line)
        if opening is None:
            prose.append(line)
            continue
        if prose:
            yield False, _prose("\n".join(prose))
            prose = []
        mark, info = opening["mark"], opening["info"]
        indent = " " * len(opening["indent"].expandtabs(4))
        fence = []
    if fence is not None:
        yield True, _fenced(fence, info)
    elif prose:
        yield False, _prose("\n".join(prose))


def _fenced(lines: list[str], info: str) -> str:
    code = "".join(f"{line}\n" for line in lines)
    if _acts_unfenced(code):
        return f"<pre><code>{literal(code)}</code></pre>"
    language = info.split(maxsplit=1)[0].lower() if info.strip() else ""
    block = f"```{language if language in _COLOURED else ''}\n{code}```"
    # For a `[` that is open before the block, marked finds this `]:` beyond blank lines too, and the mark is lost with
    # it. A definition shows nothing, and its own `[` ends the search.
    return f"[//]: #\n\n{block}" if "]:" in code else block


def _acts_unfenced(code: str) -> bool:
    """Whether the text of a fenced block would be more than text and links to the web and mail if taken for prose."""
    if _ACTS_UNFENCED.search(code):
        return True
    return not all(_safe(at[1] or at[2] or "") for at in _DESTINATION.finditer(code))


def _prose(text: str) -> str:
    out: list[str] = []
    last = 0
    for span in _CODE_SPAN.finditer(text):
        out.append(_escape(text[last : span.start()]))
        code = span[2]
        out.append(span[0] if _ACTS.search(code) is None else f"<code>{literal(code.strip())}</code>")
        last = span.end()
    out.append(_escape(text[last:]))
    # Links are judged on the whole paragraph text, so that a code span can't hide the start of one.
    return _links("".join(out))


def _escape(text: str) -> str:
    # What was not taken as a fence may not be one for another reader either; `ftp:` would become a link by itself.
    text = _FENCE_MARK.sub(lambda match: literal(match[0]), text.replace("<", "&lt;").replace('"', "&quot;"))
    return _AT.sub("&#64;", _FTP.sub(r"\1&#58;//", text))


def literal(code: str) -> str:
    """Text as Markdown that shows it as it is."""
    return re.sub(r"[^\w \-]", lambda match: f"&#{ord(match[0])};", code)


def _links(text: str) -> str:
    text = _IMAGE.sub(lambda match: f"{'&#33;' * len(match[1])}[{match[2] and 'image]'}", text)
    text = _DEFINITION.sub("]&#58;", text)

    def link(match: re.Match[str]) -> str:
        safe = _safe(text[match.end() : match.end() + _FAR])
        return ("](" if safe else "]&#40;") + match[1]

    return _LINK.sub(link, text)


def _safe(destination: str) -> bool:
    """Whether a link's destination has an allowed scheme or none, however it is spelled."""
    decoded = destination
    for _ in range(3):
        decoded = html.unescape(decoded)
    bare = _BETWEEN.sub("", decoded).lstrip("<")
    scheme = _SCHEME.match(bare)
    if scheme is None:
        # A laxer reader takes any colon before a slash for a scheme's, and one may stand beyond what is seen here.
        start = _AFTER_SCHEME.split(bare, maxsplit=1)[0]
        return ":" not in start and (start != bare or len(destination) < _FAR)
    return scheme[1].lower() in _ALLOWED_SCHEMES
