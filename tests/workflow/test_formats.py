"""An upload of each format becomes a job, and its clauses lead back to the file from what the ledger keeps."""

import pytest

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.workflow.extract import load_source_map
from rulegen_dagster.workflow.runtime import Runtime
from tests.specs.office_files import docx, paragraph
from tests.specs.pdf_files import Text, pdf
from tests.workflow.conftest import run_stage, submit

SENTENCE = "Meals are limited to $50 per day."
FORMATS = {
    "policy.md": (SENTENCE.encode(), "markdown", "line 1"),
    "policy.txt": (SENTENCE.encode(), "text", "line 1"),
    "policy.html": (f"<!doctype html><h1>Travel</h1><p>{SENTENCE}".encode(), "html", "body/p[1]"),
    "policy.docx": (docx(paragraph(SENTENCE)), "docx", "paragraph 1"),
    "policy.pdf": (pdf([Text(50, 700, "Travel", 16), Text(50, 660, SENTENCE)]), "pdf", "page 1, line 2"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_job_keeps_its_format_and_the_place_of_each_clause(local_runtime: Runtime, name: str) -> None:
    data, spec_format, place = FORMATS[name]
    job = submit(local_runtime, data, file_name=name)

    run_stage(local_runtime, job, Stage.PARSE)

    parsed = local_runtime.ledger.reads.job_by_id(job.job_id)
    (clause,) = local_runtime.ledger.reads.clauses(job.job_id)
    text = local_runtime.blobs.get(str(parsed.canonical_digest)).decode()
    assert parsed.spec_format == spec_format
    assert clause.text == text[clause.start : clause.end] == SENTENCE
    assert load_source_map(local_runtime, job.job_id).location_of(text, clause.start) == place


def test_a_job_that_is_not_parsed_yet_counts_lines(local_runtime: Runtime) -> None:
    job = submit(local_runtime, SENTENCE.encode())

    assert load_source_map(local_runtime, job.job_id).location_of("a\nb", 2) == "line 2"
