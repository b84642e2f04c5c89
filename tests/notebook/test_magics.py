"""The magics in a terminal's IPython, without a kernel."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import CommandError, ConfigError, GraphError, ProviderError, RunError
from aiflow_jupyter.notebook.answer import Reply
from aiflow_jupyter.runtime.run import Result

GRAPH = "%%aiflow graph flow\nask = generate()\nout = sink(display=true)\nask -> out"


def test_a_question_streams_to_the_terminal_and_ends_with_the_badge(shell, capsys):
    ran = shell.ran("%%aiflow --tier local\nHi")
    assert ran.success
    out = capsys.readouterr().out
    assert "Hello world\n\n[local · scripted" in out
    assert out.count("Hello") == 1


def test_the_value_of_a_question_keeps_text_decision_and_figures(shell):
    reply = shell.ran("%%aiflow --tier local\nHi").result
    assert isinstance(reply, Reply)
    assert str(reply) == reply.text == "Hello world"
    assert (reply.tier, reply.model, reply.usage.completion_tokens) == ("local", "scripted", 2)
    assert reply.ttft >= 0
    assert reply.result.status.state == "done"


def test_o_binds_the_reply(shell):
    shell.ran("%%aiflow -o answer\nHi")
    assert shell.user_ns["answer"].text == "Hello world"
    assert shell.ran("answer.text.upper()").result == "HELLO WORLD"


def test_a_bound_reply_is_displayed_when_it_is_asked_for_again(shell, capsys):
    shell.ran("%%aiflow -o answer\nHi")
    capsys.readouterr()
    shell.ran("answer")
    assert "Hello world" in capsys.readouterr().out


def test_options_reach_the_provider(shell, provider):
    shell.ran(
        "%%aiflow --tier local --model m --system 'Be brief' --temperature 0 --max-tokens 7 --seed 5\nHi {x} 100%"
    )
    (request,) = provider.requests
    assert (request.tier, request.model, request.temperature, request.max_tokens, request.seed) == (
        "local",
        "m",
        0.0,
        7,
        5,
    )
    assert [(m["role"], m["content"]) for m in request.messages] == [("system", "Be brief"), ("user", "Hi {x} 100%")]


def asked(provider) -> str:
    return provider.requests[-1].messages[-1]["content"]


def test_the_users_variables_are_inserted(shell, provider):
    shell.ran("name = 'Ada'")
    shell.ran("%%aiflow\nHi {{name}}, {not} ${name}")
    assert asked(provider) == "Hi Ada, {not} ${name}"


def test_raw_leaves_braces_alone(shell, provider):
    shell.ran("%%aiflow --raw\nHi {{name}} {{In}}")
    assert asked(provider) == "Hi {{name}} {{In}}"


@pytest.mark.parametrize(
    "name", ["In", "Out", "_", "__", "_1", "_i", "_i1", "_ih", "_oh", "_dh", "get_ipython", "exit"]
)
def test_what_ipython_keeps_is_no_variable_of_the_users(shell, provider, name):
    shell.ran("41 + 1")
    shell.ran("43 + 1")
    ran = shell.ran(f"%%aiflow\nHi {{{{{name}}}}}")
    assert isinstance(ran.error_in_exec, CommandError)
    assert provider.requests == []


def test_a_name_of_ipythons_that_the_user_took_is_the_users(shell, provider):
    shell.ran("open = 'way out'")
    shell.ran("%%aiflow\n{{open}}")
    assert asked(provider) == "way out"


def test_a_large_body_reaches_the_provider_unchanged(shell, provider):
    body = ("{ } 'quote \"100% a -> b </script> \\ $x " * 6000)[:200_000].strip()
    assert shell.ran(f"%%aiflow\n{body}").success
    assert asked(provider) == body


@pytest.mark.parametrize("cell", ["%%aiflow\n   ", "%%aiflow\n\n\n", "%%aiflow -b\n \t\n"])
def test_a_cell_with_only_blanks_asks_nobody(shell, provider, cell):
    ran = shell.ran(cell)
    assert isinstance(ran.error_in_exec, CommandError)
    assert "empty" in str(ran.error_in_exec)
    assert provider.requests == []


@pytest.mark.parametrize(
    ("cell", "kind", "says"),
    [
        ("%%aiflow --nope\nHi", CommandError, "unknown option '--nope'"),
        ("%%aiflow run nothing\nHi", CommandError, "define it first: %%aiflow graph nothing"),
        ("%%aiflow graph g\na = nosuch()", GraphError, "nosuch"),
        ("%%aiflow graph g\na -> ", GraphError, "a -> "),
        ("%aiflow nope", CommandError, "unknown command"),
        ("%aiflow cancel abc", CommandError, "no run is called 'abc'"),
    ],
)
def test_a_mistake_is_one_readable_message_that_fails_the_cell(shell, capsys, cell, kind, says):
    ran = shell.ran(cell)
    assert isinstance(ran.error_in_exec, kind)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert says in text
    assert "Traceback" not in text
    assert "site-packages" not in text
    assert len(text.splitlines()) < 15


def test_a_refusal_is_shown_as_the_providers_not_as_a_nodes(shell, provider, capsys):
    provider.pieces = [ProviderError("no such model", code="AF703", hint="take another")]
    ran = shell.ran("%%aiflow\nHi")
    assert isinstance(ran.error_in_exec, ProviderError)
    text = "".join(capsys.readouterr())
    assert "ProviderError AF703: no such model\n  take another" in text
    assert "node" not in text.partition("ProviderError")[2]


def test_an_answer_that_broke_off_stays_and_says_so(shell, provider, capsys):
    provider.pieces = ["Hello", ProviderError("the line went dead")]
    ran = shell.ran("%%aiflow --tier local\nHi")
    assert isinstance(ran.error_in_exec, ProviderError)
    out = capsys.readouterr().out
    assert "Hello\n\n[local · scripted" in out
    assert "broken off: the line went dead · this is a part of the answer]" in out


def test_a_graph_is_defined_shown_and_run(shell, capsys):
    assert shell.ran(GRAPH).success
    assert "ask  generate [queue=8] -> out" in capsys.readouterr().out
    ran = shell.ran("%%aiflow run flow -o result\nHi")
    assert ran.success
    assert isinstance(shell.user_ns["result"], Result)
    assert shell.user_ns["result"].status.state == "done"
    out = capsys.readouterr().out
    assert "Hello world" in out
    assert "flow: done" in out


def test_what_may_surprise_in_a_graph_is_told_below_it(shell, capsys):
    shell.ran("def shape(text): return text")
    assert shell.ran("%%aiflow graph g\nask = generate()\nout = sink(function=shape)\nask -> out").success
    told = capsys.readouterr().out
    assert "warning AF307: the function 'shape' has no type hint" in told
    assert "  line 2, column 12: out = sink(function=shape)\n" in told, "with its place, as `aiflow check` tells it"
    assert "  def shape(text: str) -> str: ..." in told, "and with what to do"


def test_a_graph_of_the_same_name_takes_the_place_of_the_first(shell):
    shell.ran(GRAPH)
    shell.ran("%%aiflow graph flow\nother = generate()\nheard = sink(var='heard')\nother -> heard")
    result = shell.ran("%%aiflow run flow\nHi").result
    assert [node.node for node in result.status.nodes] == ["other", "heard"]
    assert result["heard"] == "Hello world"


def test_a_graph_with_a_mistake_does_not_leave_the_one_before_in_its_place(shell):
    shell.ran(GRAPH)
    assert not shell.ran("%%aiflow graph flow\nask = nosuch()").success
    ran = shell.ran("%%aiflow run flow\nHi")
    assert isinstance(ran.error_in_exec, CommandError)


def test_a_flow_built_in_python_runs_by_its_variable_s_name(shell):
    shell.ran("from aiflow_jupyter import Flow, generate, sink")
    shell.ran("mine = Flow('mine'); mine.add('ask', generate()) >> mine.add('out', sink(var='x'))")
    assert shell.ran("%%aiflow run mine -o done\nHi").success
    assert shell.user_ns["done"]["x"]


def test_a_problem_of_a_flow_is_placed_by_its_nodes_and_edges(shell, capsys):
    shell.ran("from aiflow_jupyter import Flow, generate, sink, route, run")
    shell.ran("mine = Flow('mine'); ask = mine.add('ask', generate())")
    shell.ran("lane = mine.add('lane', route(by='phase')); ask >> lane")
    shell.ran("lane['nowhere'] >> mine.add('out', sink(var='x')); lane['answer'] >> mine.add('also', sink(var=3))")
    for cell in ("%%aiflow run mine\nHi", "run(mine, 'Hi')"):
        capsys.readouterr()
        assert isinstance(shell.ran(cell).error_in_exec, GraphError)
        told = "".join(capsys.readouterr())
        assert 'at edge lane["nowhere"] >> out' in told
        assert "at node 'also', var=" in told
        assert "at /" not in told


def test_an_input_that_does_not_exist_fails_the_cell_instead_of_hanging_it(shell):
    shell.ran(GRAPH)
    ran = shell.ran("%%aiflow run flow --to nowhere\nHi")
    assert isinstance(ran.error_in_exec, CommandError)
    assert "its inputs: ask" in str(ran.error_in_exec)


@pytest.mark.parametrize(
    ("graph", "line", "code"),
    [
        (GRAPH, "flow --to nowhere", "AF806"),
        ("%%aiflow graph g\na = generate()\nb = generate()\nout = sink(var='o')\na -> out\nb -> out", "g", "AF806"),
        ("%%aiflow graph g\ninject a: int\na = map(double)\nout = sink(var='o')\na -> out", "g", "AF807"),
    ],
)
def test_an_input_that_does_not_fit_is_told_before_a_picture_is_drawn(shell, capsys, graph, line, code):
    shell.ran("def double(n: int) -> int: return 2 * n")
    assert shell.ran(graph).success
    capsys.readouterr()
    assert shell.ran(f"%%aiflow run {line}\nHi").error_in_exec.code == code
    assert "events" not in capsys.readouterr().out
    capsys.readouterr()
    shell.ran("%aiflow runs")
    assert capsys.readouterr().out == "no run yet\n"


def test_a_question_in_the_background_gives_its_reply_when_asked(shell):
    shell.ran("%%aiflow -b -o job\nHi")
    job = shell.user_ns["job"]
    reply = job.result()
    assert str(reply)
    assert job.text == reply.text
    assert job.done()


def test_a_background_reply_is_displayed_as_the_last_line_of_a_cell(shell, capsys):
    shell.ran("%%aiflow -b -o job\nHi")
    assert "result() waits for it" in repr(shell.user_ns["job"]) or shell.user_ns["job"].done()
    shell.user_ns["job"].result()
    capsys.readouterr()
    shell.ran("job.result()")
    assert "Hello world" in capsys.readouterr().out
    assert "done; result() gives it" in repr(shell.user_ns["job"])


def test_a_foreground_reply_is_not_displayed_twice(shell, capsys):
    shell.ran("%%aiflow -o reply\nHi")
    assert capsys.readouterr().out.count("Hello world") == 1
    assert shell.user_ns["reply"].complete


@pytest.mark.parametrize("how", ["fails", "is interrupted"])
def test_a_part_that_came_is_bound_and_says_that_it_is_one(shell, provider, the_host, monkeypatch, how):
    provider.pieces = ["Hello", ProviderError("cut") if how == "fails" else None]
    if how == "is interrupted":
        start = the_host.start

        def started(*args, **options):
            handle = start(*args, **options)
            wait = handle.wait

            def interrupted(timeout=None):
                if timeout == 0.1 and handle.run.result().answers and handle.run.result().answers[0].pieces:
                    raise KeyboardInterrupt
                return wait(timeout)

            monkeypatch.setattr(handle, "wait", interrupted)
            return handle

        monkeypatch.setattr(the_host, "start", started)
    assert not shell.ran("%%aiflow -o part\nHi").success
    part = shell.user_ns["part"]
    assert (part.text, part.complete) == ("Hello", False)
    assert repr(part).startswith("<part of a Reply 'Hello'")


def test_where_nothing_came_nothing_is_bound(shell, provider):
    provider.pieces = [ProviderError("down")]
    shell.ran("%%aiflow -o part\nHi")
    assert "part" not in shell.user_ns


def test_a_question_that_fails_leaves_no_earlier_answer_in_its_variable(shell, provider, capsys):
    shell.ran("%%aiflow -o answer\nHi")
    provider.pieces = [ProviderError("down")]
    capsys.readouterr()
    assert not shell.ran("%%aiflow -o answer\nHi").success
    assert "answer" not in shell.user_ns
    assert "answer is unset: nothing came" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_graph_that_fails_leaves_the_part_that_came_with_its_figures(shell, provider, the_host, capsys, how):
    shell.ran("%%aiflow graph flow\nask = generate()\nout = sink(var='x')\nask -> out")
    shell.ran("%%aiflow run flow -o done\nHi")
    assert shell.user_ns["done"]["x"] == "Hello world"
    end = ProviderError("cut") if how == "fails" else lambda _: the_host.handles()[-1].cancel_soon()
    provider.pieces = ["Hello", end, None]
    capsys.readouterr()
    assert not shell.ran("%%aiflow run flow -o done\nHi").success
    part = shell.user_ns["done"]
    assert (part["x"], part.complete) == ("Hello", False)
    assert part.status.state == ("failed" if how == "fails" else "cancelled")
    assert "done holds the part that came (complete=False)" in capsys.readouterr().out


def test_a_cell_that_never_began_leaves_its_variable_alone(shell):
    shell.ran("%%aiflow -o answer\nHi")
    for cell in (
        "%%aiflow -o answer --nope\nHi",
        "%%aiflow run nothing -o answer\nHi",
        "%%aiflow -o answer\n{{nothing}}",
    ):
        assert not shell.ran(cell).success
    assert shell.user_ns["answer"].text == "Hello world"


def test_runs_show_tier_and_the_beginning_of_the_question(shell, capsys):
    shell.ran("%%aiflow --tier local\nWhy do   rivers\nmeander? " + "x" * 200)
    shell.ran(GRAPH)
    shell.ran("%%aiflow run flow\nDescribe a lighthouse")
    capsys.readouterr()
    shell.ran("%aiflow runs")
    newest, oldest = capsys.readouterr().out.splitlines()
    assert "question  local: Why do rivers meander? xxx" in oldest
    assert len(oldest) < 120
    assert newest.endswith("flow  Describe a lighthouse")


def test_doctor_is_a_line_too(shell, capsys):
    assert shell.ran("%aiflow doctor").success
    out = capsys.readouterr().out
    assert "hpc tier" in out
    assert "ipykernel" in out


def test_the_same_cells_run_twice(shell, provider):
    for _ in range(2):
        assert shell.ran(GRAPH).success
        assert shell.ran("%%aiflow run flow\nHi").success
        assert shell.ran("%%aiflow\nHi").success
    assert len(provider.requests) == 4


def test_a_run_uses_a_function_as_it_is_now(shell):
    shell.ran("def shape(text): return text.upper()")
    shell.ran("%%aiflow graph g\nask = generate()\nshaped = map(shape)\nout = sink(var='out')\nask -> shaped -> out")
    assert shell.ran("%%aiflow run g\nHi").result["out"] == "HELLO WORLD"
    shell.ran("def shape(text): return text[::-1]")
    assert shell.ran("%%aiflow run g\nHi").result["out"] == "olleHdlrow "


def test_a_function_that_raises_is_one_error_naming_node_function_and_line(shell, capsys):
    shell.ran("def shape(text):\n    return 1 / 0")
    shell.ran("%%aiflow graph g\nask = generate()\nshaped = map(shape)\nout = sink(var='out')\nask -> shaped -> out")
    capsys.readouterr()
    ran = shell.ran("%%aiflow run g\nHi")
    assert isinstance(ran.error_in_exec, RunError)
    assert isinstance(ran.error_in_exec.__cause__, ZeroDivisionError)
    text = "".join(capsys.readouterr())
    assert "node 'shaped' failed on event 0: ZeroDivisionError: division by zero\n  in shape, line 2" in text
    assert "Traceback" not in text


def test_a_graph_with_several_inputs_asks_which_and_does_not_hang(shell, capsys):
    shell.ran("%%aiflow graph g\na = generate()\nb = generate()\nout = sink(display=true)\na -> out\nb -> out")
    ran = shell.ran("%%aiflow run g\nHi")
    assert isinstance(ran.error_in_exec, CommandError)
    assert "--to a" in "".join(capsys.readouterr())
    assert not shell.ran("%%aiflow run g --to nowhere\nHi").success
    assert shell.ran("%%aiflow run g --to b\nHi").success


def test_b_returns_a_handle_of_a_run_that_goes_on(shell, provider, capsys):
    provider.pieces = ["Hello", None]
    handle = shell.ran("%%aiflow -b -o run\nHi").result
    assert shell.user_ns["run"] is handle
    assert not handle.done()
    capsys.readouterr()
    shell.ran("%aiflow runs")
    assert f"{handle.id}  " in (runs := capsys.readouterr().out)
    assert "running" in runs
    shell.ran(f"%aiflow cancel {handle.id[:4]}")
    assert f"{handle.id} question: cancelled" in capsys.readouterr().out
    assert handle.done()
    assert provider.open == 0
    shell.ran("%aiflow cancel")
    assert "nothing to cancel" in capsys.readouterr().out


def test_graphs_and_help_are_printed(shell, capsys):
    shell.ran("%aiflow graphs")
    assert "no graph is defined yet" in capsys.readouterr().out
    shell.ran(GRAPH)
    capsys.readouterr()
    shell.ran("%aiflow graphs")
    assert capsys.readouterr().out.strip() == "flow"
    shell.ran("%aiflow")
    assert "--max-tokens" in capsys.readouterr().out
    for cell in ("%%aiflow run --help\n\n", "%aiflow run --help", "%aiflow help run"):
        assert shell.ran(cell).success
        assert capsys.readouterr().out.startswith("usage: %%aiflow run ")
    assert shell.ran("%aiflow runs --help").success
    assert capsys.readouterr().out.startswith("usage: %aiflow runs\n")


def test_an_interrupt_of_a_line_is_one_line(shell, the_host, monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(the_host, "handles", interrupt)
    assert isinstance(shell.ran("%aiflow runs").error_in_exec, KeyboardInterrupt)
    assert "".join(capsys.readouterr()).strip() == "KeyboardInterrupt: stopped"


@pytest.mark.parametrize("call", ["result()", "result(9)", "cancel()", "offer('ask', 'Hi')", "drain()", "stop('ask')"])
def test_an_interrupt_of_a_handle_is_one_line_and_the_run_goes_on(shell, provider, monkeypatch, capsys, call):
    from aiflow_kernel.handle import RunHandle

    def interrupt(*_):
        raise KeyboardInterrupt

    provider.pieces = [None]
    shell.ran("%%aiflow -b -o job\nHi")
    for name in ("wait", "result", "cancel", "offer", "drain", "stop"):
        monkeypatch.setattr(RunHandle, name, interrupt)
    capsys.readouterr()
    assert isinstance(shell.ran(f"job.{call}").error_in_exec, KeyboardInterrupt)
    so = "it was told to stop" if call.startswith("cancel") else "it goes on"
    told = f"KeyboardInterrupt: run 'question' is not waited for any longer; {so}"
    assert "".join(capsys.readouterr()).strip() == told
    assert not shell.user_ns["job"].done()
    monkeypatch.undo()
    assert shell.user_ns["job"].cancel()


def test_a_second_interrupt_says_that_nobody_waits_any_longer(shell, provider, monkeypatch, capsys):
    from aiflow_kernel.handle import RunHandle

    def interrupt(*_):
        raise KeyboardInterrupt

    provider.pieces = [None]
    monkeypatch.setattr(RunHandle, "wait", interrupt)
    ran = shell.ran("%%aiflow\nHi")
    assert isinstance(ran.error_in_exec, KeyboardInterrupt)
    told = "".join(capsys.readouterr())
    assert "told to stop, and is not waited for any longer: %aiflow runs shows it" in told
    assert "does not answer" not in told


def test_a_handle_that_is_not_ready_in_time_says_what_of(shell, provider):
    provider.pieces = [None]
    shell.ran("%%aiflow -b -o job\nHi")
    with pytest.raises(TimeoutError, match="run 'question' is running: not in time"):
        shell.user_ns["job"].result(0.01)
    assert shell.user_ns["job"].cancel()


def test_loading_twice_changes_nothing(shell, the_host):
    shell.ran(GRAPH)
    magic = shell.magics_manager.magics["cell"]["aiflow"]
    assert shell.ran("%load_ext aiflow_jupyter").success
    assert shell.magics_manager.magics["cell"]["aiflow"] is magic
    assert shell.ran("%%aiflow run flow\nHi").success


def test_unloading_takes_the_magics_and_the_thread_and_loading_brings_them_back(shell, the_host, provider):
    shell.ran("%%aiflow\nHi")
    assert the_host.running
    assert shell.ran("%unload_ext aiflow_jupyter").success
    assert not the_host.running
    assert provider.closed == 1
    assert not shell.ran("%%aiflow\nHi").success
    assert shell.ran("%load_ext aiflow_jupyter").success
    assert shell.ran("%%aiflow\nHi").result.text == "Hello world"


def test_reload_ext_works(shell):
    assert shell.ran("%reload_ext aiflow_jupyter").success
    assert shell.ran("%%aiflow\nHi").success


def test_an_unconfigured_tier_is_an_error_of_its_own(shell, provider):
    provider.pieces = [ConfigError("tier 'hpc' is not configured")]
    assert isinstance(shell.ran("%%aiflow --tier hpc\nHi").error_in_exec, ConfigError)


def test_loading_imports_neither_widgets_nor_providers(shell):
    """What a second shell of a fresh process pays for `%load_ext`."""
    import subprocess
    import sys

    code = (
        "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "s = InteractiveShell.instance(); before = set(sys.modules)\n"
        "s.run_line_magic('load_ext', 'aiflow_jupyter')\n"
        "heavy = {'ipywidgets', 'anywidget', 'httpx', 'lark', 'pydantic', 'rich'} & (set(sys.modules) - before)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
