"""`aiflow check` and `aiflow convert`, as their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from aiflow_jupyter.errors import GraphError
from aiflow_jupyter.graph.command import loaded
from aiflow_jupyter.graph.forms.document import read_json
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES

COMMAND = Path(sys.executable).with_name("aiflow")
TEXT = """\
ask    = generate(tier="auto")
lane   = route(by="phase")
safe   = filter(no_secrets) [workers=2]
speech = sink(function=speak)
notes  = sink(var="größe")  [queue=64, overflow=drop_oldest]

ask -> lane
lane.answer    -> safe -> speech
lane.reasoning -> notes
"""


def aiflow(*arguments, given=b"", **env):
    done = subprocess.run(
        [str(COMMAND), *map(str, arguments)],
        input=given,
        capture_output=True,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    return done


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "support.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def report(*arguments, **more):
    done = aiflow("check", "--json", *arguments, **more)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1)
    assert done.stderr == b""
    return found


# -- check


def test_a_right_graph_has_its_bounds(graph):
    done = aiflow("check", graph)
    assert done.returncode == 0
    first, _, head, *rows = done.stdout.decode().splitlines()
    assert first == "support: no errors; at most 110 data events at any instant"
    assert head.split() == ["node", "at", "most", "queue", "workers", "reorder", "hold", "feedback"]
    assert rows[2].split() == ["safe", "18", "8", "2", "8", "0", "0"]
    assert "taken to be functions of yours: no_secrets, speak; their types are not checked" in done.stderr.decode()


def test_a_right_graph_as_one_object(graph):
    found = report(graph)
    assert (found["ok"], found["name"], found["errors"]) == (True, "support", [])
    assert found["functions"] == ["no_secrets", "speak"]
    assert found["bound"]["events"] == sum(node["events"] for node in found["bound"]["nodes"].values()) == 110
    assert found["bound"]["nodes"]["safe"] == {
        "events": 18, "queue": 8, "workers": 2, "reorder": 8, "hold": 0, "feedback": 0, "keys": 0, "bytes": None,
    }  # fmt: skip


def test_wrong_text_has_all_errors_with_lines_columns_and_carets(graph):
    text = TEXT.replace("generate", "genrate").replace("drop_oldest", "drop").replace("-> notes", "-> nots")
    graph.write_text(text.replace('"phase"', "phse"), encoding="utf-8")
    found = report(graph)
    assert found["bound"] is None
    assert {(e["code"], e["place"]["line"], e["place"]["column"], e["hint"]) for e in found["errors"]} == {
        ("AF201", 1, 10, "did you mean 'generate'?"),
        ("AF204", 2, 16, "did you mean 'phase'?"),
        ("AF401", 5, 40, "overflow is one of 'block', 'drop_newest', 'drop_oldest', 'error' or 'conflate'"),
        ("AF206", 9, 19, "did you mean 'notes'?"),
    }
    done = aiflow("check", graph)
    assert (done.returncode, done.stdout) == (1, b"")
    said = done.stderr.decode()
    assert "  line 1, column 10: ask    = genrate" in said
    assert said.count("^") == 4


def test_wrong_json_has_all_errors_with_pointers(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(
        '{"name": "g", "nodes": {"a": {"operator": "m", "policy": {"queue": 0}}}, "edges": [{"from": "a", "to": "b"}]}'
    )
    places = {(e["code"], e["place"]["pointer"]) for e in report(path)["errors"]}
    assert {("AF401", "/nodes/a/policy/queue"), ("AF206", "/edges/0/to")} <= places
    path.write_text('{"name": "g",\n"nodes": {]}')
    (error,) = report(path)["errors"]
    assert (error["code"], error["place"]) == ("AF100", {"line": 2, "column": 11})
    assert not error["hint"].startswith("line")


def test_a_name_that_is_sure_is_no_slip():
    text = b"a = genrate\nb = sink(function=maps)\na -> b"
    assert [e["code"] for e in report("-", given=text)["errors"]] == ["AF201"]
    found = report("-", "--functions", "genrate, other", given=text)
    assert found["functions"] == ["genrate", "maps"]


def test_every_place_that_names_a_function_is_taken_to_be_one():
    text = b"""
    a = map(f) [key=by_user, state=partitioned, retry=2, retry_on=(Odd, TimeoutError)]
    b = route(by=lane)
    c = sink(var="x")
    a -> b
    b.x -> c
    """
    found = report("-", given=text)
    assert (found["ok"], found["functions"], found["name"]) == (True, ["f", "by_user", "Odd", "lane"], "graph")
    slip = report("-", given=text.replace(b"Odd", b"TimeoutEror"))
    assert [(e["code"], e["hint"]) for e in slip["errors"]] == [("AF205", "did you mean 'TimeoutError'?")]


@pytest.mark.parametrize(
    ("by", "meant"),
    [('"fase"', "'phase'"), ("'lable'", "'label'"), ('"PHASE"', "'phase'"), ("lane", ""), ('"by_language"', "")],
)
def test_a_text_that_is_like_a_word_is_asked_about(by, meant):
    given = f'a = route(by={by})\nb = sink(var="x")\na.x, a.else -> b'.encode()
    found = report("-", given=given)
    # what is alike enough is an error, as everywhere
    problems = found["errors"] or [each for each in found["warnings"] if each["code"] == "AF217"]
    assert [each["hint"].split(f"did you mean {meant}?")[0] for each in problems] == ([""] if meant else [])
    assert [each["place"] for each in problems] == ([{"line": 1, "column": 11}] if meant else [])
    sure = report("-", "--functions", by.strip("\"'"), given=given)
    assert (sure["ok"], sure["warnings"]) == (True, [])


def test_the_name_is_given_or_the_files(tmp_path):
    for stem, name in (("my-graph.v2", "my_graph"), ("9", "graph"), ("größe", "größe")):
        path = tmp_path / f"{stem}.txt"
        path.write_text(TEXT, encoding="utf-8")
        assert report(path)["name"].startswith(name)
    assert report(path, "--name", "other")["name"] == "other"
    assert report(path, "--name", "no name")["errors"][0]["code"] == "AF103"


def test_the_schema_is_printed_without_a_file():
    schema = json.loads(aiflow("check", "--schema").stdout)
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["properties"]) == {"version", "name", "nodes", "edges", "inject"}


def test_no_file_is_a_usage_error():
    done = aiflow("check")
    assert (done.returncode, b"name a FILE" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", [["check"], ["convert", "--to", "json"]])
@pytest.mark.parametrize(
    ("given", "code"),
    [
        (b"", "AF102"),
        (b"\xff\xfe", "AF808"),
        (b"a = map(\0)", "AF100"),
        (b"{" * 1_000_000, "AF101"),
        (b'{"name": "g", "nodes": {"a": {"operator": "\xed\xa0\x80"}}}', "AF808"),
        (b"[" * 1_000_000, "AF101"),
        (b" " * 11_000_000, "AF808"),
        (b"__import__('os').system('exit 3')", "AF100"),
    ],
    ids=["nothing", "no text", "nul", "deep", "half a character", "long", "too many bytes", "code"],
)
def test_bad_input_is_one_message(command, given, code):
    done = aiflow(*command, "-", given=given)
    assert done.returncode == 1
    assert done.stdout == b""
    assert code in done.stderr.decode()


@pytest.mark.parametrize("name", ["missing.txt", ".", "a\nb"])
def test_a_file_that_can_not_be_read_is_one_message(tmp_path, name):
    path = tmp_path / name
    assert b"AF808" in aiflow("check", path).stderr
    assert [e["code"] for e in report(path)["errors"]] == ["AF808"]


@pytest.mark.parametrize("wrong", ["ask = = x\n", "a = map(f) [queue=0]\n", "ask -> notes [limit=3]\n"])
def test_a_graph_with_mistakes_is_none_that_a_command_may_run(graph, wrong):
    graph.write_text(TEXT + wrong, encoding="utf-8")
    with pytest.raises(GraphError):
        loaded(graph, None, SIGNATURES)


# -- convert


def test_forms_are_converted_into_one_another(graph, tmp_path):
    document = tmp_path / "g.json"
    assert aiflow("convert", graph, "--to", "json", "-o", document).returncode == 0
    spec = parse(TEXT, "support", SIGNATURES).spec
    assert read_json(document.read_text("utf-8")).spec == spec
    assert aiflow("convert", document, "--to", "text").stdout.decode() == TEXT
    namespace = {"no_secrets": named("no_secrets"), "speak": named("speak")}
    source = aiflow("convert", document, "--to", "python").stdout
    exec(source.decode(), namespace)
    assert namespace["flow"].spec == spec
    assert aiflow("convert", "-", "--to", "text", given=source).stdout.decode() == TEXT
    assert report("-", given=source)["bound"] == report(graph)["bound"]


def named(name):
    def function(text):
        return text

    function.__name__ = name
    return function


def test_a_picture_is_one_document_of_svg(graph):
    tree = ET.fromstring(aiflow("convert", graph, "--to", "svg").stdout)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert "support" in tree.attrib["aria-label"]


def test_an_edge_that_goes_back_is_drawn_behind_the_others():
    text = b'a = f\nb = f\nc = sink(var="x")\na -> b -> c\nb -> a [feedback]'
    picture = aiflow("convert", "-", "--to", "svg", given=text).stdout.decode()
    xs = [float(part.split('"')[0]) for part in picture.split('<g><rect x="')[1:]]
    assert xs == sorted(set(xs))
    assert picture.count("stroke-dasharray") == 1


def test_standard_input_is_a_file_and_the_name_is_given():
    done = aiflow("convert", "-", "--to", "json", "--name", "mine", given=TEXT.encode())
    assert json.loads(done.stdout)["name"] == "mine"
    again = aiflow("convert", "-", "--to", "json", given=done.stdout)
    assert again.stdout == done.stdout


def test_line_ends_of_windows_and_a_byte_order_mark_are_read(tmp_path):
    given = b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()
    assert aiflow("convert", "-", "--to", "text", given=given).stdout.decode() == TEXT
    assert b"\r" not in aiflow("convert", "-", "--to", "text", given=given).stdout


def test_what_is_wrong_is_told_in_one_go_and_nothing_is_written(tmp_path):
    out = tmp_path / "out.json"
    done = aiflow("convert", "-", "--to", "json", "-o", out, given=b"a = map(f) [queue=0]\na -> b")
    assert done.returncode == 1
    assert {b"AF401" in done.stderr, b"AF206" in done.stderr, b"line 2, column 6" in done.stderr} == {True}
    assert not out.exists()


def test_a_file_that_can_not_be_written_is_one_message(graph, tmp_path):
    done = aiflow("convert", graph, "--to", "json", "-o", tmp_path / "no" / "such.json")
    assert (done.returncode, b"can't be written" in done.stderr) == (1, True)


def test_a_form_that_would_be_too_long_to_read_is_refused():
    nodes = {f"n{i}": {"operator": "m", "args": {"x": "y" * 200}} for i in range(900)}
    done = aiflow("convert", "-", "--to", "text", given=json.dumps({"name": "g", "nodes": nodes}).encode())
    assert (done.returncode, b"AF809" in done.stderr) == (1, True)


def test_output_is_utf_8_whatever_the_locale(graph):
    done = aiflow("convert", graph, "--to", "text", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.stdout.decode() == TEXT
    assert report(graph, PYTHONIOENCODING="ascii")["ok"]


def test_nothing_in_a_file_is_run(tmp_path):
    trap = tmp_path / "ran"
    text = f'a = map("open({str(trap)!r}, \'w\')")\nb = sink(var="x")\na -> b'
    for form in ("json", "text", "python", "svg"):
        assert aiflow("convert", "-", "--to", form, given=text.encode()).returncode == 0
    aiflow("check", "-", given=text.encode())
    source = aiflow("convert", "-", "--to", "python", given=text.encode()).stdout.decode()
    errors = report("-", given=f"{source}\nopen({str(trap)!r}, 'w')\n".encode())["errors"]
    assert (errors[-1]["code"], errors[-1]["place"]["column"]) == ("AF107", 1)
    assert not trap.exists()
