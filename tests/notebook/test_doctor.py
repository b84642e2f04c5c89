"""`aiflow doctor` names what is missing and the command that mends it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiflow_jupyter.errors import ModelMissing
from aiflow_jupyter.notebook import doctor, widget
from aiflow_jupyter.providers import models


def found(what):
    return next(finding for finding in doctor.examine() if finding.what == what)


def test_everything_that_the_magics_need_is_looked_at():
    looked = {finding.what for finding in doctor.examine()}
    assert {"python", "ipykernel", "anywidget", "processor", "engine", "model", "widget", "kernelspec"} <= looked


def test_a_missing_package_is_wrong_and_pip_mends_it(monkeypatch):
    def version(package):
        if package == "anywidget":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(doctor, "version", version)
    finding = found("anywidget")
    assert finding.wrong
    assert finding.mend.endswith("-m pip install anywidget")
    assert not found("ipykernel").wrong


def test_a_missing_engine_is_wrong(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "xllamacpp" else find(name, *a))
    finding = found("engine")
    assert finding.wrong
    assert "aiflow-jupyter[embedded]" in finding.mend


def test_a_missing_model_is_wrong_and_fetching_mends_it(monkeypatch, tmp_path):
    monkeypatch.setenv("AIFLOW_CACHE", str(tmp_path))
    monkeypatch.delenv("AIFLOW_MODEL", raising=False)
    monkeypatch.setattr(models, "default_model", lambda: None)
    finding = found("model")
    assert (finding.wrong, finding.mend) == (True, "aiflow models fetch")


def test_a_model_that_is_named_but_not_there_is_wrong(monkeypatch, tmp_path):
    monkeypatch.setenv("AIFLOW_MODEL", str(tmp_path / "no.gguf"))
    with pytest.raises(ModelMissing):
        models.default_model()
    finding = found("model")
    assert finding.wrong
    assert "no.gguf" in finding.found + finding.mend


def test_a_missing_bundle_is_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(widget, "STATIC", tmp_path)
    assert found("widget").wrong


def test_an_old_processor_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "Path", lambda *_: SimpleNamespace(read_text=lambda **_: "flags : sse2 fma"))
    (finding,) = doctor._processor()
    assert finding.wrong
    assert "avx2, f16c" in finding.found


def test_another_processor_is_no_fault(monkeypatch):
    monkeypatch.setattr(doctor.platform, "machine", lambda: "arm64")
    assert not found("processor").wrong


def test_a_front_end_of_another_environment_is_a_note(monkeypatch, tmp_path):
    other = tmp_path / "jupyter"
    other.write_text("#!/usr/bin/python-of-others\n")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(other) if name == "jupyter" else None)
    finding = found("front end")
    assert not finding.wrong
    assert "another environment" in finding.found
    assert "aiflow lab" in finding.mend


SHELL_HEAD = """#!/bin/sh
'''exec' "{}/python3.11" "$0" "$@"
' '''"""
"""What pip writes where the path is too long for a first line, or has a space."""


@pytest.mark.parametrize("head", ["#!{}/python", "#!{}/python3", SHELL_HEAD])
def test_a_script_elsewhere_that_runs_a_python_of_this_environment_is_of_it(monkeypatch, tmp_path, head):
    link = tmp_path / "jupyter"
    link.write_text(f"{head.format(Path(sys.executable).parent)}\n# -*- coding: utf-8 -*-\n")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(link) if name == "jupyter" else None)
    assert not found("front end").mend


@pytest.mark.parametrize("name", ["python", "python3"])
@pytest.mark.parametrize("script", [b"#!/nowhere/python\n", b"MZ\x90\xff", None])
def test_a_front_end_beside_any_of_this_environments_pythons_is_of_it(monkeypatch, tmp_path, name, script):
    """A kernel is started as `python`, the command as `python3`: both are links to one that all environments share."""
    for each in ("python", "python3"):
        (tmp_path / each).symlink_to(Path(sys.executable).resolve())
    command = tmp_path / "jupyter"
    if script is not None:
        command.write_bytes(script)
    monkeypatch.setattr(sys, "executable", str(tmp_path / name))
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: str(command))
    (finding,) = [each for each in doctor._jupyter() if each.what == "front end"]
    assert (finding.found, finding.mend) == (str(command), "")


def test_an_environment_with_the_same_python_behind_it_is_another_one(monkeypatch, tmp_path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "python").symlink_to(Path(sys.executable).resolve())
    command = tmp_path / "there" / "jupyter"
    command.write_text(f"#!{tmp_path}/there/python\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "here" / "python"))
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: str(command))
    (finding,) = [each for each in doctor._jupyter() if each.what == "front end"]
    assert "another environment" in finding.found


def test_no_front_end_is_a_note(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: None)
    assert found("front end").mend == "start it with: aiflow lab"


def test_an_extension_out_of_sight_is_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [str(tmp_path)])
    for what in ("lab extension", "kernelspec"):
        finding = found(what)
        assert not finding.wrong
        assert finding.mend


def test_a_proxys_address_which_may_hold_a_password_is_not_shown(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.example:1")
    text = "".join(finding.line() for finding in doctor.examine())
    assert "http" in found("proxies").found
    assert "secret" not in text


def test_a_finding_is_one_line_and_its_cure_another():
    assert doctor.Finding("model", "none", wrong=True, mend="fetch").line().split() == [
        "missing",
        "model",
        "none",
        "fetch",
    ]
    assert doctor.Finding("model", "there").line().split() == ["ok", "model", "there"]
