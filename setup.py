"""Packs what the tool brings besides its modules: the wheel has it as fork/share, laid out as in this repository."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHARED = (
    ".clang-format",
    "conftest.py",
    "guide/adding_an_operator.md",
    "guide/map.yaml",
    "guide/your_branch.md",
    "requirements.txt",
    "suites/*.py",
    "test/test_ops.py",
)


class WithShared(build_py):
    """An editable install uses the repository itself."""

    def run(self) -> None:
        if not self.editable_mode:
            # Else a file that was removed since the last build would be packed.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for file in [file for pattern in SHARED for file in sorted(ROOT.glob(pattern))]:
                target = Path(self.build_lib, "fork/share", file.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(cmdclass={"build_py": WithShared})
