"""The methods of an agent that only pass calls on to its process pool."""

from __future__ import annotations

from typing import Generic

from codex_proxy.agents.agent import AgentBase, ProcessCounts, ProcessFacts
from codex_proxy.agents.process_pool.group import P
from codex_proxy.agents.process_pool.pool import K, ProcessPool


class PooledAgent(AgentBase, Generic[K, P]):
    pool: ProcessPool[K, P]

    def processes(self) -> ProcessCounts:
        processes = self.pool.processes
        busy = sum(1 for process in processes if process.turns_running)
        return ProcessCounts(idle=len(processes) - busy, busy=busy, restarts=self.pool.restarts)

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return tuple(
            ProcessFacts(each.pid, each.turns_running, each.turns_served, each.memory)
            for each in self.pool.processes
            if each.pid is not None
        )

    async def close(self) -> None:
        await self.pool.close()

    def kill(self) -> None:
        self.pool.kill()
