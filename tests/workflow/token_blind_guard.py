"""A program of `test_chaos.py`: chaos over a completion guard in whose source the item takes the place of the token.

`python -m tests.workflow.token_blind_guard DATABASE [intact]` prints the report as JSON. Only duels are run, in which
a claim is taken over while its owner stands still: a process that is dead completes nothing late, whatever the guard.
"""

import json
import shutil
import sys
from pathlib import Path

from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.ledger import completions, store
from rulegen_dagster.workflow.chaos import Chaos, report_of
from rulegen_dagster.workflow.chaos_plan import Kind

# The statement that completes, beside the one that fails.
THEN_ACCEPT = f"""*_guard(now))
{" " * 16}.values(
{" " * 20}state=WorkState.SUCCEEDED"""
CONDITION = 'work_item.c.token == row["token"], '
SAME_ITEM = '*(work_item.c[name] == row[name] for name in ("job_id", "stage", "item_key", "stage_version")), '


def cut_the_token_condition() -> None:
    source = Path(completions.__file__).read_text(encoding="utf-8")
    assert source.count(CONDITION + THEN_ACCEPT) == 1, "the guard's token condition is spelled in another way now"
    mutated = source.replace(CONDITION + THEN_ACCEPT, SAME_ITEM + THEN_ACCEPT)
    exec(compile(mutated, completions.__file__, "exec"), vars(completions))  # noqa: S102 (it is the mutation)
    vars(store)["Completions"] = completions.Completions


if __name__ == "__main__":
    database, *rest = sys.argv[1:]
    if rest != ["intact"]:
        cut_the_token_condition()
    report = Chaos(url=database, only=(Failpoint.PROVIDER_AFTER_ANSWER,), kinds=frozenset({Kind.DUEL})).run()
    if report.folder is not None:
        shutil.rmtree(report.folder)
    print(json.dumps(report_of(report)))
