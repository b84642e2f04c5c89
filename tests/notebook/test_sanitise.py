"""A model's Markdown after the sanitiser holds nothing that acts, however a reader of Markdown takes it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from aiflow_jupyter.errors import ProviderError, plain
from aiflow_jupyter.notebook.sanitise import quoted, sanitise

JS = Path(__file__).parents[2] / "js"
SOAK = int(os.environ.get("AIFLOW_SOAK", "1"))
"""How many times the usual number of mixtures is read."""
ALLOWED_HTML = re.compile(r"</?code>|<pre><code>(?:[\w \-]|&#\d+;)*</code></pre>\s*")
ALLOWED_SCHEMES = {"http", "https", "mailto"}

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<IMG SRC=x ONERROR=alert(1)",
    "<svg/onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "<!-- --><b>",
    "<![CDATA[<b>]]>",
    "<?php x ?>",
    "<javascript:alert(1)>",
    "<https://a.example>",
    "![x](https://evil.example/pixel.png)",
    "!![x](https://evil.example/pixel.png)",
    "![](https://evil.example/pixel.png)",
    "![a![b](c)](d)",
    "![a\nb](https://evil.example/pixel.png)",
    "![x][ref]\n\n[ref]: https://evil.example/pixel.png",
    "[x]: javascript:alert(1)\n\n[x]",
    "[x\n]: javascript:alert(1)\n\n[x]",
    "> [x]: javascript:alert(1)\n\n[x]",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x]( javascript:alert(1))",
    "[x](\njavascript:alert(1))",
    "[x](" + " " * 3000 + "javascript:alert(1))",
    "[x](" + "&Tab;" * 900 + "javascript:alert(1))",
    "[x](" + "\\" * 900 + "javascript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](java&#x0A;script:alert(1))",
    "[x](javascript&colon;alert(1))",
    "[x](javascript&amp;colon;alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](java\\script:alert(1))",
    "[x](vbscript:x)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](file:///etc/passwd)",
    "[x](x-app:open)",
    "[x](\x01javascript:alert(1))",
    "[x](\u200bjavascript:alert(1))",
    "[`a`](javascript:alert(1))",
    "[a `](javascript:alert(1))` b",
    "[a `b](javascript:alert(1)) `c",
    "`` [a`](javascript:alert(1)) ``",
    "`<b>`<img src=x onerror=a>`</b>`",
    "``<img src=x onerror=a>`",
    "`a\n<img src=x onerror=a>\nb`",
    "\\`<img src=x onerror=a>\\`",
    "ftp://files.example/x",
    "```\n<b>\n``\n<script>alert(1)</script>",
    "```html\n<b>\n```\n<script>alert(1)</script>",
    "````\n```\n<script>alert(1)</script>",
    "~~~\n```\n~~~\n<script>alert(1)</script>\n```",
    "``` `\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "- ```\n  x\n<script>alert(1)</script>\n  ```",
    "1. ```\n<script>alert(1)</script>",
    "> ```\n<script>alert(1)</script>\n> ```",
    "    ```\n<script>alert(1)</script>\n    ```",
    "a\n    ```\n<script>alert(1)</script>\n    ```",
    "\t```\n<script>alert(1)</script>",
    "|a|\n|-|\n|`|<img src=x onerror=a>|`|",
    "$<img src=x onerror=a>$",
    "\\[<img src=x onerror=a>\\]",
    "```\r<script>alert(1)</script>\r```\r<img src=x onerror=a>",
    "a\x0b<b>\x0c<i>",
    "\u202e<b>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    '[a](http://e/$"style="animation:x"onanimationstart="a=1"$)',
    '[a](http://e/\\begin{x}`"onmouseover="a=1"`\\end{x})',
    '[a](http://e/\\\\("onmouseover="a=1"\\\\))',
    "[a](http://e/$'onmouseover='a=1'$ '$t$')",
    '[a](http://e/@\\@0@@)\n\n```\n\\begin{x}"onmouseover="a=1"\\end{x}\n```',
    '[a](http://e/ \'@\\@0@@\')\n\n```\n\\begin{x}"onmouseover="a=1"\\end{x}\n```',
    '[a](http://e/@@0$x$@@)\n\n```\n\\begin{x}"onmouseover="a=1"\\end{x}\n```',
    '[a](http://e/$\n```\n"onmouseover="a=1"$)\n```',
    "[\n```\n]:x\n```\n```\n<img src=x onerror=a>",
    "a [b\\]\n\n[\\[\n```\n]: x\n```\n```\n<img src=x onerror=a>",
    "> [\n```\n]:x\n```\n```\n<img src=x onerror=a>",
    '[a](http://e/\\begin{x}\n\n```\n\n"onmouseover="a=1"\\end{x})\n```',
    # A bracket in mathematics closes nothing for who takes mathematics out first: the block's `]:` does.
    "[$]$\n```\n]:`\n<img>",
    "[\\begin{x}]\\end{x}\n```\n]:x\n```\n```\n<img src=x onerror=a>",
    "[\\\\(]\\\\)\n~~~\n]:x\n~~~\n~~~\n<img src=x onerror=a>",
    "[$]$\n\nb\n\n```\nc\n```\n```\n]:x\n```\n```\n<img src=x onerror=a>",
    "a\n\n- [$]$\n```\n]:x\n[a](javascript:alert(1)) ![b](http://e/)\n```",
    '[$]$\n```\n]:x\n[a](http://e/$"onmouseover="a=1"$) [a](http://e/\\begin{x}"onmouseover="a=1"\\end{x})\n```',
    "[$]$\n````\n]:x\n```mermaid\ngraph LR\n```\n````",
    "```\n[x]: javascript:alert(1)\n```\n\n[x]",
    "```\n[x]:\njavascript:alert(1)\n```\n\n![x]",
    '[a `](javascript:alert(1))` b$[a](http://e/\\begin{x}`"onmouseover="a=1"`\\end{x})[a](http://e/$[\n```\n]:x\n```\n'
    "```\n<img src=x onerror=a>\n```python\n<code>$",
]  # fmt: skip


def findings(rendered: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The tokens that act: raw HTML, images, links to elsewhere than the web and mail."""
    bad = []
    for kind, value in rendered:
        if kind == "html" and not ALLOWED_HTML.fullmatch(value):
            bad.append((kind, value))
        if kind == "image":
            bad.append((kind, value))
        if kind == "link":
            bare = re.sub(r"[\s\x00-\x20]+", "", html.unescape(value))
            scheme = re.match(r"([a-zA-Z][\w+.\-]*):", bare)
            if scheme and scheme[1].lower() not in ALLOWED_SCHEMES:
                bad.append((kind, value))
    return bad


