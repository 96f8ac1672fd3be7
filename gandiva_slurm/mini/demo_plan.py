"""What the two demonstrations do: the same phases and checks, but other lengths and limits judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """One demonstration. Lengths are seconds."""

    title: str
    #: how long user1 and user2 train before user3 comes, and how long the three contend at least
    alone_s: float
    contended_s: float
    #: losses compared a rank, by runs alone that go beside the jobs; 0: all of them, by runs afterwards.
    #: Gangs of more than two ranks, which are slow on few cores, have fewer a rank and still more a job.
    losses: int
    #: whether limits on times and ratios are judged, or only told
    judges_times: bool
    #: whether a second cluster measures what slicing costs
    measures_slicing: bool

    def compared(self, ranks: int) -> int:
        """Losses compared on each rank of a job; 0: all."""
        return min(self.losses, 2 * self.losses // ranks)

    def phases(self) -> dict[str, float]:
        """Phase -> how long it takes on a quiet machine with two cores, as measured."""
        afterwards = {"the same scripts alone": 5.0 if self.losses else 40.0}
        slicing = {"what slicing costs": 80.0} if self.measures_slicing else {}
        return {
            "a private Slurm comes up": 8.0,
            "user1 and user2 start": 9.0,
            "user1 and user2 train": self.alone_s,
            "user3's gang starts": 7.0,
            "three users contend": self.contended_s - 7.0,
            "the jobs end": 5.0,
            **afterwards,
            **slicing,
        }


#: `make demo`: what must always hold, on any machine.
DEMO = Plan("demo", 4.0, 35.0, 500, False, False)
#: `make acceptance`: every loss, and the limits on times and ratios, which want a quiet machine.
ACCEPTANCE = Plan("acceptance", 10.0, 65.0, 0, True, True)
