"""The code shown in the documents runs as shown."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(document: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("document", ["docs/extending.md", "README.md"])
def test_the_shown_code_runs(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "shown"}
    exec(compile(python_blocks(document), document, "exec"), names)
    if "result" in names:
        assert names["result"].violation_rate.mean() == 0  # type: ignore[attr-defined]
