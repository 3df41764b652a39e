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

/// Bytes held for an attempt that is not decided.
const MAX_HELD_OF_ONE: usize = 64 * 1024;
/// Bytes held for attempts that are not decided, in all.
const MAX_HELD: usize = 4 * 1024 * 1024;

const _: () = assert!(MAX_HELD_OF_ONE <= MAX_HELD);

/// Runs that wait for the decision on the attempt that they belong to.
#[derive(Default)]
pub(super) struct Held {
    /// An entry for every undecided attempt.
    by_attempt: HashMap<AttemptKey, Vec<HeldRun>>,
    bytes: usize,
}

impl Held {
    /// Whether the attempt is undecided.
    fn is_undecided(&self, key: &AttemptKey) -> bool {
        self.by_attempt.contains_key(key)
    }

    fn begin(&mut self, key: AttemptKey) {
        self.by_attempt.entry(key).or_default();
    }

    /// Keeps a run, if there is room.
    fn keep(&mut self, key: &AttemptKey, run: &DatagramBatch<'_>) {
        let Some(runs) = self.by_attempt.get_mut(key) else {
            return;
        };
        let here: usize = runs.iter().map(|run| run.bytes.len()).sum();
        let len = run.bytes.len();
        if here + len <= MAX_HELD_OF_ONE && self.bytes + len <= MAX_HELD {
            runs.push(HeldRun::of(run));
            self.bytes += len;
        }
    }

    /// The attempt is decided: returns what was held.
    fn decide(&mut self, key: &AttemptKey) -> Vec<HeldRun> {
        let runs = self.by_attempt.remove(key).unwrap_or_default();
        self.bytes -= runs.iter().map(|run| run.bytes.len()).sum::<usize>();
        runs
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
        let offer = Box::new(Offer {
            worker: self.shared.index,
            life: self.shared.life(),
            incoming,
            run: HeldRun::of(run),
        });
        match self.shared.common.offer(offer, &mut self.wakers) {
            Ok(()) => self.held.begin(key),
            // As with a full listen(2) backlog: no answer, and the client tries again.
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
        let held = self.held.decide(&offer.key());
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
                self.deliver(handle, run.batch(), stages);
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
        for mut run in held {
            self.dispatch(run.batch(), stages);
        }
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