class Everything(MarkdownIt):
    """CommonMark with tables, where a link to anything is a link: the judging is ours."""

    def validateLink(self, url):  # noqa: N802 - the library's name
        return True


READER = Everything("commonmark", {"html": True}).enable(["table", "strikethrough"])


def read_by_markdown_it(text: str) -> list[tuple[str, str]]:
    out = []
    tokens = list(READER.parse(text))
    while tokens:
        token = tokens.pop()
        tokens += token.children or []
        if token.type in ("html_inline", "html_block"):
            out.append(("html", token.content))
        elif token.type == "image":
            out.append(("image", str(token.attrs.get("src"))))
        elif token.type == "link_open":
            out.append(("link", str(token.attrs.get("href"))))
    return out


JUPYTERLAB = """
import { readFileSync } from "node:fs";
import { marked } from "marked";
import { gfmHeadingId } from "marked-gfm-heading-id";
import { parseFragment } from "parse5";
globalThis.navigator ??= {};
const latex = readFileSync("node_modules/@jupyterlab/rendermime/lib/latex.js");
const { removeMath, replaceMath } = await import("data:text/javascript;base64," + latex.toString("base64"));
marked.use(gfmHeadingId());
const look = (node) => (node.childNodes ?? []).flatMap((child) => [
  ...(child.tagName ? [[child.tagName, Object.fromEntries(child.attrs.map(({ name, value }) => [name, value]))]] : []),
  ...look(child),
]);
const texts = JSON.parse(await new Response(process.stdin).text());
const all = texts.map((source) => {
  const { text, math } = removeMath(source);
  try { return look(parseFragment(replaceMath(marked.parse(text, { gfm: true }), math))); }
  catch (error) { return [["broken", { why: String(error) }]]; }
});
process.stdout.write(JSON.stringify(all));
"""
"""What JupyterLab makes of Markdown: mathematics taken out, the rest read, mathematics put back into the HTML."""

