"""`aiflow ask` and `aiflow trace record` against a server on loopback: what they read, and what they print where."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

COMMAND = [sys.executable, "-m", "aiflow_jupyter"]
PART = "a message number"


class Chat(BaseHTTPRequestHandler):
    """OpenAI's API: the question comes back as the answer; to `cut` a part comes, and the connection is closed."""

    def do_GET(self):
        self.reply("application/json", json.dumps({"data": [{"id": "echo"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][-1]["content"]
        cut = question == "cut"
        chunks = [{"delta": {"content": PART if cut else question}}]
        chunks += [] if cut else [{"delta": {}, "finish_reason": "stop"}]
        lines = [f"data: {json.dumps({'choices': [{'index': 0, **chunk}]})}\n\n" for chunk in chunks]
        self.reply("text/event-stream", "".join(lines) + ("" if cut else "data: [DONE]\n\n"))

    def reply(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """Settings whose local tier is that server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path_factory.mktemp("config") / "aiflow.toml"
    config.write_text(
        f'[tiers.local]\nprovider = "openai"\nurl = "http://127.0.0.1:{server.server_port}/v1"\nmodel = "echo"\n'
    )
    yield {**os.environ, "AIFLOW_CONFIG": str(config)}
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(env, tmp_path):
    def run(*words, stdin="", **extra):
        return subprocess.run(
            [*COMMAND, *words], env=env, cwd=tmp_path, input=stdin, capture_output=True, text=True, timeout=60,
            check=False, **extra,
        )  # fmt: skip

    return run


ASK, RECORD = ["ask"], ["trace", "record", "-o", "run.jsonl"]


@pytest.mark.parametrize("command", [ASK, RECORD])
@pytest.mark.parametrize(
    ("words", "stdin"), [(["Why?"], ""), (["-"], "Why?\n"), ([], "Why?\n"), ([], "\n  Why?\nWhere?\n")]
)
def test_a_question_is_an_argument_or_standard_input_and_the_answer_ends_its_line(run, command, words, stdin):
    done = run(*command, *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, f"{(stdin or 'Why?').strip(chr(10))}\n"), done.stderr
    assert not done.stderr.startswith("\n")


@pytest.mark.parametrize("command", [ASK, RECORD])
@pytest.mark.parametrize("words", [[], ["-"], [""], [" "]])
def test_no_question_is_a_usage_error(run, command, words):
    done = run(*command, *words, stdin=" \n")
    assert done.returncode == 2
    assert "the question is empty" in done.stderr


def test_a_question_that_is_no_text_is_one_message(env):
    done = subprocess.run([*COMMAND, "ask", "-"], env=env, input=b"\xff\xfe", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"AF808: - is no UTF-8 text" in done.stderr


@pytest.mark.parametrize("command", [ASK, RECORD])
def test_an_error_behind_a_partial_answer_has_a_line_of_its_own(run, command):
    done = run(*command, "cut", "--tier", "local")
    assert done.returncode == 1
    assert done.stdout == f"{PART}\n"
    assert done.stderr.startswith("StreamCut AF702: ")


@pytest.mark.parametrize("command", [ASK, RECORD])
def test_so_it_has_on_a_terminal(env, tmp_path, command):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, *command, "cut", "--tier", "local"], env=env, cwd=tmp_path, stdin=theirs, stdout=theirs,
        stderr=theirs, timeout=60, check=False,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 1
    assert f"{PART}\r\nStreamCut AF702: " in shown


@pytest.mark.parametrize(("tier", "code"), [("local", "AF702"), ("cloud", "AF7")])
def test_why_is_said_of_a_question_that_failed_too(run, tier, code):
    done = run("ask", "cut", "--tier", tier, "--why")
    assert done.returncode == 1
    assert done.stderr.index(f"{tier}: ") < done.stderr.index("decided in ") < done.stderr.rindex(code), done.stderr


def test_at_a_terminal_a_missing_question_is_not_waited_for(env):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "ask"], env=env, stdin=theirs, capture_output=True, text=True, timeout=60, check=False
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 2
    assert "name a QUESTION, or - for standard input" in done.stderr


def test_an_interrupt_while_the_command_is_imported_is_one_word(tmp_path):
    """The interrupt comes from a module that the command imports."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    done = subprocess.run(
        [*COMMAND, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cancelled\n")


def test_a_command_that_is_told_to_leave_interrupts_alone_does(tmp_path):
    """As a shell tells what it runs in the background."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(9)\n")
    done = subprocess.run(
        [*COMMAND, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        timeout=60,
        check=False,
    )
    assert done.returncode == 9


def test_the_installed_command_has_the_same_door():
    assert "aiflow_jupyter.__main__" in Path(sys.executable).with_name("aiflow").read_text("utf-8")
