"""Makes a recording of runs of two ranks, for tests/observe/test_slow_rank_replay.c. usage: laps.py NAME METRICS.jsonl... >>laps.txt

A line is a run: NAME, then for each step the microseconds of data, forward, backward, optimizer, everything else and waits for a core,
of rank 0 and of rank 1. The first two steps are left out: they make programs."""
import json
import sys

PHASES = ("data", "forward", "backward", "optimizer")
REST = ("validation", "save", "other")


def of_ranks(spread):
    if not spread:
        return [0, 0]
    return [spread["max"] if rank == spread["rank"] else spread["min"] for rank in (0, 1)]


for path in sys.argv[2:]:
    words = [sys.argv[1]]
    for line in list(open(path))[2:]:
        step = json.loads(line)
        times = step["times"]
        columns = [of_ranks(times.get(name)) for name in PHASES]
        columns.append([sum(of_ranks(times.get(name))[rank] for name in REST) for rank in (0, 1)])
        columns.append(of_ranks(step.get("core_wait")))
        words += [str(round(1e6 * column[rank])) for rank in (0, 1) for column in columns]
    print(" ".join(words))
