"""The rule of tests/conftest.py: in ``.ci/run`` a test that is skipped has failed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAYS = {
    "mark": "@pytest.mark.skip(reason='dark')\ndef test():\n    pass\n",
    "condition": "@pytest.mark.skipif(True, reason='dark')\ndef test():\n    pass\n",
    "call": "def test():\n    pytest.skip('dark')\n",
    "fixture": "@pytest.fixture\ndef f():\n    pytest.skip('dark')\n\ndef test(f):\n    pass\n",
    "module": "pytest.skip('dark', allow_module_level=True)\n",
    "import": "pytest.importorskip('dark')\n",
}


def test_a_skip_is_a_failure_where_nothing_may_be_skipped(tmp_path):
    for way, text in WAYS.items():
        (tmp_path / f"test_{way}.py").write_text(f"import pytest\n\n{text}")
    options = ["-p", "xdist", "-p", "conftest", "-p", "no:cacheprovider", "-n", "1", "--continue-on-collection-errors"]
    lean = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for rule in ("", "1"):
        settings = {**lean, "DIFFBISIM_NO_SKIPS": rule}
        command = [sys.executable, "-m", "pytest", *options, "--rootdir", ".", "."]
        run = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
        assert (run.returncode != 0) == bool(rule), run.stdout
        assert [way for way in WAYS if (f"test_{way}.py" in run.stdout) != bool(rule)] == []
        assert run.stdout.count("nothing may be skipped here") >= (len(WAYS) if rule else 0)
        assert ("6 skipped" in run.stdout) == (not rule)


def test_the_rule_holds_in_ci(tmp_path):
    """``.ci/run`` with a make that does nothing but tell how it was called."""
    for name in ("make", "chromium"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$@ with no skips: $DIFFBISIM_NO_SKIPS"\n')
        (tmp_path / name).chmod(0o755)
    settings = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([ROOT / ".ci" / "run"], env=settings, capture_output=True, text=True, check=True)
    told = run.stdout.splitlines()
    assert "test with no skips: 1" in told
    assert all(line.endswith("with no skips: 1") for line in told)
