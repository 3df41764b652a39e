//! Connection attempts, from the first Initial packet to the application's decision.
//!
//! ```text
//! Route::Incoming ──> Offer in the accept queue ──> accept: core connection, held runs delivered
//!        │                                     ├──> retry: the client comes again, with a token
//!        │                                     ├──> refuse: CONNECTION_REFUSED
//!        │ more of that attempt meanwhile      └──> ignore
//!        └────────> held, bounded, until the application decides
//! ```
//! A ClientHello with a post-quantum key share fills two Initial packets, so "more of that attempt"
//! is the usual case.

use std::collections::HashMap;
use std::sync::Arc;

use squall_core::{CloseReason, RefusalReason, ServerConfig, Stage, Stages};
use squall_wire::DatagramBatch;

use super::Worker;
use super::ended::endpoint_closed;
use super::offer::{AttemptKey, HeldRun, Offer};
use super::shared::Handle;

/// Runs that wait for a decision on their attempt.
pub(super) struct Held {
    /// An entry for every undecided attempt.
    by_attempt: HashMap<AttemptKey, HeldOfOne>,
    /// Bytes of all runs, except for the first datagram of each attempt.
    bytes: usize,
    /// The limit of `bytes`.
    limit: usize,
    /// The part of the limit that one attempt may take.
    limit_of_one: usize,
}

/// What is held for one attempt.
#[derive(Default)]
struct HeldOfOne {
    runs: Vec<HeldRun>,
    /// Bytes of `runs`, and of the run in the offer except for its first datagram.
    bytes: usize,
}

impl Held {
    /// Empty, with limits in bytes: in all, and for one attempt.
    pub(super) fn new(limit: usize, limit_of_one: usize) -> Self {
        Self {
            by_attempt: HashMap::new(),
            bytes: 0,
            limit,
            limit_of_one,
        }
    }

    /// How many more bytes may be held for an attempt that already holds `bytes`.
    fn room(&self, bytes: usize) -> usize {
        let (of_one, all) = (self.limit_of_one, self.limit);
        of_one
            .saturating_sub(bytes)
            .min(all.saturating_sub(self.bytes))
    }

    /// How many bytes of an attempt's first run are kept besides its first datagram: as many
    /// datagrams as there is room for.
    fn room_for_first(&self, run: &DatagramBatch<'_>) -> usize {
        let segment = usize::from(run.segment_size).max(1);
        let (others, room) = (run.bytes.len().saturating_sub(segment), self.room(0));
        if others <= room {
            others
        } else {
            room - room % segment
        }
    }

    /// Whether the attempt is undecided.
    fn is_undecided(&self, key: &AttemptKey) -> bool {
        self.by_attempt.contains_key(key)
    }

    /// An attempt begins, and its offer holds this many bytes besides its first datagram.
    fn begin(&mut self, key: AttemptKey, bytes: usize) {
        let held = HeldOfOne {
            runs: Vec::new(),
            bytes,
        };
        self.by_attempt.insert(key, held);
        self.bytes += bytes;
    }

    /// Keeps a run if there is room.
    fn keep(&mut self, key: &AttemptKey, run: &DatagramBatch<'_>) {
        let len = run.bytes.len();
        let here = self.by_attempt.get(key).map_or(0, |held| held.bytes);
        if len > self.room(here) {
            return;
        }
        if let Some(held) = self.by_attempt.get_mut(key) {
            held.runs.push(HeldRun::of(run));
            held.bytes += len;
            self.bytes += len;
        }
    }

    /// The attempt is decided: returns what was held.
    fn decide(&mut self, key: &AttemptKey) -> Vec<HeldRun> {
        let held = self.by_attempt.remove(key).unwrap_or_default();
        self.bytes -= held.bytes;
        held.runs
    }

    /// The attempt was declined.
    pub(super) fn forget(&mut self, key: &AttemptKey) {
        drop(self.decide(key));
    }
}

impl Worker {
    /// A client's first packet begins an attempt.
    pub(super) fn on_incoming(&mut self, incoming: squall_core::Incoming, run: &DatagramBatch<'_>) {
        let path = run.path;
        let key = (path.remote, incoming.destination_id());
        if self.held.is_undecided(&key) {
            self.held.keep(&key, run);
            return;
        }
        if self.closing {
            let response = self.endpoint.refuse(incoming);
            self.respond(path, &response);
            return;
        }
        let more = self.held.room_for_first(run);
        let offer = Box::new(Offer {
            worker: self.shared.index,
            life: self.shared.life(),
            incoming,
            run: HeldRun::beginning_of(run, usize::from(run.segment_size) + more),
        });
        match self.shared.common.offer(offer, &mut self.to_wake.direct) {
            Ok(()) => self.held.begin(key, more),
            // As with a full listen(2) backlog: no answer, and the client retries.
            Err(_) => {
                self.shared.counters.incoming_dropped.add(1);
                self.reports.refused(path.remote, RefusalReason::QueueFull);
            }
        }
    }

