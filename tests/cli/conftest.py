"""The command line in process, for tests of what it prints and refuses."""

from collections.abc import Callable

import pytest

from tandem.cli.main import main

Result = tuple[int, str, str]


@pytest.fixture
def tandem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run ``tandem`` with arguments: exit code, stdout, stderr."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr("sys.argv", ["tandem", *arguments])
        try:
            main()
            code: object = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return int(code or 0), captured.out, captured.err

    return run
