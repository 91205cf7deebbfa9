"""The coordinator: it holds no data, tells sites what to do, hears how they do, and keeps what comes of it.

Training goes on with whoever is there. A site that is lost is waited for; where it does not come, the others go on
without it from the last checkpoint, and it is taken in again when a stage has ended.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import siafu
from siafu.config import Config, build, write_toml
from siafu.data_warnings import count_warnings
from siafu.event_log import EventLog
from siafu.inference import Run, load_weights, open_run
from siafu.launch.sites.config import FederationConfig, read_config
from siafu.launch.sites.rpc import CallFailed, SiteConnection
from siafu.launch.sites.schema import PROTOCOL, make, pack, unpack
from siafu.run_folder import RunFolder, existing_folder, new_folder
from siafu.sites.coordinator_attempt import Followup, Kept, Outcome, noted_data
from siafu.sites.membership import check_clock, check_policies, check_together, expiring
from siafu.training.procedure import Callbacks
from siafu.wire.certificates import SiteCertificate, read_certificate, read_identity

_ASK_S = 10.0
_AGAIN_S = 0.5
_MOST_FRUITLESS = 4


class FederationFailed(ValueError):
    """A site said that it will not, or cannot, go on."""


def federate(
    path: Path,
    *,
    addresses: Mapping[str, str] | None = None,
    out: Path | None = None,
    callbacks: Callbacks | None = None,
) -> Run:
    """Train as ``federation.toml`` says; a run that was begun before goes on.

    ``addresses`` and ``out`` stand instead of those in the file.
    """
    config = _placed(read_config(path, FederationConfig), addresses or {}, out)
    watching = callbacks or Callbacks()
    with _connected(config) as sites:
        return Federation(config, sites, watching).run()


def _placed(config: FederationConfig, addresses: Mapping[str, str], out: Path | None) -> FederationConfig:
    unknown = sorted(set(addresses) - set(config.sites))
    if unknown:
        raise ValueError(f"--address names {unknown[0]}; expected one of {', '.join(config.sites)}")
    sites = {
        name: place.model_copy(update={"address": addresses.get(name, place.address)})
        for name, place in config.sites.items()
    }
    return config.model_copy(update={"sites": sites, "out": config.out if out is None else out})


@contextmanager
def _connected(config: FederationConfig) -> Iterator[dict[str, SiteConnection]]:
    identity = read_identity(config.certificate, config.key)
    own, pins = read_certificate(config.certificate), dict[str, tuple[SiteCertificate, ...]]()
    if trouble := own.validity_error(datetime.now(UTC)):
        raise ValueError(f"{config.certificate}: {trouble}")
    for name, place in config.sites.items():
        pins[name] = tuple(map(read_certificate, place.certificate))
        for pin in pins[name]:
            if pin.name != name or pin.fingerprint == own.fingerprint:
                raise ValueError(
                    f"sites.{name}.certificate is one of {pin.name}; list the one that {name} shows"
                )
    dialled = {
        name: SiteConnection(place.address, name, pins[name], identity)
        for name, place in config.sites.items()
    }
    try:
        yield dialled
    finally:
        for each in dialled.values():
            each.close()


class Federation:
    """A run of a federation."""

    def __init__(
        self, config: FederationConfig, sites: dict[str, SiteConnection], callbacks: Callbacks
    ) -> None:
        self._config, self._sites, self._callbacks = config, sites, callbacks
        self._meter: Counter[str] = Counter()
        self._abouts: dict[str, Any] = {}
        self._data = noted_data(config.out)  # of each site that took part
        self._told: set[str] = set()  # warnings, and what is wrong with sites that would come back
        self._last: dict[str, Any] = {}  # of each site the last report that had its meter
        self._away: set[str] = set()
        self._warnings: tuple[str, ...] = ()

    def run(self) -> Run:
        """Train to the end, or to where somebody stops it."""
        self._gather()
        tree = self._settle()
        out = self._config.out
        if (out / "config.toml").is_file():
            folder = existing_folder(out)
            if folder.finished:
                return open_run(out)
            if folder.read_config() != write_toml(tree):
                raise ValueError(f"{out}: holds a run with other settings or other sites; choose another out")
            with folder.locked():
                return self._carry_out(folder, tree)
        with new_folder(out, name=out.name) as folder:
            folder.write_config(write_toml(tree))
            return self._carry_out(folder, tree)

    # Who is there.

    def _gather(self) -> None:
        """Have every site describe itself; those that do not come in time are away."""
        until, names = time.monotonic() + self._config.patience, list(self._sites)
        self._callbacks.say(f"waiting for {', '.join(names)}")
        missing: dict[str, str] = {}
        told = False
        while True:
            missing = {name: why for name in names if name not in self._abouts and (why := self._ask(name))}
            if not missing or time.monotonic() > until or self._callbacks.should_stop():
                break
            if not told:
                whom = "; ".join(missing.values())
                self._callbacks.say(f"not there yet, waiting for at most {self._config.patience:g} s: {whom}")
                told = True
            time.sleep(_AGAIN_S)
        self._away = set(missing)
        for name, why in missing.items():
            self._callbacks.say(f"site {name} is away: {why}")
        self._check_quorum(missing)
        try:
            check_together(self._abouts, names)
        except ValueError as error:
            self._tell(str(error), self._abouts)
            raise
        for text in expiring(self._abouts):
            self._callbacks.say(text)

    def _warn(self, members: list[str]) -> None:
        """Say once what limits a run with these sites, as far as the numbers of their nodes show it."""
        train, _, test = (sum(self._abouts[name].split[place] for name in members) for place in range(3))
        self._warnings = count_warnings(f"sites {', '.join(members)}", train=train, test=test)
        for text in self._warnings:
            if text not in self._told:
                self._told.add(text)
                self._callbacks.say(f"warning: {text}")

    def _ask(self, name: str) -> str | None:
        """Have a site describe itself; returns why it does not, None where it does."""
        about = self._described(name, timeout_s=_ASK_S)
        if isinstance(about, str):
            return about
        self._abouts[name] = about
        return None

    def _described(self, name: str, *, timeout_s: float) -> Any:
        """What a site says of itself, or a text why it says nothing; raises ValueError where it is not to be used."""
        asked = time.time()
        try:
            ask = pack(make("Ask", protocol=PROTOCOL, version=siafu.__version__, time=asked))
            about = unpack("About", self._sites[name].ask("Describe", ask, timeout_s=timeout_s))
        except CallFailed as error:
            if error.refused:
                raise FederationFailed(str(error)) from None
            return str(error)
        check_clock(name, about.time, asked, time.time())
        if self._data.get(name, about.fingerprint) != about.fingerprint:
            raise FederationFailed(
                f"site {name} has other data than when the run began; put them back, or begin anew"
            )
        return about

    def _tell(self, text: str, names: Iterable[str]) -> None:
        """Have sites write into their logs why there will be no run with them: they can mend it."""
        data = pack(make("Stop", reason=text))
        for name in names:
            with suppress(CallFailed):
                self._sites[name].ask("Stop", data, timeout_s=_ASK_S)

    def _check_quorum(self, missing: Mapping[str, str]) -> None:
        there, least = len(self._sites) - len(self._away), self._config.least
        if there < least:
            why = "".join(f"\n  {text}" for text in missing.values())
            raise FederationFailed(
                f"{there} of {len(self._sites)} sites are there, but a stage needs {least}; start the others"
                f"{', or lower quorum in federation.toml' if least > 2 else ''}{why}"
            )

    # What they do.

    def _settle(self) -> Config:
        config, abouts = self._config, self._abouts
        tree = build(config.run, {"engine": "sites", "ranks": len(config.sites)})
        normalize = tree.data.normalize
        if normalize == "auto":
            said = {name: about.counts for name, about in abouts.items()}
            if len(set(said.values())) > 1:
                told = ", ".join(f"{name}: {'counts' if each else 'numbers'}" for name, each in said.items())
                raise ValueError(
                    f"features look different at sites ({told}); set data.normalize to rows or none"
                )
            normalize = "rows" if next(iter(said.values())) else "none"
        data = tree.data.model_copy(update={"normalize": normalize, "reorder": "off", "inputs": "memory"})
        classes = tuple(next(iter(abouts.values())).classes)
        lazy = tree.lazy
        if any(about.may_features == "never" for about in abouts.values()):
            lazy = lazy.model_copy(update={"features": False})
        tree = tree.model_copy(update={"data": data, "class_names": classes, "lazy": lazy})
        check_policies(abouts, tree)
        return tree

    def _carry_out(self, folder: RunFolder, tree: Config) -> Run:
        run, fruitless = Kept(folder, tree, self._callbacks), 0
        self._callbacks.on_training()
        while True:
            before = run.checkpoints
            members = [name for name in self._sites if name not in self._away]
            self._callbacks.say(f"training with {', '.join(members)}, in {folder.path}")
            outcome = self._attempt(run, members)
            self._last |= {name: report for name, report in outcome.states.items() if report.meter}
            self._check_failures(outcome)
            if len(outcome.states) == len(members) and not outcome.lost:
                states = {report.state for report in outcome.states.values()}
                if states == {"done"} or (states == {"stopped"} and self._callbacks.should_stop()):
                    return self._finish(run, outcome)
            fruitless = 0 if run.checkpoints > before or "stopped" in _states(outcome) else fruitless + 1
            if fruitless >= _MOST_FRUITLESS:
                told = [*outcome.lost.values(), *(report.text for report in outcome.states.values())]
                why = "".join(f"\n  {text}" for text in told if text)
                raise FederationFailed(f"{fruitless} attempts in a row got no further{why}")
            self._wait_for(outcome, tree)

    def _check_failures(self, outcome: Outcome) -> None:
        for name, report in outcome.states.items():
            if report.kind in ("refused", "error"):
                raise FederationFailed(f"site {name}: {report.text}")

    def _wait_for(self, outcome: Outcome, tree: Config) -> None:
        """Give those who were lost time to come back; who does not is away from now on, and who has come is not."""
        for name in outcome.slow:
            self._callbacks.say(f"site {name} is too slow; the others go on without it")
        missing = {name for name in outcome.lost if name not in outcome.slow}
        for name in sorted(missing):
            self._callbacks.say(
                f"{outcome.lost[name]}; waiting for it for at most {self._config.patience:g} s"
            )
        until, why = time.monotonic() + self._config.patience, dict[str, str]()
        while True:
            why = {name: text for name in sorted(missing) if (text := self._ask(name))}
            if not why or time.monotonic() > until or self._callbacks.should_stop():
                break
            time.sleep(_AGAIN_S)
        for name in why:
            self._callbacks.say(f"site {name} is away; the others go on without it")
        came = self._back(tree, timeout_s=2.0) - outcome.slow
        for name in came:
            self._callbacks.say(f"site {name} is back")
        self._away = (self._away - came) | set(why) | outcome.slow
        self._check_quorum(why)

    def _back(self, tree: Config, *, timeout_s: float) -> set[str]:
        """Those who were away and could take part again."""
        return {name for name in self._away if self._is_back(name, tree, timeout_s=timeout_s)}

    def _is_back(self, name: str, tree: Config, *, timeout_s: float) -> bool:
        """Whether a site is there and fits; if it does not, the run goes on without it, and it is told why, once."""
        try:
            about = self._described(name, timeout_s=timeout_s)
            if isinstance(about, str):
                return False
            everybody = self._abouts | {name: about}
            check_together(everybody, list(self._sites))
            check_policies(everybody, tree)
        except ValueError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                self._callbacks.say(f"site {name} is there, but the others go on without it: {error}")
                self._tell(str(error), [name])
            return False
        self._abouts = everybody
        return bool(about.state == "idle")

    def _attempt(self, run: Kept, members: list[str]) -> Outcome:
        attempt = Followup(run, members, {name: self._sites[name] for name in members}, self._meter)
        attempt.away = self._away
        self._data |= {name: self._abouts[name].fingerprint for name in members}
        run.note_data(self._data)
        self._warn(members)
        outcome = Outcome()
        addresses = {name: place.address for name, place in self._config.sites.items()}
        if attempt.begin(outcome, addresses):
            self._watch(attempt, outcome)
        return outcome

    def _watch(self, attempt: Followup, outcome: Outcome) -> None:
        deadline_s = attempt.run.tree.comm.deadline
        asked_again = time.monotonic()
        while attempt.follow_one(outcome):
            now = time.monotonic()
            attempt.run.followed.poll()
            if outcome.lost or any(r.state == "failed" for r in outcome.states.values()):
                attempt.stop("a site was lost", at_once=True, grace_s=deadline_s)
            elif (late := attempt.detector.culprit()) is not None:
                name = late.peer
                outcome.lost[name] = f"site {name} kept the others waiting for more than {deadline_s:g} s"
                outcome.slow.add(name)
            elif reason := self._callbacks.should_stop():
                attempt.stop(reason, at_once=False, grace_s=10 * deadline_s)
            elif self._away and attempt.run.stage_ended and now - asked_again > _AGAIN_S:
                asked_again = now
                tree = attempt.run.tree
                if self._back(tree, timeout_s=_ASK_S / 2 if tree.method == "lazy" else 1.0):
                    attempt.stop("a site came back", at_once=False, grace_s=10 * deadline_s)
                attempt.run.stage_ended = tree.method != "lazy"

    def _finish(self, run: Kept, outcome: Outcome) -> Run:
        measured = next(report.measured for report in outcome.states.values() if report.measured)
        found: dict[str, Any] = json.loads(measured)
        sent: Counter[str] = Counter(self._meter)
        for report in self._last.values():
            sent.update({count.label: count.bytes for count in report.meter})
        found |= {"bytes_by_label": dict(sent), "bytes_sent": sum(sent.values()), "run": str(run.folder.path)}
        found["ledger_bytes"] = sum(report.run_bytes for report in self._last.values()) + sum(
            self._meter.values()
        )
        found |= {"sites": list(self._sites), "away": sorted(self._away), "warnings": list(self._warnings)}
        model = None
        if found["finished"]:
            with closing(EventLog(run.folder.events)) as events:
                for text in self._warnings:
                    events.write("note", text=text)
                events.write("end", **found)
            run.folder.write_metrics(found)
            model = load_weights(run.folder, run.tree, None)
        return Run(run.folder.path, run.tree, found, model)


def _states(outcome: Outcome) -> set[str]:
    return {report.state for report in outcome.states.values()}
