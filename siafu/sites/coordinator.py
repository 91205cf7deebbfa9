"""The coordinator of a federation (``siafu federate``): orders attempts, follows them, keeps checkpoint and model.

It holds no data and is no rank. Training goes on with the sites that are available, if they are a quorum. The
coordinator waits for a lost site; if it does not return in time, the others resume from the last checkpoint without it.
A returning site joins again at the end of a stage.
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
from siafu.config import Config, build, parse_toml, without_unused, write_toml
from siafu.data_warnings import count_warnings, score_warnings
from siafu.event_log import EventLog
from siafu.inference import Run, load_weights, open_run
from siafu.launch.sites.config import FederationConfig, read_config
from siafu.launch.sites.rpc import CallFailed, SiteConnection
from siafu.launch.sites.schema import PROTOCOL, make, pack, unpack
from siafu.run_folder import RunFolder, existing_folder, new_folder
from siafu.sites.coordinator_attempt import (
    AttemptOutcome,
    CoordinatorAttempt,
    FederatedRunFolder,
    read_fingerprints,
)
from siafu.sites.membership import check_clock_skew, check_compatible, check_policies, expiring_certificates
from siafu.training.procedure import Callbacks
from siafu.wire.certificates import SiteCertificate, read_certificate, read_identity

_ASK_S = 10.0
_AGAIN_S = 0.5
_MAX_FRUITLESS = 4


class FederationFailed(ValueError):
    """A run that cannot go on: a site refused or failed, or too few sites are available."""


def federate(
    path: Path,
    *,
    addresses: Mapping[str, str] | None = None,
    out: Path | None = None,
    callbacks: Callbacks | None = None,
) -> Run:
    """Train with the sites of a ``federation.toml``; a run that was stopped or killed is resumed.

    ``addresses`` and ``out`` override those in the file.
    """
    config = _with_overrides(read_config(path, FederationConfig), addresses or {}, out)
    watching = callbacks or Callbacks()
    with _connections(config) as sites:
        return Coordinator(config, sites, watching).run()


def _check_after_training(config: Config) -> None:
    """Refuse steps after training that a federation does not have."""
    if config.train.ensemble > 1:
        raise ValueError(
            f"run.train.ensemble is {config.train.ensemble}, but a federation trains one model; set it to 1"
        )
    if config.correct_and_smooth.enabled:
        raise ValueError(
            "run.correct_and_smooth.enabled is true, but it sends labels to other sites, which no policy allows; set "
            "it to false"
        )


def _with_overrides(
    config: FederationConfig, addresses: Mapping[str, str], out: Path | None
) -> FederationConfig:
    unknown = sorted(set(addresses) - set(config.sites))
    if unknown:
        raise ValueError(f"--address names {unknown[0]}; expected one of {', '.join(config.sites)}")
    sites = {
        name: place.model_copy(update={"address": addresses.get(name, place.address)})
        for name, place in config.sites.items()
    }
    return config.model_copy(update={"sites": sites, "out": config.out if out is None else out})


@contextmanager
def _connections(config: FederationConfig) -> Iterator[dict[str, SiteConnection]]:
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
    connection = {
        name: SiteConnection(place.address, name, pins[name], identity)
        for name, place in config.sites.items()
    }
    try:
        yield connection
    finally:
        for each in connection.values():
            each.close()


class Coordinator:
    """Coordinates one federated run."""

    def __init__(
        self, config: FederationConfig, sites: dict[str, SiteConnection], callbacks: Callbacks
    ) -> None:
        self._config, self._sites, self._callbacks = config, sites, callbacks
        self._meter: Counter[str] = Counter()
        self._descriptions: dict[str, Any] = {}
        self._data = read_fingerprints(config.out)  # checksum of the data of each site that took part
        self._said: set[str] = set()  # warnings, and errors of sites that would return, each said once
        self._last: dict[str, Any] = {}  # of each site, the last report with byte counts
        self._away: set[str] = set()
        self._warnings: tuple[str, ...] = ()

    def run(self) -> Run:
        """Train until the run ends or is stopped."""
        self._wait_for_sites()
        run_config = self._resolve_config()
        out = self._config.out
        if (out / "config.toml").is_file():
            folder = existing_folder(out)
            if folder.finished:
                return open_run(out)
            if write_toml(parse_toml(folder.read_config())) != write_toml(run_config):
                raise ValueError(f"{out}: holds a run with other settings or other sites; choose another out")
            with folder.locked():
                return self._train(folder, run_config)
        with new_folder(out, name=out.name) as folder:
            folder.write_config(write_toml(run_config))
            return self._train(folder, run_config)

    # Membership.

    def _wait_for_sites(self) -> None:
        """Ask every site to describe itself; sites that do not answer in time are away."""
        until, names = time.monotonic() + self._config.patience, list(self._sites)
        self._callbacks.say(f"waiting for {', '.join(names)}")
        missing: dict[str, str] = {}
        announced = False
        while True:
            missing = {
                name: why for name in names if name not in self._descriptions and (why := self._refresh(name))
            }
            if not missing or time.monotonic() > until or self._callbacks.should_stop():
                break
            if not announced:
                whom = "; ".join(missing.values())
                self._callbacks.say(
                    f"not available yet, waiting for at most {self._config.patience:g} s: {whom}"
                )
                announced = True
            time.sleep(_AGAIN_S)
        self._away = set(missing)
        for name, why in missing.items():
            self._callbacks.say(f"site {name} is away: {why}")
        self._check_quorum(missing)
        try:
            check_compatible(self._descriptions, names)
        except ValueError as error:
            self._send_reason(str(error), self._descriptions)
            raise
        for text in expiring_certificates(self._descriptions):
            self._callbacks.say(text)

    def _warn(self, members: list[str]) -> None:
        """Say once each warning that follows from the numbers of the members' nodes."""
        train, _, test = (
            sum(self._descriptions[name].split[place] for name in members) for place in range(3)
        )
        self._warnings = count_warnings(f"sites {', '.join(members)}", train=train, test=test)
        for text in self._warnings:
            if text not in self._said:
                self._said.add(text)
                self._callbacks.say(f"warning: {text}")

    def _refresh(self, name: str) -> str | None:
        """Update the description of a site; return the reason if it gives none, else None."""
        about = self._describe(name, timeout_s=_ASK_S)
        if isinstance(about, str):
            return about
        self._descriptions[name] = about
        return None

    def _describe(self, name: str, *, timeout_s: float) -> Any:
        """Ask a site for its description; return a text if it is unreachable; raise ValueError if it does not fit."""
        asked = time.time()
        try:
            ask = pack(make("Ask", protocol=PROTOCOL, version=siafu.__version__, time=asked))
            about = unpack("About", self._sites[name].ask("Describe", ask, timeout_s=timeout_s))
        except CallFailed as error:
            if error.refused:
                raise FederationFailed(str(error)) from None
            return str(error)
        check_clock_skew(name, about.time, asked, time.time())
        if self._data.get(name, about.fingerprint) != about.fingerprint:
            raise FederationFailed(
                f"site {name} has other data than when the run began; put them back, or begin anew"
            )
        return about

    def _send_reason(self, text: str, names: Iterable[str]) -> None:
        """Tell sites why no run will begin with them; they write it into their logs, where it can be mended."""
        data = pack(make("Stop", reason=text))
        for name in names:
            with suppress(CallFailed):
                self._sites[name].ask("Stop", data, timeout_s=_ASK_S)

    def _check_quorum(self, missing: Mapping[str, str]) -> None:
        there, least = len(self._sites) - len(self._away), self._config.min_sites
        if there < least:
            why = "".join(f"\n  {text}" for text in missing.values())
            raise FederationFailed(
                f"{there} of {len(self._sites)} sites are available, but a stage needs {least}; start the others"
                f"{', or lower quorum in federation.toml' if least > 2 else ''}{why}"
            )

    # Training.

    def _resolve_config(self) -> Config:
        config, descriptions = self._config, self._descriptions
        run_config = without_unused(build(config.run, {"engine": "sites", "ranks": len(config.sites)}))
        _check_after_training(run_config)
        normalize = run_config.data.normalize
        if normalize == "standard":
            raise ValueError(
                "data.normalize is standard, but sites do not share the means of their columns; standardise the "
                "features before the import, and set data.normalize to none"
            )
        if normalize == "auto":
            said = {name: about.counts for name, about in descriptions.items()}
            if len(set(said.values())) > 1:
                listing = ", ".join(
                    f"{name}: {'counts' if each else 'numbers'}" for name, each in said.items()
                )
                raise ValueError(
                    f"features look different at sites ({listing}); set data.normalize to rows or none"
                )
            normalize = "rows" if next(iter(said.values())) else "none"
        data = run_config.data.model_copy(
            update={"normalize": normalize, "reorder": "off", "inputs": "memory"}
        )
        classes = tuple(next(iter(descriptions.values())).classes)
        lazy = run_config.lazy
        if any(about.may_features == "never" for about in descriptions.values()):
            lazy = lazy.model_copy(update={"features": False})
        train = run_config.train.model_copy(update={"evaluate_every": run_config.train.scoring_interval})
        update = {"data": data, "train": train, "class_names": classes, "lazy": lazy}
        run_config = run_config.model_copy(update=update)
        check_policies(descriptions, run_config)
        return run_config

    def _train(self, folder: RunFolder, run_config: Config) -> Run:
        run, fruitless = FederatedRunFolder(folder, run_config, self._callbacks), 0
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
            if fruitless >= _MAX_FRUITLESS:
                reasons = [*outcome.lost.values(), *(report.text for report in outcome.states.values())]
                why = "".join(f"\n  {text}" for text in reasons if text)
                raise FederationFailed(f"{fruitless} attempts in a row got no further{why}")
            self._wait_for_lost(outcome, run_config)

    def _check_failures(self, outcome: AttemptOutcome) -> None:
        for name, report in outcome.states.items():
            if report.kind in ("refused", "error"):
                raise FederationFailed(f"site {name}: {report.text}")

    def _wait_for_lost(self, outcome: AttemptOutcome, run_config: Config) -> None:
        """Wait for lost sites to return, then update which sites are away."""
        for name in outcome.slow:
            self._callbacks.say(f"site {name} is too slow; the others go on without it")
        missing = {name for name in outcome.lost if name not in outcome.slow}
        for name in sorted(missing):
            self._callbacks.say(
                f"{outcome.lost[name]}; waiting for it for at most {self._config.patience:g} s"
            )
        until, why = time.monotonic() + self._config.patience, dict[str, str]()
        while True:
            why = {name: text for name in sorted(missing) if (text := self._refresh(name))}
            if not why or time.monotonic() > until or self._callbacks.should_stop():
                break
            time.sleep(_AGAIN_S)
        for name in why:
            self._callbacks.say(f"site {name} is away; the others go on without it")
        came = self._returned_sites(run_config, timeout_s=2.0) - outcome.slow
        for name in came:
            self._callbacks.say(f"site {name} is back")
        self._away = (self._away - came) | set(why) | outcome.slow
        self._check_quorum(why)

    def _returned_sites(self, run_config: Config, *, timeout_s: float) -> set[str]:
        """The absent sites that could take part again."""
        return {name for name in self._away if self._has_returned(name, run_config, timeout_s=timeout_s)}

    def _has_returned(self, name: str, run_config: Config, *, timeout_s: float) -> bool:
        """Return whether an absent site is back and fits; if it does not fit, tell it why, once."""
        try:
            about = self._describe(name, timeout_s=timeout_s)
            if isinstance(about, str):
                return False
            descriptions = self._descriptions | {name: about}
            check_compatible(descriptions, list(self._sites))
            check_policies(descriptions, run_config)
        except ValueError as error:
            if str(error) not in self._said:
                self._said.add(str(error))
                self._callbacks.say(f"site {name} is available, but the others go on without it: {error}")
                self._send_reason(str(error), [name])
            return False
        self._descriptions = descriptions
        return bool(about.state == "idle")

    def _attempt(self, run: FederatedRunFolder, members: list[str]) -> AttemptOutcome:
        attempt = CoordinatorAttempt(run, members, {name: self._sites[name] for name in members}, self._meter)
        attempt.away = self._away
        self._data |= {name: self._descriptions[name].fingerprint for name in members}
        run.write_fingerprints(self._data)
        self._warn(members)
        outcome = AttemptOutcome()
        addresses = {name: place.address for name, place in self._config.sites.items()}
        if attempt.begin(outcome, addresses):
            self._watch(attempt, outcome)
        return outcome

    def _watch(self, attempt: CoordinatorAttempt, outcome: AttemptOutcome) -> None:
        deadline_s = attempt.run.config.comm.deadline
        asked_again = time.monotonic()
        while attempt.process_next(outcome):
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
                run_config = attempt.run.config
                if self._returned_sites(
                    run_config, timeout_s=_ASK_S / 2 if run_config.method == "lazy" else 1.0
                ):
                    attempt.stop("a site came back", at_once=False, grace_s=10 * deadline_s)
                attempt.run.stage_ended = run_config.method != "lazy"

    def _finish(self, run: FederatedRunFolder, outcome: AttemptOutcome) -> Run:
        measured = next(report.measured for report in outcome.states.values() if report.measured)
        found: dict[str, Any] = json.loads(measured)
        sent: Counter[str] = Counter(self._meter)
        for report in self._last.values():
            sent.update({count.label: count.bytes for count in report.meter})
        found |= {"bytes_by_label": dict(sent), "bytes_sent": sum(sent.values()), "run": str(run.folder.path)}
        found["ledger_bytes"] = sum(report.run_bytes for report in self._last.values()) + sum(
            self._meter.values()
        )
        found |= {"sites": list(self._sites), "away": sorted(self._away)}
        warnings = [*self._warnings, *score_warnings(found, self._callbacks.say)]
        found["warnings"] = warnings
        model = None
        if found["finished"]:
            with closing(EventLog(run.folder.events)) as events:
                for text in warnings:
                    events.write("note", text=text)
                events.write("end", **found)
            run.folder.write_metrics(found)
            model = load_weights(run.folder, run.config, None)
        return Run(run.folder.path, run.config, found, model)


def _states(outcome: AttemptOutcome) -> set[str]:
    return {report.state for report in outcome.states.values()}
