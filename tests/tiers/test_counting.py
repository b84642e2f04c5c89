"""Counting: an estimate that errs high, calibrated by what providers read, exact where they can say."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.tiers.counting import IMAGE, TokenCounter, estimate, images, parts
from aiflow_jupyter.tiers.terms import Tier

TEXTS = {
    "prose": "The sky is blue because air scatters short waves of light more than long ones; at dusk the way is long. "
    * 8,
    "code": "def mean(values: list[float]) -> float:\n    if not values:\n        return 0.0\n    return sum(values)\n"
    * 8,
    "json": '{"id": "chatcmpl-8f3a", "choices": [{"index": 0, "delta": {"content": "Hi"}}], "created": 1764458231}\n'
    * 8,
    "german": "Größenordnungen überprüfen, Zusammenfassungen schließen; Rückfälle über Umwege. " * 8,
    "russian": "Почему небо голубое? Ответьте одним предложением. " * 8,
    "arabic": "لماذا السماء زرقاء؟ أجب في جملة واحدة. " * 8,
    "hindi": "आकाश नीला क्यों है? एक वाक्य में उत्तर दें। " * 8,
    "thai": "ทำไมท้องฟ้าถึงเป็นสีฟ้า ตอบในหนึ่งประโยค " * 8,
    "chinese": "为什么天空是蓝色的？请用一句话回答。机器学习是人工智能的一个分支。" * 8,
    "japanese": "なぜ空は青いのですか？一文で答えてください。" * 8,
    "korean": "하늘은 왜 파란가요? 한 문장으로 대답해 주세요. " * 8,
    "emoji": "🎉🚀😀👩‍🔬🇩🇪" * 8,
    "digits": "3.14159265358979323846 2718281828 1,234,567 0x7f 2026-11-29T22:36:11 " * 8,
    "mathematics": r"\int_{0}^{\infty} e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}; ∀x∈ℝ: x²≥0 ∑_{i=1}^n α_i β_i ≤ ‖α‖‖β‖ " * 8,
    "capitals": "THIS IS ALL UPPERCASE TEXT WITH ABBREVIATIONS LIKE NASA, HTTP AND XKCD " * 8,
    "base64": "aGVsbG8gd29ybGQgdGhpcyBpcyBhIGJhc2U2NCBzdHJpbmcgUXpYdlJ0WXBMa05tQnZDeFpBc0RmR2hKa0w=" * 8,
}


def said(text):
    return {"role": "user", "content": text}


def tier(provider=None, **fields):
    return Tier("local", provider, "openai", "m", **({"window": 4_096} | fields))


@pytest.mark.model
async def test_the_estimate_errs_high_for_a_real_model_and_the_models_own_count_is_taken(model):
    from aiflow_jupyter.providers.embedded import EmbeddedModel

    real = EmbeddedModel(model)
    assert await real.count("Hi", "") is None
    await real.start()
    try:
        for name, text in TEXTS.items():
            counted = await real.count(text, "")
            assert counted <= estimate(text) <= 2.1 * counted, (name, counted, estimate(text))
        counter = TokenCounter()
        chat, at = [said(text) for text in TEXTS.values()], tier(real)
        guess = counter.tokens(chat, at)
        await counter.measure(chat, at)
        assert counter.tokens(chat, at) < guess
    finally:
        await real.aclose()


@given(st.text(max_size=300), st.text(max_size=300))
def test_more_text_is_never_fewer_tokens(one, two):
    assert estimate(one) >= 1
    assert estimate(one + " " + two) >= estimate(one) - 32  # a run of letters may be read as words once it ends


def test_a_turns_calls_and_images_count():
    call = {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    with_call = {"role": "assistant", "content": "", "tool_calls": [call]}
    picture = said([{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}])
    assert "Oslo" in parts(with_call)[0]
    assert (parts(picture), images([picture, said("Hi")])) == (("What is it?", 1), 1)
    counter = TokenCounter()
    assert counter.tokens([picture], tier()) > IMAGE


def test_what_a_provider_read_calibrates_its_model_and_no_other():
    counter, chat = TokenCounter(), [said(TEXTS["prose"])]
    guess = counter.tokens(chat, tier())
    for _ in range(3):
        counter.learn(chat, tier(), round(0.7 * guess))
    assert 0.65 * guess < counter.tokens(chat, tier()) < 0.85 * guess
    assert counter.tokens(chat, Tier("hpc", None, "hpc", "n")) == guess


def test_the_highest_that_was_seen_counts():
    counter, chat = TokenCounter(), [said(TEXTS["prose"])]
    guess = counter.tokens(chat, tier())
    for read in (0.6, 1.3, 0.6, 0.6):
        counter.learn(chat, tier(), round(read * guess))
    assert counter.tokens(chat, tier()) > 1.25 * guess


def test_what_a_template_adds_to_short_prompts_is_no_factor():
    counter = TokenCounter()
    counter.learn([said("Hi")], tier(), 300)
    long = [said(TEXTS["prose"])]
    assert counter.tokens(long, tier()) - TokenCounter().tokens(long, tier()) < 300


@pytest.mark.parametrize("text", ["Hi", TEXTS["prose"]])
def test_a_false_number_is_bounded_from_the_first_and_forgotten_at_the_next_true_one(text):
    counter, chat, long = TokenCounter(), [said(text)], [said(TEXTS["prose"] * 10)]
    guess = counter.tokens(long, tier())
    counter.learn(chat, tier(), 10**9)
    assert counter.tokens(long, tier()) <= 2.1 * guess + 4_096
    true = counter.tokens(chat, Tier("hpc", None, "hpc", "n"))
    counter.learn(chat, tier(), round(0.8 * true))
    assert counter.tokens(long, tier()) <= 1.05 * guess


def test_what_was_added_around_a_chat_is_forgotten_with_the_chats_that_had_it():
    counter = TokenCounter()
    counter.learn([said("Hi")], tier(), 3_000)
    assert counter.tokens([said("Hi")], tier()) >= 3_000
    for _ in range(16):
        counter.learn([said("Hi")], tier(), 20)
    assert counter.tokens([said("Hi")], tier()) < 100


@pytest.mark.parametrize("read", [0, -5, None])
def test_a_number_that_says_nothing_teaches_nothing(read):
    counter = TokenCounter()
    counter.learn([said(TEXTS["prose"])], tier(), read)
    assert counter.tokens([said("Hi")], tier()) == TokenCounter().tokens([said("Hi")], tier())


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_content": "word " * 400},
        {"name": "n" * 2_000},
        {"tool_call_id": "i" * 2_000},
        {"x": [{"y": "z" * 2_000}]},
    ],
)
def test_all_of_a_turn_that_a_server_reads_counts(more):
    turn = {"role": "assistant", "content": "Hi"}
    assert TokenCounter().tokens([turn | more], tier()) > TokenCounter().tokens([turn], tier()) + 400


@pytest.mark.parametrize("calls", [None, 5, ["add"], [{"x": 1}], [{"function": 3}]])
def test_calls_of_any_form_are_counted_and_none_breaks_it(calls):
    turn = {"role": "assistant", "content": "Hi", "tool_calls": calls}
    assert TokenCounter().tokens([turn], tier()) > 0


def server(owner, seen):
    def answer(request):
        seen.append((request.method, request.url.path))
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": owner}]})
        body = json.loads(request.content)
        assert body["content"] == body["prompt"]
        return httpx.Response(200, json={"tokens": list(range(len(body["content"].split())))})

    return OpenAICompatible("http://127.0.0.1:1/v1", model="m", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize("owner", ["llamacpp", "vllm"])
async def test_a_server_with_a_tokenizer_is_asked_once_for_each_text_and_only_near_the_window(owner):
    seen = []
    counter, at = TokenCounter(), tier(server(owner, seen))
    await counter.measure([said("short")], at)
    assert seen == []
    chat = [said("word " * 3_000), said("more")]
    await counter.measure(chat, at)
    await counter.measure([*chat, said("again")], at)
    assert seen == [("GET", "/v1/models"), *[("POST", "/tokenize")] * 3]
    assert 3_002 < counter.tokens(chat, at) < 3_100


async def test_of_a_chat_that_is_far_too_long_only_the_newest_window_full_is_counted_by_the_server():
    seen = []
    counter, at = TokenCounter(), tier(server("llamacpp", seen))
    chat = [said(f"{number} " + "word " * 99) for number in range(500)]
    await counter.measure(chat, at)
    assert len(seen) - 1 == at.window // 100 + 1
    assert counter.tokens(chat[-1:], at) < 200
    await counter.measure([*chat, said("another")], at)
    assert len(seen) - 2 == at.window // 100 + 1


async def test_a_text_is_sent_to_no_server_that_is_not_known_to_count():
    seen = []
    counter, at = TokenCounter(), tier(server("somebody", seen))
    chat = [said("word " * 3_000)]
    guess = counter.tokens(chat, at)
    await counter.measure(chat, at)
    assert (seen, counter.tokens(chat, at)) == ([("GET", "/v1/models")], guess)


async def test_a_tokenizer_that_fails_leaves_the_estimate():
    class Broken:
        async def count(self, text, model):
            raise ProviderError("down")

    counter, chat = TokenCounter(), [said("word " * 3_000)]
    await counter.measure(chat, tier(Broken()))
    assert counter.tokens(chat, tier(Broken())) > 3_000