ELEMENTS = {
    **dict.fromkeys(("p", "em", "strong", "del", "pre", "blockquote", "hr", "br", "small", "ul", "li"), ()),
    **dict.fromkeys(("table", "thead", "tbody", "tr"), ()),
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), ("id",)),
    **dict.fromkeys(("th", "td"), ("align",)),
    "ol": ("start",),
    "code": ("class",),
    "input": ("checked", "disabled", "type"),
    "a": ("href", "title"),
}
"""What an answer may consist of, and what each element may say of itself."""


def acts(element: str, attributes: dict[str, str]) -> bool:
    """Whether an element of the finished page is more than formatted text and links to the web and mail."""
    if element not in ELEMENTS or set(attributes) - set(ELEMENTS[element]):
        return True
    if not attributes.get("class", "language-").startswith("language-") or attributes.get("type", "") not in (
        "",
        "checkbox",
    ):
        return True
    return bool(findings([("link", attributes.get("href", ""))]))


MARKED = """
import { marked } from "marked";
const texts = JSON.parse(await new Response(process.stdin).text());
const all = texts.map((text) => {
  const found = [];
  marked.use({ gfm: true });
  marked.walkTokens(marked.lexer(text), (token) => {
    if (token.type === "html") found.push(["html", token.raw.trim()]);
    if (token.type === "image") found.push(["image", token.href]);
    if (token.type === "link") found.push(["link", token.href]);
  });
  return found;
});
process.stdout.write(JSON.stringify(all));
"""


def read_by_node(program: str, texts: list[str]) -> list[list[Any]]:
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        cwd=JS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read_by_marked(texts: list[str]) -> list[list[tuple[str, str]]]:
    return [[(kind, value) for kind, value in found] for found in read_by_node(MARKED, texts)]


