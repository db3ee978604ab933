"""The report: every claim beside our numbers, with all tables and figures, as Markdown; the claims also as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandem.experiments.claims import VERDICTS, CheckedClaim, Verdict
from tandem.experiments.tables import write_data
from tandem.io.tables import write_text

REPORT, CLAIMS = "report.md", "claims"
LEGEND = (
    "Intervals are 95 % bootstrap intervals over seeds. Comparisons (*A vs B*) are signed so that positive numbers "
    "support the claim; over a sweep the smallest is shown. A claim *agrees* with our results if the interval of every "
    "comparison lies above zero, *disagrees* if one lies below zero, and is *open* otherwise. Claims of the paper are "
    "in our words; *our goal* marks what we wanted our own algorithm to achieve."
)


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ReportSection:
    """An experiment in the report."""

    name: str
    title: str
    about: str
    claims: tuple[CheckedClaim, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[str, ...] = ()  # names of files, without their ending


@dataclass(frozen=True)
class Report:
    """Sections under one heading."""

    title: str
    facts: tuple[str, ...]  # scale, algorithms and conditions of the results
    sections: tuple[ReportSection, ...]

    def verdicts(self) -> dict[Verdict, int]:
        """Count the claims by verdict."""
        found = [one.verdict for section in self.sections for one in section.claims]
        return {verdict: found.count(verdict) for verdict in VERDICTS}

    def claims(self) -> list[dict[str, str]]:
        """Return the claims as rows of text."""
        return [
            {
                "experiment": section.name,
                "id": one.claim.id,
                "claim": one.claim.text,
                "paper": one.claim.paper,
                "ours": one.numbers,
                "verdict": one.verdict,
            }
            for section in self.sections
            for one in section.claims
        ]


def write_report(report: Report, out: Path) -> None:
    """Write report.md and claims.csv."""
    write_text(out / REPORT, render_markdown(report))
    if report.claims():
        write_data({CLAIMS: report.claims()}, out)


def render_markdown(report: Report) -> str:
    """Render the report as Markdown."""
    counts = report.verdicts()
    summary = (
        f"{sum(counts.values())} claims: {counts['agrees']} agree, {counts['disagrees']} disagree, "
        f"{counts['open']} open."
    )
    parts = [f"# {report.title}", "\n".join(f"- {fact}" for fact in report.facts), LEGEND, summary]
    for section in report.sections:
        parts += [f"## {section.title}", f"`tandem reproduce {section.name}`. {section.about}"]
        parts += [f"![{section.title}]({name}.png)" for name in section.figures]
        if section.claims:
            parts.append(_render_table(_claims_table(section)))
        parts += [f"**{table.title}**\n\n{_render_table(table)}" for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _claims_table(section: ReportSection) -> Table:
    rows = tuple((one.claim.text, one.claim.paper, one.numbers, one.verdict) for one in section.claims)
    return Table("", ("claim", "paper", "ours [95 % CI]", "verdict"), rows)


def _render_table(table: Table) -> str:
    rows = [table.headings, tuple("---" for _ in table.headings), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
