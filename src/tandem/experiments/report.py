"""The report: every statement beside what was found, every table and figure, as Markdown and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.experiments.claims import Claim, ReportSection, Table, write_csv
from tandem.io.atomic import atomic_write

MARKDOWN, HTML, STATEMENTS = "report.md", "report.html", "statements.csv"
READING = (
    "Intervals are of 95 %, by bootstrap over seeds. A statement *agrees* if the interval of every difference it is "
    "about lies on its side of zero, *disagrees* if one lies on the other side, and is *open* where seeds do not tell. "
    "Statements of the paper are in our words; those that begin with *Ours* are what we wanted to show."
)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}td,th{border:1px solid #ddd;padding:.3rem .6rem;"
    "text-align:left;vertical-align:top}img{max-width:100%}.agrees{color:#1a7f4b}.disagrees{color:#c43c39}.open{color:#8a6d00}"
)


@dataclass(frozen=True)
class Report:
    """Sections under one heading."""

    title: str
    facts: tuple[str, ...]  # how it was made
    sections: tuple[ReportSection, ...]

    def verdicts(self) -> dict[str, int]:
        """How many statements agree, disagree and are open."""
        said = [statement.verdict for section in self.sections for statement in section.claims]
        return {verdict: said.count(verdict) for verdict in ("agrees", "disagrees", "open")}


def write_report(report: Report, out: Path) -> None:
    """Write report.md, report.html and statements.csv."""
    for name, text in ((MARKDOWN, markdown(report)), (HTML, page(report))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    rows = [(s.name, one.stated, one.found, one.verdict) for s in report.sections for one in s.claims]
    write_csv(out / STATEMENTS, ("experiment", "stated", "found", "verdict"), rows)


def markdown(report: Report) -> str:
    """The report as Markdown."""
    parts = [f"# {report.title}", "\n".join(f"- {fact}" for fact in report.facts), READING, _summary(report)]
    for section in report.sections:
        parts += [f"## {section.title}", f"`tandem reproduce {section.name}`. {section.about}"]
        parts += [f"![{section.title}]({name}.png)" for name in section.figures]
        parts.append(_markdown_table(_statements(section.claims)))
        parts += [f"**{table.title}**\n\n{_markdown_table(table)}" for table in section.tables]
    return "\n\n".join(parts) + "\n"


def page(report: Report) -> str:
    """The report as a page of HTML, with its pictures beside it."""
    parts = [f"<h1>{html.escape(report.title)}</h1>"]
    parts.append("<ul>" + "".join(f"<li>{html.escape(fact)}</li>" for fact in report.facts) + "</ul>")
    parts += [f"<p>{html.escape(READING.replace('*', ''))}</p>", f"<p>{html.escape(_summary(report))}</p>"]
    for section in report.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2><p>{html.escape(section.about)}</p>")
        parts += [f'<img src="{name}.svg" alt="{html.escape(section.title)}">' for name in section.figures]
        parts += [_html_table(table) for table in (_statements(section.claims), *section.tables)]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(report.title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _summary(report: Report) -> str:
    counts = report.verdicts()
    said = f"{counts['agrees']} agree, {counts['disagrees']} disagree, {counts['open']} are open"
    return f"Of {sum(counts.values())} statements {said}."


def _statements(statements: Sequence[Claim]) -> Table:
    return Table("", ("stated", "found", "verdict"), tuple((s.stated, s.found, s.verdict) for s in statements))


def _markdown_table(table: Table) -> str:
    rows = [table.headings, tuple("---" for _ in table.headings), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _html_table(table: Table) -> str:
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.headings)
    rows = "".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in table.rows)
    return f"{title}<table><tr>{head}</tr>{rows}</table>"


def _html_cell(cell: str) -> str:
    kind = f' class="{cell}"' if cell in ("agrees", "disagrees", "open") else ""
    return f"<td{kind}>{html.escape(cell)}</td>"
