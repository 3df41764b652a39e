//! Collects events from connections, under their locks, and passes them to subscribers, which are
//! called without any lock.

use std::sync::Arc;

use squall_core::{CloseReason, Observation, Refusal, RefusalReason, Time};

use super::Worker;
use super::lock::lock;
use super::shared::Shared;
use super::state::State;
use crate::events::{ConnectionClosed, ConnectionInfo, DatagramsUnrouted, Report};

/// What waits to be reported at the end of this part of the turn.
pub(super) struct Reports {
    /// Whether there are subscribers.
    on: bool,
    worker: usize,
    waiting: Vec<Report>,
    /// What the worker had dropped by the last report.
    dropped: DatagramsUnrouted,
}

impl Reports {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            on: !shared.common.events.is_empty(),
            worker: shared.index,
            waiting: Vec::new(),
            dropped: DatagramsUnrouted::default(),
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.on
    }

    /// A connection begins.
    pub(super) fn begin(&mut self, now: Time, state: &mut State, number: u64) {
        (state.number, state.begun) = (number, now);
        state.core.observe();
        let info = self.info(state);
        self.waiting.push(Report::Started(info));
    }

    /// Takes a connection's events.
    #[inline]
    pub(super) fn collect(&mut self, state: &mut State) {
        if self.on {
            self.collect_all(state);
        }
    }

    fn collect_all(&mut self, state: &mut State) {
        while let Some(observation) = state.core.poll_observation() {
            let info = self.info(state);
            self.waiting.push(match observation {
                Observation::Closed(end) => {
                    let stats = state.core.stats();
                    let (reason, duration) = (end.reason, end.duration);
                    Report::Closed(
                        info,
                        Box::new(ConnectionClosed {
                            reason,
                            duration,
                            stats,
                        }),
                    )
                }
                other => Report::Observed(info, other),
            });
        }
    }

    /// The connection ends with its worker, unless it has already ended.
    pub(super) fn cut_off(&mut self, now: Time, state: &mut State, reason: &CloseReason) {
        if !self.on {
            return;
        }
        self.collect_all(state);
        if state.closed.is_none() {
            let (reason, stats) = (reason.clone(), state.core.stats());
            let duration = now - state.begun;
            let event = ConnectionClosed {
                reason,
                duration,
                stats,
            };
            let info = self.info(state);
            self.waiting.push(Report::Closed(info, Box::new(event)));
        }
    }

    /// An attempt was refused, but not by the core.
    pub(super) fn refused(&mut self, remote: std::net::SocketAddr, reason: RefusalReason) {
        if self.on {
            let event = Refusal::new(remote, reason);
            self.waiting.push(Report::Refused(self.worker, event));
        }
    }

    fn info(&self, state: &State) -> ConnectionInfo {
        ConnectionInfo {
            number: state.number,
            worker: self.worker,
            side: state.core.side(),
            remote: state.core.path().remote,
            original_destination_id: state.core.original_destination_id(),
        }
    }
}

impl Worker {
    /// Collects what the endpoint has refused and dropped since the last turn. `counts`: its counts
    /// since then.
    pub(super) fn collect_unrouted(&mut self, counts: squall_core::EndpointCounts) {
        while let Some(mut event) = self.endpoint.poll_refusal() {
            if self.closing && event.reason == RefusalReason::Application {
                event.reason = RefusalReason::Closed;
            }
            let report = Report::Refused(self.shared.index, event);
            self.reports.waiting.push(report);
        }
        let counters = &self.shared.counters;
        let now = DatagramsUnrouted {
            runs_discarded: counters.runs_discarded.get(),
            forwards_dropped: counters.forwards_dropped.get(),
            incoming_dropped: counters.incoming_dropped.get(),
            ..DatagramsUnrouted::default()
        };
        let before = std::mem::replace(&mut self.reports.dropped, now);
        let event = DatagramsUnrouted {
            counts,
            runs_discarded: now.runs_discarded - before.runs_discarded,
            forwards_dropped: now.forwards_dropped - before.forwards_dropped,
            incoming_dropped: now.incoming_dropped - before.incoming_dropped,
        };
        if event != DatagramsUnrouted::default() {
            let report = Report::Unrouted(self.shared.index, event);
            self.reports.waiting.push(report);
        }
    }

    /// Calls the subscribers. No lock is held, neither a connection's nor that of the stages.
    pub(super) fn report(&mut self) {
        if self.reports.waiting.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        if shared.accounting {
            lock(&shared.stages).mark(squall_core::Stage::Runtime);
        }
        for report in std::mem::take(&mut self.reports.waiting) {
            shared.report(&report);
        }
        if shared.accounting {
            lock(&shared.stages).mark(squall_core::Stage::Application);
        }
    }
}
