"""`JobParts`: what gives out jobs, looks at them and changes them, put together for the engine.

It makes the calls of queues and groups, of lists, retries and cancellations of jobs, and of redrives, which share lease
commits and dead letters. The rules are in `topics.engine.queues` and `topics.engine.redrives`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from topics.config import Settings
from topics.engine.commits import Commits
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends
from topics.engine.operations.member_commits import MemberCommits
from topics.engine.queues.claims import Claims
from topics.engine.queues.completions import Completions
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.job_changes import JobChanges
from topics.engine.queues.job_lists import JobLists
from topics.engine.queues.key_looks import KeyLooks
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.queues.looks import Looks
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.redrives.dead_jobs import DeadJobs
from topics.engine.redrives.letter_moves import LetterMoves
from topics.engine.redrives.redrives import Redrives
from topics.engine.registry import EngineStatus, Registry
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.turns import Turns


class JobParts:
    """The parts of one engine that are about jobs. Each field is a part; callers use the parts."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        status: EngineStatus,
        registry: Registry,
        *,
        commits: Commits,
        appends: Appends,
        members: MemberCommits,
        loader: Loader,
        background: BackgroundTasks,
        turns: Turns,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self.lease_commits = lease_commits = LeaseCommits(
            clock, registry, commits=commits, loader=loader, background=background
        )
        self.dead_letters = dead_letters = DeadLetters(
            status,
            registry,
            commits=commits,
            lease_commits=lease_commits,
            appends=appends,
            loader=loader,
            background=background,
        )
        self.completions = Completions(
            status,
            registry,
            commits=commits,
            lease_commits=lease_commits,
            appends=appends,
            loader=loader,
            background=background,
        )
        claims = Claims(
            status,
            commits=lease_commits,
            loader=loader,
            background=background,
            dead_letters=dead_letters,
            looks=Looks(settings, registry, loader),
            key_looks=KeyLooks(settings, loader),
        )
        self.queues = QueueCalls(
            settings,
            registry,
            commits=commits,
            lease_commits=lease_commits,
            claims=claims,
            dead_letters=dead_letters,
            completions=self.completions,
            background=background,
            catch_up=catch_up,
        )
        self.job_lists = JobLists(
            settings,
            registry,
            lease_commits=lease_commits,
            loader=loader,
            turns=turns,
            catch_up=catch_up,
        )
        self.job_changes = JobChanges(
            settings,
            registry,
            commits=commits,
            lease_commits=lease_commits,
            loader=loader,
            turns=turns,
        )
        moves = LetterMoves(
            registry,
            commits=commits,
            lease_commits=lease_commits,
            members=members,
            appends=appends,
            loader=loader,
            turns=turns,
        )
        self.letter_moves = moves
        self.dead_jobs = DeadJobs(settings, registry, moves=moves, loader=loader)
        self.redrives = Redrives(settings, status, registry, moves=moves, loader=loader, background=background)

    async def ended(self) -> None:
        """Wait until no dead letter, no result and no redrive is on its way."""
        await self.dead_letters.ended()
        await self.completions.ended()
        await self.redrives.ended()
