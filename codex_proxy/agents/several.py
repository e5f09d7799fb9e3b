"""Combines several agents of a server into one `Agent`, which passes each turn to the agent that has the turn's
model; and repeats failed attempts of a server with a single upstream.

Clients name a model `NAME/MODEL`; the agent NAME gets only MODEL. Content that only one agent can decrypt is marked
with that agent's name. A turn for an upstream (a model server) may take several attempts, also at other upstreams,
until its answer begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakKeyDictionary

import msgspec

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, AgentBase, ProcessCounts
from codex_proxy.agents.attempts import AttemptPlan, NextAttempt, UpstreamTarget
from codex_proxy.agents.dialect import Capability
from codex_proxy.agents.failover import FailoverSession, UpstreamAttempt
from codex_proxy.agents.member import Member, UpstreamNotAskedError, UpstreamRules
from codex_proxy.agents.origin_marks import OriginMarks
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn

Listed = tuple[tuple[AgentModel, ...], ...]


class SeveralAgents(AgentBase):
    """An `Agent` that passes each turn to one of its members, by the turn's model. The first member is the default.
    It has no warning, limits and missing features itself, since each member has its own. A model's name that does
    not begin with a member's name must be in the list of models.
    """

    name = "several"
    version = __version__

    def __init__(
        self,
        members: Mapping[str, Member],
        chance: Callable[[], float],
        *,
        defaults: Mapping[str, str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`members` are the agents by name. `chance` returns a random number from 0 to 1, which varies the seconds
        between attempts. `defaults`: the default models that the operator has set, by member. `sleep` waits for a
        number of seconds.
        """
        super().__init__()
        self._members = dict(members)
        self.members = dict[str, Agent](members)
        self._chance = chance
        self._sleep = sleep
        self._defaults = defaults or {}
        self._listed: Listed = ()
        self._models: tuple[AgentModel, ...] = ()
        self._member_of_session: WeakKeyDictionary[AgentSession, Member] = WeakKeyDictionary()
        """The member that opened each session that is not a `FailoverSession`."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of all members together. `agent_for` returns the member for a model, which
        has its own.
        """
        return frozenset().union(*(member.capabilities for member in self._members.values()))

    async def start(self) -> None:
        """Starts all members at the same time. Raises `Fault` only if no member could start. If some could not,
        `trouble` of each of them says why.
        """
        await asyncio.gather(*(member.start() for member in self._members.values()))
        troubles = {
            name: member.trouble() for name, member in self._members.items() if not member.has_started
        }
        if len(troubles) == len(self._members):
            told = "; ".join(f"{name}: {why.message}" for name, why in troubles.items() if why is not None)
            message = f"None of the agents can start. {told}"
            raise Fault(Failure(kind=FaultKind.AGENT_MISCONFIGURED, message=message))

    async def open(self, turn: Turn) -> AgentSession:
        """Opens a session with the member that has the turn's model. If the member is an upstream, the session
        begins with the first attempt that can be opened, at it or at one of its fallbacks. Raises `Fault` if none
        can be opened.
        """
        name, model = self._agent_and_model(turn.model)
        member = self._members[name]
        if member.rules is None:
            session = await member.open(_turn_for(turn, name, model))
            session.origin = OriginMarks(name)
            self._member_of_session[session] = member
            return session
        targets = self._targets(name, model, turn)
        if turn.forwarded is not None:  # what others make of it could not be passed on as it is
            able = (target for target in targets if "forwarding" in self._members[target.name].capabilities)
            targets = [targets[0], *(target for target in able if target is not targets[0])]

        async def opened(target: UpstreamTarget, may_wait: bool) -> UpstreamAttempt:
            asked = self._members[target.name]
            given = _turn_for(turn, target.name, target.model)
            return UpstreamAttempt(asked, await asked.open(given, may_wait=may_wait))

        return await _failover_session(AttemptPlan(targets, self._chance), opened, self._sleep)

    def _targets(self, name: str, model: str, turn: Turn) -> list[UpstreamTarget]:
        """Returns the upstreams for the attempts of a turn: the upstream `name` with its `model`, then its
        fallbacks in the order of the settings, each with its own name for the model. Those that the client may not
        use are left out.
        """
        targets = []
        rules = self._members[name].rules
        allowed = turn.origin.agents
        fallback = rules.fallback if rules is not None else ()
        chain = ((name, model), *(each for each in fallback if allowed is None or each[0] in allowed))
        for other, its_model in chain:
            its_rules = self._members[other].rules
            assert its_rules is not None, "only upstreams stand in for one"
            targets.append(
                UpstreamTarget(
                    other,
                    its_model or self._same_model(other, model),
                    _retries(its_rules, turn),
                    its_rules.retry_wait,
                )
            )
        return targets

    def _same_model(self, name: str, model: str) -> str:
        """Returns the name of the model if the other upstream `name` has it; else that upstream's default model,
        empty if none is set.
        """
        member = self._members[name]
        if member.any_model or any(each.id == model for each in member.models()):
            return model
        return self._defaults.get(name, "")

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        if isinstance(session, FailoverSession):
            await session.release_last(finished=finished)
            return
        await self._member_of_session.pop(session).release(session, finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models of all members as `NAME/MODEL`. The same object as long as they are unchanged."""
        listed = tuple(member.models() for member in self._members.values())
        if len(listed) != len(self._listed) or any(
            new is not old for new, old in zip(listed, self._listed, strict=True)
        ):
            first = next(iter(self._members))
            self._models = tuple(
                self._named(name, model, is_default=name == first)
                for name, models in zip(self._members, listed, strict=True)
                for model in models
            )
            self._listed = listed
        return self._models

    def _named(self, name: str, model: AgentModel, *, is_default: bool) -> AgentModel:
        default = self._defaults.get(name)
        own = model.is_default if default is None else model.id == default
        return msgspec.structs.replace(
            model, id=f"{name}{MODEL_SEPARATOR}{model.id}", agent=name, is_default=is_default and own
        )

    async def ask_limits(self) -> None:
        await asyncio.gather(*(member.ask_limits() for member in self._members.values()))

    def processes(self) -> ProcessCounts:
        """Returns the counts of processes, summed over all members."""
        counts = [member.processes() for member in self._members.values()]
        return ProcessCounts(
            idle=sum(each.idle for each in counts),
            busy=sum(each.busy for each in counts),
            restarts=sum(each.restarts for each in counts),
        )

    def trouble(self) -> Failure | None:
        """Returns the failure of the first member if every member has one, so that no turn can be served; else
        None.
        """
        troubles = [member.trouble() for member in self._members.values()]
        return troubles[0] if None not in troubles else None

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self._members.values()))

    def kill(self) -> None:
        for member in self._members.values():
            member.kill()

    def _agent_and_model(self, model: str) -> tuple[str, str]:
        """Splits `NAME/MODEL` into the member's name and the member's own name for the model (empty for its default
        model). If the text before the slash is no member's name, the whole text is a model of the first member.
        """
        name, _, own = model.partition(MODEL_SEPARATOR)
        if name not in self._members:
            name, own = next(iter(self._members)), model
        return name, own or self._defaults.get(name, "")


def _turn_for(turn: Turn, name: str, model: str) -> Turn:
    """Returns the turn as the member `name` gets it: with the member's own name of the model, and without raw items
    that only other agents can decrypt.
    """
    return msgspec.structs.replace(turn, model=model, history=OriginMarks(name).unmark(turn.history))


class OneUpstream(Member):
    """The `Agent` of a server that has a single agent, which is an upstream. It is a `Member` whose turns may take
    several attempts; clients use the upstream's own model names.
    """

    def __init__(
        self,
        agent: Agent,
        clock: Clock,
        rules: UpstreamRules,
        chance: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`agent` sends the turns to the upstream; `rules` are the limits for it. `chance` returns a random number
        from 0 to 1, which varies the seconds between attempts. `sleep` waits for a number of seconds.
        """

        async def made() -> Agent:
            return agent

        super().__init__(
            agent.name, made, clock, capabilities=agent.capabilities, rules=rules, is_only_agent=True
        )
        self._chance = chance
        self._sleep = sleep

    async def start(self) -> None:
        """Starts the upstream's agent. Raises `Fault` if it cannot start."""
        await super().start()
        trouble = self.trouble()
        if not self.has_started and trouble is not None:
            raise Fault(trouble)

    async def open(self, turn: Turn, *, may_wait: bool = True) -> AgentSession:
        """Returns a session that repeats failed attempts until an answer begins. `may_wait` is ignored: attempts to
        open the session wait for a free slot, and later attempts do not. Raises the `Fault` of the last attempt if
        none could be opened.
        """
        assert self.rules is not None

        async def opened(target: UpstreamTarget, may_wait_now: bool) -> UpstreamAttempt:
            return UpstreamAttempt(self, await super(OneUpstream, self).open(turn, may_wait=may_wait_now))

        target = UpstreamTarget(self.name, turn.model, _retries(self.rules, turn), self.rules.retry_wait)
        return await _failover_session(AttemptPlan([target], self._chance), opened, self._sleep)

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        if isinstance(session, FailoverSession):
            await session.release_last(finished=finished)
        else:
            await super().release(session, finished=finished)


def _retries(rules: UpstreamRules, turn: Turn) -> int:
    """Returns how many times a failed attempt of a turn is repeated at an upstream with these rules: 0 if the turn
    comes from another codex-proxy, which repeats it itself, so that attempts do not multiply along a chain of
    servers.
    """
    return 0 if turn.origin.hops else rules.retries


async def _failover_session(
    plan: AttemptPlan,
    opened: Callable[[UpstreamTarget, bool], Awaitable[UpstreamAttempt]],
    sleep: Callable[[float], Awaitable[None]],
) -> FailoverSession:
    """Returns a session that begins with the first attempt of the plan that can be opened. `opened` opens an
    attempt at a target; its second argument is whether it waits for another turn to end if too many are running.
    Raises the `Fault` of the last attempt if none can be opened.
    """

    async def next_one(following: NextAttempt | None, failure: Failure | None) -> UpstreamAttempt | None:
        """Opens the attempt `following` or, if that fails, the first later one that can be opened. `failure` is
        that of the attempt before; None if there was none.

        Returns None if no attempt is left (`following` is None) or this server itself refused the last one; the
        turn then fails with `failure`. Otherwise raises the `Fault` of the last attempt.
        """
        while following is not None:
            if following.wait:
                await sleep(following.wait)
            try:
                return await opened(following.target, plan.is_last and failure is None)
            except Fault as fault:
                refused = isinstance(fault, UpstreamNotAskedError)
                following = plan.after(fault.failure, not_asked=refused)
                # What an upstream has said tells more than that this server did not ask another one.
                if following is None and (failure is None or not refused):
                    raise
        return None

    async def after(failure: Failure) -> UpstreamAttempt | None:
        return await next_one(plan.after(failure), failure)

    first = await next_one(NextAttempt(plan.target), None)
    assert first is not None
    return FailoverSession(first, lambda: plan.attempts, after)
