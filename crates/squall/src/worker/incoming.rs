//! Connection attempts, from the first Initial packet to the application's word.
//!
//! ```text
//! Route::Incoming ──> Offer in the accept queue ──> accept: core connection, the held runs are delivered
//!        │                                     ├──> retry: the client comes again, with a token
//!        │                                     ├──> refuse: CONNECTION_REFUSED
//!        │ more from that address meanwhile    └──> ignore
//!        └────────> held, bounded, until the word has come
//! ```
//! A ClientHello with a post-quantum key share fills two Initial packets, so "more from that address" is the usual
//! case: the second packet belongs to the attempt that the first one began.

use std::collections::HashMap;
use std::net::SocketAddr;

use squall_core::Stages;
use squall_wire::DatagramBatch;

use super::common::{HeldRun, Offer};
use super::state::Handle;
use super::{Worker, hold};
use crate::error::ConnectError;

/// Bytes held for attempts that are not decided, for one address.
const MAX_HELD_BY_ADDRESS: usize = 64 * 1024;
/// Bytes held for attempts that are not decided, in all.
const MAX_HELD: usize = 4 * 1024 * 1024;

const _: () = assert!(MAX_HELD_BY_ADDRESS <= MAX_HELD);

/// Runs that wait for the word on an attempt from the same address.
#[derive(Default)]
pub(super) struct Held {
    /// An entry for every undecided attempt.
    by_address: HashMap<SocketAddr, Vec<HeldRun>>,
    bytes: usize,
}

impl Held {
    /// Whether an attempt from `remote` waits for its word.
    fn is_undecided(&self, remote: &SocketAddr) -> bool {
        self.by_address.contains_key(remote)
    }

    fn begin(&mut self, remote: SocketAddr) {
        self.by_address.entry(remote).or_default();
    }

    /// Keeps a run, if there is room.
    fn keep(&mut self, run: &DatagramBatch<'_>) {
        let Some(runs) = self.by_address.get_mut(&run.path.remote) else {
            return;
        };
        let here: usize = runs.iter().map(|run| run.bytes.len()).sum();
        let len = run.bytes.len();
        if here + len <= MAX_HELD_BY_ADDRESS && self.bytes + len <= MAX_HELD {
            runs.push(hold(run));
            self.bytes += len;
        }
    }

    /// The word has come: gives out what was held.
    fn decide(&mut self, remote: &SocketAddr) -> Vec<HeldRun> {
        let runs = self.by_address.remove(remote).unwrap_or_default();
        self.bytes -= runs.iter().map(|run| run.bytes.len()).sum::<usize>();
        runs
    }

    /// The word was no.
    pub(super) fn forget(&mut self, remote: &SocketAddr) {
        drop(self.decide(remote));
    }
}

impl Worker {
    /// Someone wants to connect.
    pub(super) fn on_incoming(&mut self, incoming: squall_core::Incoming, run: &DatagramBatch<'_>) {
        let path = run.path;
        if self.held.is_undecided(&path.remote) {
            self.held.keep(run);
            return;
        }
        if self.closing {
            let response = self.endpoint.refuse(incoming);
            self.respond(path, &response);
            return;
        }
        let offer = Box::new(Offer {
            worker: self.shared.index,
            incoming,
            run: hold(run),
        });
        match self.shared.common.offer(offer, &mut self.wakers) {
            Ok(()) => self.held.begin(path.remote),
            // As by a full listen(2) backlog: silence, and the client tries again.
            Err(_) => self.shared.counters.incoming_dropped.add(1),
        }
    }

    /// The application wants the connection.
    pub(super) fn accept(
        &mut self,
        offer: Box<Offer>,
        stages: &mut Stages,
    ) -> Result<Handle, ConnectError> {
        let offer = *offer;
        let path = offer.run.path;
        let held = self.held.decide(&path.remote);
        if self.closing {
            let response = self.endpoint.refuse(offer.incoming);
            self.respond(path, &response);
            return Err(ConnectError::EndpointClosed);
        }
        let result = match self.endpoint.accept(self.now, offer.incoming) {
            Ok((handle, core)) => {
                let connection = self.insert(handle, core);
                let HeldRun {
                    path,
                    ecn,
                    segment_size,
                    mut bytes,
                } = offer.run;
                self.deliver(
                    handle,
                    DatagramBatch {
                        path,
                        ecn,
                        segment_size,
                        bytes: &mut bytes,
                    },
                    stages,
                );
                Ok(Handle(connection))
            }
            Err(error) => {
                let why = error.to_string();
                if let Some(response) = error.response {
                    self.respond(path, &response);
                }
                Err(ConnectError::Refused(why))
            }
        };
        // Routed anew: what belongs to this attempt finds its connection, what begins another is offered next.
        for HeldRun {
            path,
            ecn,
            segment_size,
            mut bytes,
        } in held
        {
            self.dispatch(
                DatagramBatch {
                    path,
                    ecn,
                    segment_size,
                    bytes: &mut bytes,
                },
                stages,
            );
        }
        result
    }

    /// The application does not want the connection and says so.
    pub(super) fn refuse(&mut self, offer: Box<Offer>) {
        let offer = *offer;
        let path = offer.run.path;
        self.held.forget(&path.remote);
        let response = self.endpoint.refuse(offer.incoming);
        self.respond(path, &response);
    }

    /// The application wants to know that the address is the client's own.
    pub(super) fn retry(&mut self, offer: Box<Offer>) {
        let offer = *offer;
        let path = offer.run.path;
        self.held.forget(&path.remote);
        let response = match self.endpoint.retry(self.now, offer.incoming) {
            Ok(retry) => retry,
            Err(incoming) => self.endpoint.refuse(incoming),
        };
        self.respond(path, &response);
    }
}
