"""A project's file that the user has looked at counts as their own, until it changes."""

from __future__ import annotations

import stat

import pytest
from click.testing import CliRunner

from aiflow_jupyter.cli import main
from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.tiers import config, trust

WANTS = '[tiers.cloud]\nurl = "https://llm.lab.example/v1"\nkey_env = "LAB_KEY"\nmodel = "m"\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("AIFLOW_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (folder / "aiflow.toml").write_text(WANTS)
    return folder / "aiflow.toml"


def run(*words, answer=None):
    return CliRunner().invoke(main, ["trust", *map(str, words)], input=answer)


def test_a_file_that_nobody_trusts_points_nowhere(project):
    with pytest.raises(ConfigError, match=r"tiers\.cloud\.url, tiers\.cloud\.key_env may not stand"):
        config.load()


def test_trust_shows_what_it_allows_and_asks(project):
    shown = run(answer="n\n")
    assert shown.exit_code == 1
    assert f"{project} would be allowed to set" in shown.output
    assert 'tiers.cloud.url = "https://llm.lab.example/v1"   (questions of this tier go there)' in shown.output
    assert 'tiers.cloud.key_env = "LAB_KEY"   (this variable\'s content is sent along)' in shown.output
    assert "tiers.cloud.model" not in shown.output
    assert not trust.store().exists()
    assert run(answer="").exit_code == 1
    assert not trust.store().exists()
    assert run(answer="y\n").exit_code == 0
    assert config.load().tiers.cloud.url == "https://llm.lab.example/v1"


def test_a_trusted_file_that_changes_is_a_stranger_again(project):
    assert run("--yes").exit_code == 0
    project.write_text(WANTS.replace("lab", "evil"))
    with pytest.raises(ConfigError, match="may not stand") as caught:
        config.load()
    assert "it was trusted and has changed since" in caught.value.hint
    project.write_text(WANTS)
    assert config.load().tiers.cloud is not None


def test_the_same_content_elsewhere_is_not_trusted(project, tmp_path, monkeypatch):
    assert run("--yes").exit_code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "aiflow.toml").write_text(WANTS)
    monkeypatch.chdir(other)
    with pytest.raises(ConfigError, match="may not stand"):
        config.load()


def test_what_is_trusted_is_noted_where_only_its_owner_reads_it(project):
    run("--yes")
    assert stat.S_IMODE(trust.store().stat().st_mode) == 0o600
    assert "lab.example" not in trust.store().read_text()


def test_trust_does_not_raise_a_budget_or_loosen_the_floor(project, tmp_path):
    own = tmp_path / "config" / "aiflow-jupyter" / "aiflow.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[budget]\nday = 1\n[route]\nstay = "institution"\n')
    prices = "price_in = 1\nprice_out = 1\n"
    project.write_text(f'{WANTS}{prices}[route]\nstay = "anywhere"\n')
    assert "route.stay may only be stricter" in run("--yes").output
    trust.trust(project, project.read_bytes())  # as if it had been before the user's own became stricter
    with pytest.raises(ConfigError, match=r"route\.stay may only be stricter"):
        config.load()
    project.write_text(f"{WANTS}{prices}[budget]\nday = 9\n")
    assert "budget.day may only be lower" in run("--yes").output


def test_a_key_in_a_projects_file_is_refused_and_not_shown(project):
    project.write_text(f'[tiers.cloud]\nmodel = "m"\nkey = "sk-{"c" * 40}"\n')
    shown = run("--yes")
    assert shown.exit_code == 1
    assert "holds an API key" in shown.output
    assert "cccc" not in shown.output


def test_a_file_that_only_chooses_needs_no_trust(project):
    project.write_text('[tiers.local]\nmodel = "small"\n')
    assert "needs no trust" in run().output
    assert not trust.store().exists()


def test_a_file_of_a_tier_that_the_user_has_not_needs_no_trust_where_it_only_chooses(project):
    project.write_text('[tiers.cloud]\nmodel = "x"\n[tiers.hpc]\nmodel = "y"\n')
    shown = run()
    assert (shown.exit_code, "needs no trust" in shown.output) == (0, True)
    assert config.load().tiers.cloud is None


