"""How the small model is made to think aloud: a chat template and a grammar.

SmolLM2 was never taught to reason, but llama.cpp splits a thought from an answer by the template's `<think>` marks,
and a grammar can hold the model to writing both. What it thinks is real generated text of little worth, which is
what a demo of a reasoning phase needs. Without the grammar the template gives exactly what the model's own gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

# SmolLM2's own template, with the place of a thought added (and its default system message kept: without it the
# model answers worse).
_SMOLLM2: Final = r"""
{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' and message.reasoning_content is defined and message.reasoning_content -%}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' -}}
{%- endif -%}
{{- message['content'] + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}
"""


def template_for(name: str) -> str | None:
    """The chat template for the model called `name`; None where its own is right."""
    return _SMOLLM2 if name.lower().startswith("smollm2") else None


def thinking_grammar(thought: tuple[int, int] = (1, 2), answer: tuple[int, int] = (2, 4)) -> Mapping[str, Any]:
    """Fields for `Request.extra` that make the embedded model reason first and answer then.

    Args:
        thought: the fewest and most sentences of the reasoning.
        answer: the fewest and most sentences of the answer.

    Returns:
        A GBNF grammar (llama.cpp's `grammars/README.md`) and a mild penalty against repetition, to which a small
        model that can't stop early is prone.

    Raises:
        ValueError: a range is empty or begins below 1.
    """
    for fewest, most in (thought, answer):
        if not 1 <= fewest <= most:
            raise ValueError(f"a range of sentences is at least (1, 1) and does not shrink: {(fewest, most)}")
    grammar = "\n".join(
        (
            r'root ::= "<think>\n" thought "\n</think>\n\n" answer',
            f"thought ::= {_sentences(*thought)}",
            f"answer ::= {_sentences(*answer)}",
            "sentence ::= first (gap word){5,48} [.!?]",
            """first ::= [A-Z] [a-z']{0,15}""",
            """word ::= [a-zA-Z0-9] [a-zA-Z0-9'-]{0,15} | "(" [a-zA-Z0-9] [a-zA-Z0-9'-]{0,15} ")" """.rstrip(),
            """gap ::= " " | ", " | "; " | ": " """.rstrip(),
        )
    )
    return MappingProxyType({"grammar": grammar, "repeat_penalty": 1.1})


def _sentences(fewest: int, most: int) -> str:
    return f'sentence (" " sentence){{{fewest - 1},{most - 1}}}'
