"""What is judged of a conversation: the open question."""

from __future__ import annotations

import pytest

from aiflow_jupyter.tiers.judge.conversation import BEGIN, END, gist

HARD = "Derive the communication lower bound for distributed matrix multiplication with extra memory"


def talk(*asked, answer="Here is an answer."):
    messages = [{"role": "system", "content": "Prove everything rigorously."}]
    for text in asked:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return messages[:-1]


@pytest.mark.parametrize(
    "follow_up",
    [
        "shorter please",
        "more formal",
        "Why?",
        "continue",
        "add error bars",
        "in Python",
        "and for two nodes?",
        "redo that",
    ],
)
def test_a_follow_up_inherits_the_question_before_it(follow_up):
    found = gist(talk(HARD, follow_up))
    assert found.inherited
    assert found.text.startswith(HARD)


def test_follow_ups_in_a_row_are_followed_back():
    assert gist(talk(HARD, "shorter please", "thanks", "shorter")).text == HARD


@pytest.mark.parametrize(
    "question",
    [
        "What is 2+2?",
        "2+2",
        "And what is 2 + 2?",
        "capital of France",
        "What is it called when the moon hides the sun?",
    ],
)
def test_a_question_of_its_own_inherits_nothing(question):
    found = gist(talk(HARD, question))
    assert found.text == question
    assert not found.inherited


def test_that_within_a_sentence_refers_to_nothing():
    assert not gist(talk("hello", "Prove that the square root of 2 is irrational")).inherited


@pytest.mark.parametrize("word", ["thanks", "Thank you so much!", "ok", "Hello"])
def test_courtesies_ask_for_nothing(word):
    assert gist(talk(HARD, word)).courtesy


def test_a_follow_up_with_nothing_before_it_stands_for_itself():
    assert gist(talk("shorter please")).text == "shorter please"


def test_only_what_the_user_says_is_read():
    assert gist([{"role": "system", "content": HARD}, {"role": "assistant", "content": HARD}]).text == ""


def test_of_a_long_text_the_beginning_and_the_end_are_read():
    found = gist(talk("a" * 1_000_000 + " Which colour is it?")).text
    assert len(found) <= BEGIN + END + 1
    assert found.endswith("Which colour is it?")


def test_text_parts_of_a_message_are_read():
    parts = [{"type": "text", "text": "What is in"}, {"type": "image_url"}, {"type": "text", "text": "this picture?"}]
    assert gist([{"role": "user", "content": parts}]).text == "What is in\nthis picture?"