def test_list_and_remove(project):
    assert run("--list").output == "no project's file is trusted\n"
    assert "was not trusted" in run("--remove").output
    run("--yes")
    assert run("--list").output == f"trusted  {project}\n"
    assert "is trusted already" in run("--yes").output
    project.write_text("")
    assert run("--list").output == f"changed  {project}\n"
    project.unlink()
    assert run("--list").output == f"gone     {project}\n"
    assert "is trusted no more" in run("--remove", project).output
    assert run("--list").output == "no project's file is trusted\n"


def test_a_folder_stands_for_its_file(project, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(project.parent, "--yes").exit_code == 0
    assert str(project) in run("--list").output


def test_a_file_that_is_not_there(project):
    shown = run("nowhere.toml")
    assert shown.exit_code == 1
    assert "nowhere.toml is not there" in shown.output


@pytest.mark.parametrize("words", [("--list", "--remove"), ("--list", "x"), ("--list", "--yes")])
def test_list_stands_alone(project, words):
    assert run(*words).exit_code == 2


def test_control_characters_of_a_file_do_not_steer_the_terminal(project):
    project.write_text('[tiers.cloud]\nmodel = "m"\nurl = "https://a\\u001b[2Kb"\n"x\\u001b[1A" = 1\n')
    assert "\x1b" not in run(answer="n\n").output


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "{", "[" * 100_000])
def test_a_damaged_list_trusts_nothing_and_says_so(project, text):
    run("--yes")
    trust.store().write_text(text)
    with pytest.raises(ConfigError, match="is damaged, so nothing is trusted") as caught:
        config.load()
    assert (caught.value.code, f"rm {trust.store()}" in caught.value.hint) == ("AF728", True)


def test_a_list_that_others_could_have_written_trusts_nothing(project):
    run("--yes")
    trust.store().chmod(0o666)
    with pytest.raises(ConfigError, match="may be read or written by others"):
        config.load()


def test_a_repository_can_not_bring_its_own_list(project, monkeypatch):
    run("--yes")
    brought = project.parent / "trusted.json"
    trust.store().replace(brought)
    (project.parent / "mine.toml").write_text("")
    monkeypatch.setenv("AIFLOW_CONFIG", str(project.parent / "mine.toml"))
    with pytest.raises(ConfigError, match="may not stand"):
        config.load()


def test_trust_counts_at_once(project):
    before = config.stamp()
    run("--yes")
    assert config.stamp() != before


def test_a_key_file_of_a_trusted_project_is_beside_it(project):
    project.write_text(WANTS.replace('key_env = "LAB_KEY"', 'key_file = "lab.key"'))
    run("--yes")
    assert config.load().tiers.cloud.key_file == project.parent / "lab.key"


def test_the_name_of_a_model_can_not_look_like_something_else(project):
    project.write_text(f'{WANTS}[tiers.cloud.models."x\u00a0=\u00a01  tiers.cloud.y"]\nprice_in = 1\nprice_out = 1\n')
    shown = run(answer="n\n")
    assert shown.exit_code == 1
    assert "x = 1" not in shown.output


def test_what_would_be_refused_all_the_same_is_not_asked_about(project):
    config.user_file().parent.mkdir(parents=True)
    config.user_file().write_text("[budget]\nday = 1\n")
    project.write_text('[tiers.local]\nkeep_alive = "1h"\nprovider = "ollama"\n[budget]\nday = 2\n')
    shown = run("--yes")
    assert (shown.exit_code, trust.store().exists()) == (1, False)
    assert "budget.day may only be lower" in shown.output


def test_a_trusted_file_lowers_no_price_below_the_user_s_own(project):
    config.user_file().parent.mkdir(parents=True)
    config.user_file().write_text(f"{WANTS}price_in = 3\nprice_out = 15\n[budget]\nday = 1\n")
    project.write_text("[tiers.cloud]\nprice_in = 0\nprice_out = 0\n")
    assert "may not be lower than your own" in run("--yes").output


def test_in_a_folder_that_is_gone_there_is_nothing_to_trust(project):
    project.unlink()
    project.parent.rmdir()
    assert run("--yes").exit_code == 1
