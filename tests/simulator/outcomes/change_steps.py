"""What people do with jobs whose outcomes are judged: they look at them, retry and cancel them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.simulator.known import broken
from tests.simulator.outcomes.outcome_facts import JobSource
from tests.simulator.outcomes.outcome_lists import listed, seq_of
from tests.simulator.outcomes.outcome_plans import LETTERS
from tests.simulator.outcomes.outcome_steps import OutcomeSteps
from topics.filters.record_filter import parse_filter
from topics.job_model import JobSelection, ShownJob
from topics.model import Performance


class ChangeSteps(OutcomeSteps):
    """Lists, retries and cancels jobs."""

    @staticmethod
    def _chosen(source: JobSource, what: Mapping[str, Any]) -> list[int]:
        """Some of the seqs that anybody was told of."""
        known = sorted(source.at)
        start = int(what["share"] * len(known))
        return known[start : start + what["count"]]

    async def do_cancel_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Cancel jobs by their seqs, or all of a tag."""
        source = self._source(what)
        if source is None:
            return
        rules, tag = self.truth.outcomes, what["tag"]
        if tag is None:
            seqs = self._chosen(source, what)
            selection = JobSelection(seqs, None)
            rules.ends(source, seqs)
        else:
            seqs = rules.cancelling(source, tag)
            selection = JobSelection(None, parse_filter(f'["tag","Eq","{tag}"]'))
        if tag is None and not seqs:
            return
        with self._refusable():
            changed = await self.engine.job_changes.cancel(source.name, selection, Performance(), source.group)
            self._alive()
            # Where a letter may be, a group may get its record again.
            sure = not changed.skipped and (tag is None or source.group is None or not source.buries)
            if sure:
                rules.ended(source, seqs, self.truth.tick(), cancelled=True)
            rules.checked["cancelled"] += changed.done

    async def do_retry_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have delayed jobs come at once."""
        source = self._source(what)
        seqs = self._chosen(source, what) if source is not None else []
        if source is None or not seqs:
            return
        for seq in seqs:
            if seq in source.leases:
                source.leases[seq].again_ms = 0
        begun = source.begun
        with self._refusable():
            selection = JobSelection(seqs, None, "delayed")
            changed = await self.engine.job_changes.retry(source.name, selection, Performance(), source.group)
            self._alive()
            self.truth.outcomes.checked["retried"] += changed.done
            if changed.skipped or source.begun != begun or source.unanswered:
                return
            delayed = await listed(self.engine, source.name, source.group, "delayed")
            self._alive()
            if source.begun == begun and not delayed.keys().isdisjoint(seqs):
                broken(f"{source.where}: {seqs} were retried, and {delayed} are delayed")

    async def do_list_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Look at all jobs of a state, or of any."""
        source, state = self._source(what), what["state"]
        if source is None or (state == "dead" and not source.buries):
            return
        rules, since = self.truth.outcomes, self.truth.tick()
        held = {lease.seq: lease for lease in source.held(self.now(), self.truth.life) if lease.life == self.truth.life}
        sure = [seq for seq, number in source.at.items() if rules.jobs[number].must_be]
        with self._refusable():
            dead = LETTERS if state == "dead" else None
            jobs = await listed(self.engine, source.name, source.group, None if state == "dead" else state, dead=dead)
            self._alive()
            rules.checked["listed"] += len(jobs)
            for job in jobs.values():
                self._check_record(source, job, is_letter=dead is not None)
            if dead is not None:
                return
            over = [seq for seq in jobs if source.ended_since.get(seq, since) < since]
            if any(jobs[seq].state != "delayed" or seq in source.cancelled for seq in over):
                broken(f"{source.where}: {over} were finished, and listed are {jobs}")
            still = {lease.seq for lease in source.held(self.now(), self.truth.life)}
            for seq, lease in held.items():
                found = jobs.get(seq)
                if seq not in still or source.leases[seq] is not lease or self.truth.rot:
                    continue
                is_right = found is not None and (found.state, found.node) == ("in_flight", lease.node)
                if (not is_right and state in (None, "in_flight")) or (found is not None and not is_right):
                    broken(f"{source.where}: {lease} holds, and listed is {found}")
            left = [seq for seq in sure if seq not in jobs and rules.jobs[source.at[seq]].must_be]
            if state is None and left and not source.buries and not self.truth.rot:
                broken(f"{source.where}: {left} are there, and listed are {jobs}")

    def _check_record(self, source: JobSource, job: ShownJob, *, is_letter: bool) -> None:
        row = msgspec.json.decode(b"{" + job.record)
        number = row["data"]["n"]
        if not is_letter:
            self.truth.outcomes.tell(source, seq_of(job), number)
        known = self.truth.outcomes.jobs.get(number)
        if known is None or row.get("$tag") != known.tag or (job.state == "dead") != is_letter:
            broken(f"{source.where}: {job} is listed, and was {known}")
