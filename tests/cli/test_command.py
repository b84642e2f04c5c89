"""The command `aiflow`, as its own process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiflow_jupyter.cli import main
from aiflow_jupyter.notebook.lines import COMMANDS, TERMINAL
from aiflow_jupyter.notebook.options import CELL_COMMANDS

COMMAND = Path(sys.executable).with_name("aiflow")
NODES = ["ask", "lane", "tidy", "speech", "notes"]


def aiflow(*arguments, cwd=None, **env):
    return subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        timeout=300,
        check=False,
    )


@pytest.fixture
def store(tmp_path):
    """An empty cache, and a pip that can reach no index."""
    return {"AIFLOW_CACHE": str(tmp_path / "cache"), "AIFLOW_MODEL": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    return path


def one_message(done):
    """A failure is one message on stderr, with exit code 1 and no traceback."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4
    return done.stderr


def test_help_names_every_command():
    done = aiflow("--help")
    assert done.returncode == 0
    for command in ("ask", "bench", "demo", "doctor", "lab", "models"):
        assert f"  {command} " in done.stdout
    assert aiflow("-h").stdout == done.stdout


@pytest.mark.parametrize("command", [["ask"], ["demo"], ["doctor"], ["models"], ["models", "add"], ["bench", "import"]])
def test_every_command_explains_itself(command):
    done = aiflow(*command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize("words", [[], ["ask"], ["bench", "judge"]])
def test_help_is_a_command_too(words):
    assert aiflow("help", *words).stdout == aiflow(*words, "--help").stdout


def test_help_for_what_is_no_command_is_a_usage_error():
    done = aiflow("help", "nope")
    assert (done.returncode, "No such command 'nope'" in done.stderr) == (2, True)


@pytest.mark.parametrize(("word", "typed"), [("runs", "%aiflow runs"), ("why", "%aiflow why"), ("run", "%%aiflow run")])
def test_a_command_of_a_notebook_is_named_as_such(word, typed):
    done = aiflow(word)
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: {word} is a command of a notebook: {typed}\n")


@pytest.mark.parametrize(
    "words", [["conversation", "none"], ["conversation", "undo", "none"], ["ask", "Hi", "-c", "a/b"]]
)
def test_a_hint_names_what_can_be_typed_in_a_terminal(words):
    done = aiflow(*words)
    assert done.returncode == 1
    assert "%aiflow" not in done.stderr


def test_a_notebook_knows_every_command_of_the_terminal():
    assert set(TERMINAL) == set(main.commands) - set(COMMANDS) - set(CELL_COMMANDS)


def test_version_is_the_packages():
    assert aiflow("--version").stdout.strip() == f"aiflow, version {importlib.metadata.version('aiflow-jupyter')}"


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "aiflow_jupyter.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == aiflow("--version").stdout


WRONG = ["nope", "ask", "ask x --tier moon", "ask x --max-tokens 0", "demo --prompt=", "bench import --rounds 0"]


@pytest.mark.parametrize("arguments", [*map(str.split, WRONG), ["ask", " "]])
def test_a_wrong_command_line_is_a_usage_error(arguments):
    done = aiflow(*arguments)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


# -- the main job


@pytest.fixture(scope="module")
def demo(model):
    done = aiflow("demo", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.model
def test_the_demo_prints_one_object_with_its_figures(demo):
    assert set(demo) == {
        "model", "provider", "tokens", "model_ttft_s", "ttfpt_s", "aggregate_ttfpt_s", "whole_s", "nodes", "reasoning",
        "text",
    }  # fmt: skip
    assert demo["provider"] == "embedded"
    assert list(demo["nodes"]) == NODES


@pytest.mark.model
def test_the_demo_streams_instead_of_waiting(demo):
    assert 0 < demo["model_ttft_s"] <= demo["ttfpt_s"] < demo["aggregate_ttfpt_s"]
    assert demo["ttfpt_s"] < demo["whole_s"]


@pytest.mark.model
def test_no_queue_of_the_demo_was_longer_than_declared(demo):
    for node in demo["nodes"].values():
        assert 0 <= node["peak"] <= node["queue"]
    assert demo["nodes"]["speech"]["peak"] == demo["nodes"]["speech"]["queue"] == 8


@pytest.mark.model
def test_every_token_of_the_demo_was_served(demo):
    processed = {name: node["processed"] for name, node in demo["nodes"].items()}
    assert processed["ask"] == 1
    assert processed["tidy"] == processed["speech"]
    assert processed["lane"] == processed["tidy"] + processed["notes"]
    assert 0 < processed["lane"] <= demo["tokens"]


@pytest.mark.model
def test_the_demo_parts_a_thought_from_an_answer(demo):
    assert demo["reasoning"]
    assert demo["text"]
    assert "\n" not in demo["text"]
    assert "<think>" not in demo["text"] + demo["reasoning"]


@pytest.mark.model
def test_ask_streams_the_answer_to_stdout_and_the_badge_to_stderr(model):
    done = aiflow("ask", "Say hello.", "--max-tokens", "6", "--tier", "local")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.strip().splitlines()[-1].startswith("local · ")
    assert "cut at its token limit" in done.stderr


def test_asking_an_unconfigured_tier_is_one_message():
    assert "tier 'hpc' is not configured" in one_message(aiflow("ask", "Hi", "--tier", "hpc"))


def test_asking_without_a_model_says_how_to_get_one(store):
    assert "aiflow models fetch" in one_message(aiflow("ask", "Hi", **store))


# -- models


def test_models_are_listed_added_and_removed(store, gguf):
    assert "none yet" in aiflow("models", "list", **store).stdout
    assert aiflow("models", "add", str(gguf), **store).stdout.startswith("added tiny")
    listed = aiflow("models", "list", **store).stdout
    assert listed.startswith("* tiny")
    assert str(gguf) in listed
    removed = aiflow("models", "remove", "tiny", **store)
    assert (removed.returncode, removed.stdout.strip()) == (0, "removed tiny")
    assert gguf.is_file()
    assert "none yet" in aiflow("models", "list", **store).stdout


def test_what_is_no_model_is_refused_in_one_message(store, tmp_path):
    text = tmp_path / "notes.gguf"
    text.write_text("not a model")
    assert "notes.gguf" in one_message(aiflow("models", "add", str(text), **store))
    assert "missing.gguf" in one_message(aiflow("models", "add", str(tmp_path / "missing.gguf"), **store))
    assert "nothing" in one_message(aiflow("models", "remove", "nothing", **store))
    one_message(aiflow("models", "list", **{**store, "AIFLOW_MODEL": str(tmp_path / "missing.gguf")}))


def test_fetching_where_no_index_answers_is_an_error_without_a_traceback(store):
    done = aiflow("models", "fetch", **store)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "AF7" in done.stderr


# -- doctor, lab, bench


def test_doctor_prints_its_findings_as_json_and_fails_when_something_is_wrong(store):
    done = aiflow("doctor", "--json", **store)
    findings = json.loads(done.stdout)
    assert all(set(finding) == {"what", "found", "wrong", "mend"} for finding in findings)
    model = next(finding for finding in findings if finding["what"] == "model")
    assert (model["wrong"], model["mend"]) == (True, "aiflow models fetch")
    assert done.returncode == 1


def test_doctor_prints_the_same_findings_for_people(store):
    done = aiflow("doctor", **store)
    assert done.returncode == 1
    assert "missing  model" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.fixture
def no_lab(tmp_path):
    """A `jupyterlab` that only says what it was asked to open."""
    folder = tmp_path / "path" / "jupyterlab"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(
        "import json, os, shutil, sys\nprint(json.dumps([sys.argv[1:], shutil.which('python')]))\nsys.exit(7)"
    )
    return {"PYTHONPATH": str(folder.parent)}


def test_lab_opens_the_quickstart_with_this_python_and_hands_options_on(no_lab, tmp_path):
    done = aiflow("lab", "--no-browser", "--port=1", cwd=tmp_path, **no_lab)
    arguments, python = json.loads(done.stdout)
    assert arguments == ["--LabApp.default_url=/lab/tree/examples/quickstart.ipynb", "--no-browser", "--port=1"]
    assert Path(python).parent == Path(sys.executable).parent
    assert done.returncode == 7
    copied = tmp_path / "examples" / "quickstart.ipynb"
    assert json.loads(copied.read_text("utf-8"))["cells"]


def test_lab_says_what_it_writes_into_the_folder(no_lab, tmp_path):
    assert f"written to {tmp_path / 'examples' / 'quickstart.ipynb'}" in aiflow("lab", cwd=tmp_path, **no_lab).stderr
    assert aiflow("lab", cwd=tmp_path, **no_lab).stderr == ""


def test_lab_takes_the_value_of_an_option_behind_a_space(no_lab, tmp_path):
    done = aiflow("lab", "--port", "8899", "--no-browser", cwd=tmp_path, **no_lab)
    assert json.loads(done.stdout)[0][1:] == ["--port", "8899", "--no-browser"]


@pytest.mark.parametrize("words", [["notes.ipynb"], ["--port=1", "notes.ipynb"], ["--port", "1", "notes.ipynb"]])
def test_lab_refuses_a_word_that_is_no_option(no_lab, tmp_path, words):
    message = one_message(aiflow("lab", *words, cwd=tmp_path, **no_lab))
    assert "unexpected argument 'notes.ipynb'" in message


@pytest.mark.skipif(sys.platform == "win32", reason="Windows can't replace a process")
def test_lab_leaves_nothing_behind_whatever_ends_it(no_lab, tmp_path):
    """It has become JupyterLab: there is one process, not two."""
    (Path(no_lab["PYTHONPATH"]) / "jupyterlab" / "__main__.py").write_text("import os\nprint(os.getpid())")
    with subprocess.Popen(
        [str(COMMAND), "lab"], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **no_lab}
    ) as lab:
        assert int(lab.stdout.read()) == lab.pid


def test_lab_leaves_a_quickstart_that_is_there_alone(no_lab, tmp_path):
    mine = tmp_path / "examples" / "quickstart.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    aiflow("lab", cwd=tmp_path, **no_lab)
    assert mine.read_text() == "mine"


def test_lab_where_nothing_can_be_written_is_one_message(no_lab, tmp_path):
    (tmp_path / "examples").write_text("a file where the folder would be")
    assert "can't be written" in one_message(aiflow("lab", cwd=tmp_path, **no_lab))


def test_bench_import_prints_medians():
    figures = json.loads(aiflow("bench", "import", "--json", "--rounds", "1").stdout)
    assert set(figures) == {"load_ext_ms", "import_ipywidgets_ms", "rounds"}
    assert figures["rounds"] == 1
    assert figures["load_ext_ms"] > 0
    assert figures["import_ipywidgets_ms"] > 0


def test_help_imports_nothing_heavy():
    code = (
        "import sys, aiflow_jupyter.cli\n"
        "print(sorted({'httpx', 'lark', 'pydantic', 'rich', 'IPython', 'anywidget'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_is_installed_beside_this_python():
    assert shutil.which(str(COMMAND))


def test_a_message_can_not_steer_the_terminal(store):
    done = aiflow("models", "list", **{**store, "AIFLOW_MODEL": "/nowhere/\x1b]0;title\x07.gguf"})
    assert "title" in one_message(done)
    assert not {"\x1b", "\x07"} & set(done.stderr)


def written_to(place, *arguments, env):
    """Run the command with its output going to `place`, a shell's redirection."""
    return subprocess.run(
        ["sh", "-c", f'"$0" "$@" {place}', str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["models", "list"], ["doctor", "--json"], ["models", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("place", [">&-", "| true", "2>&- >&-", "> /dev/full"])
def test_output_that_can_not_be_written_ends_without_a_traceback(store, arguments, place, unbuffered):
    if place == "> /dev/full" and not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    done = written_to(place, *arguments, env={**store, "PYTHONUNBUFFERED": unbuffered})
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if place == "> /dev/full":
        assert done.returncode == 1
        assert done.stderr.strip().splitlines()[-1].startswith("the output can't be written: No space left")
