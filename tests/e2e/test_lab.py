"""The way into a real JupyterLab itself."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.e2e


def test_a_cell_runs_and_its_output_shows(open_lab):
    lab = open_lab(["print(6*7)"])
    lab.run_cell(0)
    expect(lab.output(0)).to_have_text("42")
    lab.wait_idle()
    assert lab.outputs_json(0) == [{"name": "stdout", "output_type": "stream", "text": "42\n"}]
    saved = lab.save()
    assert "42" in str(saved["cells"][0]["outputs"])


def test_stop_interrupts_a_sleeping_cell_and_the_next_one_runs(open_lab, tmp_path):
    lab = open_lab(["import time; print('asleep', flush=True); time.sleep(60)", "'awake'"])
    lab.run_cell(0)
    expect(lab.output(0).first).to_contain_text("asleep")
    lab.interrupt()
    expect(lab.output(0).last).to_contain_text("KeyboardInterrupt")
    lab.run_cell(1, wait=True)
    expect(lab.output(1)).to_have_text("'awake'")
    assert lab.screenshot(tmp_path / "lab.png").stat().st_size > 10_000