    /// The application accepts the connection.
    pub(super) fn accept(
        &mut self,
        offer: Box<Offer>,
        config: Option<Arc<ServerConfig>>,
        stages: &mut Stages,
    ) -> Result<Handle, CloseReason> {
        let offer = *offer;
        let path = offer.run.path;
        let mut held = self.held.decide(&offer.key());
        if self.closing {
            let response = self.endpoint.refuse(offer.incoming);
            self.respond(path, &response);
            return Err(endpoint_closed());
        }
        let accepted = match config {
            Some(config) => (self.endpoint).accept_with(self.now, offer.incoming, &config),
            None => self.endpoint.accept(self.now, offer.incoming),
        };
        let result = match accepted {
            Ok((handle, core)) => {
                let connection = self.insert(handle, core);
                stages.mark(Stage::Handshake);
                let mut run = offer.run;
                self.deliver_alone(handle, run.batch(), stages);
                Ok(Handle(connection))
            }
            Err(error) => {
                let why = error.to_string();
                if let Some(response) = error.response {
                    self.respond(path, &response);
                }
                Err(CloseReason::NotStarted(why))
            }
        };
        // Routed again: datagrams of this attempt find its connection, and those that begin another
        // are offered next.
        self.dispatch(held.iter_mut().map(HeldRun::batch), stages);
        result
    }

    /// The application refuses the connection.
    pub(super) fn refuse(&mut self, offer: Box<Offer>) {
        let offer = *offer;
        let path = offer.run.path;
        self.held.forget(&offer.key());
        let response = self.endpoint.refuse(offer.incoming);
        self.respond(path, &response);
    }

    /// The application asks for the client's address to be validated.
    pub(super) fn retry(&mut self, offer: Box<Offer>) {
        let offer = *offer;
        let path = offer.run.path;
        self.held.forget(&offer.key());
        let response = match self.endpoint.retry(self.now, offer.incoming) {
            Ok(retry) => retry,
            Err(incoming) => self.endpoint.refuse(incoming),
        };
        self.respond(path, &response);
    }
}

#[cfg(test)]
mod tests {
    use squall_wire::{ConnectionId, Ecn, Path};

    use super::*;

    fn key(port: u16) -> AttemptKey {
        (([192, 0, 2, 1], port).into(), ConnectionId::EMPTY)
    }

    fn run(bytes: &mut [u8], segment_size: u16) -> DatagramBatch<'_> {
        DatagramBatch {
            path: Path {
                remote: key(1).0,
                local: None,
            },
            ecn: Ecn::NotEct,
            segment_size,
            bytes,
        }
    }

    /// Begins an attempt with this many datagrams; returns the bytes of the offer's run.
    fn begin(held: &mut Held, port: u16, datagrams: usize) -> usize {
        let mut bytes = vec![0; datagrams * 1200];
        let first = run(&mut bytes, 1200);
        let more = held.room_for_first(&first);
        held.begin(key(port), more);
        HeldRun::beginning_of(&first, 1200 + more).bytes.len()
    }

    #[test]
    fn an_attempt_buffers_up_to_its_limit_beyond_the_first_datagram() {
        let mut held = Held::new(100_000, 5_000);
        assert_eq!(begin(&mut held, 1, 3), 3600);
        // 2,400 are taken.
        for (len, bytes) in [
            (3_000, 2_400),
            (1_300, 3_700),
            (1_301, 3_700),
            (1_300, 5_000),
        ] {
            held.keep(&key(1), &run(&mut vec![0; len], 1200));
            assert_eq!(held.bytes, bytes);
        }
        let runs = held.decide(&key(1));
        assert_eq!((runs.len(), held.bytes), (2, 0));
        // As many whole datagrams as there is room for.
        assert_eq!(begin(&mut held, 2, 50), 5 * 1200);
        held.forget(&key(2));
        assert_eq!((held.bytes, held.by_attempt.len()), (0, 0));
        // Belongs to no attempt.
        held.keep(&key(2), &run(&mut [0; 10], 10));
        assert_eq!(held.bytes, 0);
        let mut nothing = Held::new(100_000, 0);
        assert_eq!(begin(&mut nothing, 1, 9), 1200);
        nothing.keep(&key(1), &run(&mut [0; 1], 1));
        assert!(nothing.decide(&key(1)).is_empty());
    }

    #[test]
    fn attempts_share_the_total_limit() {
        let mut held = Held::new(6_000, 4_000);
        assert_eq!(begin(&mut held, 1, 4), 4800);
        assert_eq!(begin(&mut held, 2, 4), 1200 + 2400);
        assert_eq!((begin(&mut held, 3, 4), held.bytes), (1200, 6_000));
        held.keep(&key(3), &run(&mut [0; 1], 1));
        assert_eq!(held.bytes, 6_000);
        held.forget(&key(1));
        held.keep(&key(3), &run(&mut [0; 3_600], 1200));
        assert_eq!(held.bytes, 6_000);
    }
}