def what_acts_in_jupyterlab(texts: list[str]) -> list[list[str]]:
    """For each text, the elements that act once JupyterLab has made a page of it."""
    return [
        [f"{element} {attributes}" for element, attributes in page if acts(element, attributes)]
        for page in read_by_node(JUPYTERLAB, texts)
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_acts_comes_out(text):
    assert findings(read_by_markdown_it(sanitise(text))) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_acts_comes_out_of_any_prefix(text):
    short = re.sub(r"(\s|&Tab;|\\){20,}", lambda match: match[0][:20], text)
    for end in range(len(short)):
        assert findings(read_by_markdown_it(sanitise(short[:end]))) == [], short[:end]


PIECES = st.one_of(
    st.sampled_from(HOSTILE),
    st.sampled_from(
        ["`", "``", "```", "````", "~~~", "\n", "\n\n", "    ", "\t", "- ", "1. ", "> ", "| ", "\\", "[", "]", "(", ")",
         "](", "]:", "![", "!", "<", ">", "&", "#", "&lt;", "&#60;", "javascript:", "x", " ", "\r", "$", "$$", "\u200b",
         "<code>", "</code>", "http://a.example", "]: javascript:x", "<img src=x onerror=a>", "](javascript:x)"]
    ),
)  # fmt: skip


@settings(max_examples=1500 * SOAK, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_nothing_that_acts_comes_out_of_any_mixture(text):
    assert findings(read_by_markdown_it(sanitise(text))) == []


@settings(max_examples=300 * SOAK, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join), st.data())
def test_a_quoted_answer_stays_safe(text, data):
    """Reasoning is shown as a quotation."""
    prefix = text[: data.draw(st.integers(0, len(text)))]
    assert findings(read_by_markdown_it(f"{quoted(prefix)}\n\n{sanitise(text)}")) == []


def test_the_reader_of_these_tests_sees_what_acts():
    text = "<b>\n\n[x](javascript:a)\n\n![x](y)\n\n- <i>"
    kinds = {kind for kind, _ in findings(read_by_markdown_it(text))}
    assert kinds == {"html", "link", "image"}


def test_nothing_that_acts_comes_out_for_jupyterlabs_own_reader(require):
    require("node with marked", shutil.which("node") and (JS / "node_modules/marked").is_dir(), "npm ci in js/")
    mixtures: list[str] = []

    @settings(max_examples=1500 * SOAK, deadline=None, database=None)
    @given(st.lists(PIECES, max_size=14).map("".join))
    def gather(text):
        mixtures.append(text)

    gather()
    prefixes = [text[:end] for text in HOSTILE if len(text) < 100 for end in range(len(text))]
    texts = [*HOSTILE, *prefixes, *mixtures]
    sees = read_by_marked(["<b>\n\n[x](javascript:a)\n\n![x](y)"])[0]
    assert {kind for kind, _ in findings(sees)} == {"html", "link", "image"}
    bad = {
        text: found
        for text, tokens in zip(texts, read_by_marked([sanitise(text) for text in texts]), strict=True)
        if (found := findings(tokens))
    }
    assert bad == {}


FRAGMENTS = st.one_of(
    PIECES,
    st.sampled_from(
        ["$", "$$", "$x$", "\\begin{x}", "\\end{x}", "\\\\(", "\\\\)", "\\\\[", "\\\\]", "{", "}", "\\$", "@", "@@",
         "@@0@@",
         "@\\@0@@", "@\\@1@\\@", "0", "1", '"', "'", "&quot;", "&#34;", "&#64;", "\\", "[a](http://e/",
         "[a](http://e/x 't')",
         "[a](http://e/ '", "[a](<", "http://e/", "www.e.example", "a@b.example", "<http://e/>", "mailto:a@b.example",
         "![i](http://e/", '"onmouseover="a=1"', "'onmouseover='a=1'", "|a|b|\n|:-|-|\n|", "[r]: http://e/",
         "[r]", "\n# ",
         "$]$", "\n```\n]:x\n", "\n```\n]:x\n```\n", "\n```\n<img src=x onerror=a>\n```\n", "</code></pre>", "[//]: #",
         "\n```\n", "\n```python\n", "\n~~~\n", "~", "~T", "~D", "- [ ] ", "*", "\n[", "]: x", "_", "<code>", "\n\n"]
    ),
)  # fmt: skip


def quoted_and_plain(text: str) -> str:
    return f"{quoted(text)}\n\n{sanitise(text)}"


def with_its_fences_lost(text: str) -> str:
    """As it is for a reader to whom no block is one, whatever the reason."""
    return re.sub(r"^(> )?(?:```[^`\n]*|\[//\]: #)$", r"\1", quoted_and_plain(text), flags=re.MULTILINE)


@pytest.mark.parametrize("shown", [sanitise, quoted, quoted_and_plain, with_its_fences_lost])
def test_no_page_that_jupyterlab_makes_of_it_acts(shown, require):
    """It takes mathematics out before it reads Markdown and puts it back into the page, inside of attributes too."""
    there = all((JS / "node_modules" / part).is_dir() for part in ("marked", "parse5", "@jupyterlab/rendermime"))
    require("node with JupyterLab's reader", shutil.which("node") and there, "npm ci in js/")
    mixtures: list[str] = []

    @settings(max_examples=1250 * SOAK, deadline=None, database=None)
    @given(st.lists(FRAGMENTS, max_size=14).map("".join))
    def gather(text):
        mixtures.append(text)

    gather()
    prefixes = [text[:end] for text in HOSTILE if len(text) < 100 for end in range(len(text))]
    texts = [*HOSTILE, *prefixes, *mixtures]
    pages = what_acts_in_jupyterlab([shown(text) for text in texts])
    assert {text: found for text, found in zip(texts, pages, strict=True) if found} == {}


def test_the_reader_of_pages_sees_what_acts(require):
    require("node with marked", shutil.which("node") and (JS / "node_modules/parse5").is_dir(), "npm ci in js/")
    acting = ["<b>", "![x](y)", "[x](javascript:a)", '[a](http://e/$"style="x"$)', '<p onclick="x">', "<svg>"]
    assert all(what_acts_in_jupyterlab(acting))


@pytest.mark.parametrize(
    "text",
    [
        "# Heading\n\nA paragraph with *emphasis*, **strength** and `code`.",
        "- one\n- two\n  - three\n\n1. first\n2. second",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "Euler: $e^{i\\pi} + 1 = 0$, and\n\n$$\\int_0^1 x^2\\,dx = \\tfrac13$$",
        "[docs](https://docs.example/a?b=c#d), [mail](mailto:a@b.example), [here](other.ipynb), [top](#top)",
        "> quoted\n\n---\n\nHe said: wow! Really!! [see](https://a.example)",
        "Use `a[0](x)`? No: a list[int] and f(x).",
        "Übermäßig 日本語 🙂 — “quotes”",
    ],
)
def test_ordinary_markdown_is_left_alone(text):
    if "a[0](x)" in text:
        assert "<code>a&#91;0&#93;&#40;x&#41;</code>" in sanitise(text)
    else:
        assert sanitise(text) == text


@pytest.mark.parametrize(
    "code",
    [
        "if a < b and c <= d:\n    print(\"x\", x[0](1), f'{y}')\n",
        "@cache\ndef f(x: list[int]) -> dict[str, int]:\n    return m @ n[1:]\n",
        "if x[0]:\n    pass\nelse:\n    re.sub('\\d+', \"\\n\", a)\n\n# https://a.example & b\n",
        "",
    ],
)
def test_a_code_block_keeps_its_text_and_language(code):
    for before in ("Look:", "A [link](https://a.example), and $x \\in [0, 1)$:"):
        shown = sanitise(f"{before}\n```python\n{code}```\nDone.")
        blocks = [token for token in READER.parse(shown) if token.type == "fence"]
        assert [(block.info, block.content) for block in blocks] == [("python", code)]
        assert READER.render(shown).count("<p>") == 2
        assert shown.startswith(before)
        assert shown.endswith("\nDone.")


@pytest.mark.parametrize(
    "code",
    ["<img src=x>", "cat <<EOF", "echo $HOME", "a\n\n  ```\n\n\tb", "r'\\(x\\)'", "\\begin{x}", "@@0@@", "if (![1]) x",
     "[x](javascript:a)", "[x]: javascript:a", "print('ä <b> 日本')"],
)  # fmt: skip
def test_a_code_block_that_would_act_outside_of_a_fence_keeps_its_look(code):
    """It is an element that a fence would have become, too."""
    shown = sanitise(f"Look:\n````python\n{code}\n````\nDone.")
    assert "````" not in shown
    assert READER.render(shown).count("<p>") == 2
    element = re.search("<pre><code>(.*)</code></pre>", READER.render(shown))
    assert element
    assert html.unescape(element[1]) == f"{code}\n"


def test_a_code_block_in_a_list_keeps_its_text():
    text = "1. Do\n   ```sh\n   echo x\n     y\n   ```\n2. Done"
    blocks = [token.content for token in READER.parse(sanitise(text)) if token.type == "fence"]
    assert blocks == ["echo x\n  y\n"]


def test_tags_are_shown_as_text():
    assert "1 &lt; 2 and &lt;b>bold&lt;/b>" in sanitise("1 < 2 and <b>bold</b>")
    assert READER.render(sanitise("use `<div>`")) == "<p>use <code>&lt;div&gt;</code></p>\n"


def test_an_image_becomes_a_link_with_its_text():
    assert sanitise("![a cat](https://a.example/cat.png)") == "[a cat](https://a.example/cat.png)"
    assert sanitise("![](https://a.example/cat.png)") == "[image](https://a.example/cat.png)"


@pytest.mark.parametrize(
    "text",
    [" ".join("`" * k for k in range(1, 630)), "[a](" * 50_000, "![" * 100_000, "!" * 200_000, "```\n" * 50_000,
     "[a]: " * 40_000, "```\n" + "](a" * 60_000, "```\n" + "]:a" * 60_000, "```\n" + "]: " * 60_000,
     "```\n]:" + " " * 200_000, "](" + "&Tab;" * 40_000, "`a " * 70_000],
    ids=["runs", "links", "images", "bangs", "fences", "definitions", "fenced-links", "fenced-definitions",
         "fenced-gaps", "fenced-gap", "entities", "ticks"],
)  # fmt: skip
def test_hostile_repetition_is_read_in_linear_work(text):
    """Twice the text may cost about twice the work; what was quadratic here would run for minutes on ten times it."""
    assert isinstance(sanitise(text * 4), str)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]0;title\x07", "]0;title"),
        ("\x9b2J", "2J"),
        ("a\rb", "ab"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\u202egnp.exe\u2066", "gnp.exe"),
        ("Grüße 日本 🙂", "Grüße 日本 🙂"),
    ],
)
def test_plain_text_can_not_steer_a_terminal(text, shown):
    assert plain(text) == shown


def test_a_server_s_words_in_an_error_can_not_steer_a_terminal():
    error = ProviderError("it said \x1b[2J\x9b1m\ud800\nmore", hint="do\x07 this\r\nthen that")
    assert error.lines() == ["ProviderError AF700: it said [2J1m\ufffd", "more", "  do this", "  then that"]
    assert str(error) == "\n".join(error.lines()) == "\n".join(error._render_traceback_())
