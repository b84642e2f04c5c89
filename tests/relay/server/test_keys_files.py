"""Private files are written whole or not at all, and what is in the way is said in one message."""

from __future__ import annotations

import errno
import os

import pytest
from click.testing import CliRunner

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.hpc.command import worker_key
from aiflow_jupyter.relay.capability import Secret
from aiflow_jupyter.relay.command import keys as keys_command
from aiflow_jupyter.relay.command import relay as relay_command
from aiflow_jupyter.relay.keys import KeyStore
from aiflow_jupyter.relay.private import write_private


@pytest.fixture
def full_disk(monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)


def commands(folder):
    return [
        (relay_command, ["--state", str(folder), "--port", "0"]),
        (keys_command, ["relay", "add", "alice", "--state", str(folder)]),
        (worker_key, ["--file", str(folder / "worker.key")]),
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_full_disk_is_one_message_and_leaves_no_file(tmp_path, full_disk, number):
    command, words = commands(tmp_path)[number]
    error = CliRunner().invoke(command, words).exception
    assert isinstance(error, ConfigError)
    assert (error.code, "No space left" in error.message) == ("AF971", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", range(3))
def test_a_place_below_a_file_is_one_message(tmp_path, number):
    (tmp_path / "file").write_text("")
    command, words = commands(tmp_path / "file" / "x")[number]
    error = CliRunner().invoke(command, words).exception
    assert isinstance(error, ConfigError)
    assert "Not a directory" in error.message


def test_a_full_disk_keeps_the_keys_that_were_there(tmp_path, monkeypatch):
    store = KeyStore(tmp_path / "keys.json")
    key = store.add("alice")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(ConfigError):
            store.add("bob")
    assert [known.name for known in store.names()] == ["alice"]
    assert KeyStore(tmp_path / "keys.json").find(key)


@pytest.mark.parametrize(("name", "number"), [("secret", 0), ("keys.json", 0), ("keys.json", 1), ("worker.key", 2)])
def test_an_empty_file_is_said_to_be_empty_and_can_be_deleted(tmp_path, name, number):
    path = tmp_path / name
    path.touch(mode=0o600)
    command, words = commands(tmp_path)[number]
    error = CliRunner().invoke(command, words).exception
    assert isinstance(error, ConfigError)
    assert "is empty" in error.message
    assert "deleted" in error.hint


def test_a_secret_that_another_relay_wrote_meanwhile_is_kept(tmp_path):
    path = tmp_path / "secret"
    assert write_private(path, "first")
    assert not write_private(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_gets_its_files_too(tmp_path, monkeypatch):
    def no_links(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "secret"
    Secret.load(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_of_deep_nesting_is_no_key_file(tmp_path):
    path = tmp_path / "keys.json"
    path.touch(mode=0o600)
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="not a file of relay keys"):
        KeyStore(path)
