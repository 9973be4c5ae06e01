"""A skip of one test hides no failure of another (tests/conftest.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = "import pytest\ndef test_a(): pytest.skip('b is not installed')\n"
MODULE = "import pytest\npytest.skip('b is not installed', allow_module_level=True)\n"
PASSES = "def test_b(): pass\n"
FAILS = "def test_c(): assert 0\n"
BREAKS = "import pytest\n@pytest.fixture\ndef d(): raise OSError\ndef test_d(d): pass\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (SKIPS, 77),
        (MODULE, 77),
        (PASSES, 0),
        (SKIPS + PASSES, 0),
        (SKIPS + FAILS, 1),
        (SKIPS + PASSES + FAILS, 1),
        (SKIPS + BREAKS, 1),
        ("import nothing_of_that_name\n", 2),
        ("", 5),
    ],
)
def test_statuses(tmp_path: Path, text: str, status: int) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
