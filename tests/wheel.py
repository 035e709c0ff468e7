"""Install a wheel in a new environment without compilers, and run the README there (``make test-wheel``).

python tests/wheel.py FOLDER     of the wheel
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from first_calls import CALLS, beyond_libraries

ROOT = Path(__file__).parents[1]


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*manylinux*.whl")
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        venv.create(place / "bare", with_pip=True)
        python = str(place / "bare" / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-c", ROOT / "constraints.txt"]
        run([*install, f"diffbisim[torch] @ {wheel.resolve().as_uri()}"], place)
        (place / "readme.py").write_text(python_of(ROOT / "README.md"), encoding="utf-8")
        run([python, place / "readme.py"], place)
        for kind in CALLS:
            took = beyond_libraries(python, kind)
            print(f"first call of {kind}: {took:.2f} s")
            assert took <= 0.5, kind


def python_of(path: Path) -> str:
    """Return the blocks of Python of a text, one after another."""
    found = re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "\n".join(found)


def run(command: list[object], place: Path) -> None:
    """Run a command where no compiler can be found."""
    environment = os.environ | {"PATH": str(place / "bare" / "bin"), "HOME": str(place), "CC": "", "CXX": ""}
    environment.pop("PYTHONPATH", None)
    subprocess.run([str(part) for part in command], cwd=place, env=environment, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
