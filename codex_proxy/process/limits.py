"""What a child may take of the machine, as far as the system has such limits. Decides purely; the warden sets them."""

import msgspec


class ChildLimits(msgspec.Struct, frozen=True):
    """Limits of one child and, each for itself, of what it starts. 0 leaves one as the server's own is.

    Core dumps are always off: one of an agent holds its sign-in and what was said, and lands in the workspace.
    """

    # 64 turns at once with their commands, pipes and sockets take some hundreds; macOS gives programs 256.
    open_files: int = 4096
    # Address space is not memory: programs reserve many times what they use, so that no number is right for all.
    address_space: int = 0
    # The system counts all processes and threads of the user, whoever has started them.
    processes: int = 0

    def arguments(self) -> list[str]:
        """As the warden is told: what may be raised again is soft, the rest is for good."""
        asked = {"soft:NOFILE": self.open_files, "AS": self.address_space, "NPROC": self.processes}
        return ["soft:CORE=0", *(f"{name}={value}" for name, value in asked.items() if value)]
