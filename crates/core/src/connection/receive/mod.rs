//! The receive path: a run of datagrams in, in six steps (`ARCHITECTURE.md`, "The receive trip").
//!
//! | step | where |
//! |---|---|
//! | 1 split | `split`: datagrams become packets |
//! | 2 unprotect, 3 number, 4 open | `open`: a group of packets at a time |
//! | 4 for bulk data | `ahead`: into the chunk that the reader gets |
//! | 5 frames | `run`: packets that continue one stream; `frames`: all others; `ack`: ACK frames |
//! | 6 settle | `settle`: once a run; `loss`: losses found, what they carried queued again |
//!
//! `trip` is the state of one run on its way, `early` keeps packets that arrive before their keys.

mod ack;
mod ahead;
mod early;
mod frames;
mod loss;
mod open;
mod run;
mod settle;
mod split;
mod trip;

use squall_wire::{ConnectionId, DatagramBatch, header};

use super::{Connection, State};
use crate::path::same;
use crate::space::SpaceId;
use crate::stages::Stages;
use crate::time::Time;
pub(super) use trip::Trip;

impl Connection {
    /// Prefetches memory that the connection refers to and the next run needs: the keys, the
    /// records of sent and received packets, and the index of the streams. The connection's own
    /// memory should have been prefetched before.
    #[inline]
    pub fn prefetch(&self) {
        if let Some(ring) = &self.spaces.ring {
            ring.prefetch();
        }
        self.spaces[SpaceId::Data].prefetch();
        self.streams.prefetch();
    }

    /// Prefetches the streams' own memory, once [`prefetch`](Self::prefetch) has loaded the index
    /// that says where it is.
    #[inline]
    pub fn prefetch_streams(&self) {
        self.streams.prefetch_each();
    }

    /// Receives a run: consecutive datagrams of one bundle whose first packets have the same
    /// destination.
    ///
    /// The packets are decrypted in place, except for bulk data, which is decrypted to where it is
    /// read. Nothing refers to the buffer afterwards: anything else that is kept (stream, CRYPTO
    /// and DATAGRAM data, tokens, packets that wait for keys) is a copy.
    pub fn receive(&mut self, now: Time, run: DatagramBatch<'_>, stages: &mut Stages) {
        let DatagramBatch {
            path,
            ecn,
            segment_size,
            bytes,
        } = run;
        let segment = usize::from(segment_size).max(1);
        let datagrams = bytes.len().div_ceil(segment) as u64;
        self.stats.runs += 1;
        self.stats.datagrams_received += datagrams;
        self.stats.bytes_received += bytes.len() as u64;
        match self.state {
            State::Draining | State::Drained => return,
            State::Closing(_) => {
                return self.answer_while_closing(path.remote, datagrams, bytes.len());
            }
            State::Handshaking | State::Established => {}
        }
        let new_address = !same(&path, &self.paths.active.path);
        let home = !new_address || self.paths.follows_system(&path);
        let mut uncredited = 0;
        if home {
            let active = &mut self.paths.active;
            active.on_received(bytes.len());
            active.path.local = active.path.local.or(path.local);
        } else if (self.paths).admits(&path, &self.config, self.handshake.confirmed) {
            uncredited = self.paths.credit_elsewhere(&path, bytes.len());
        } else {
            self.stats.packets_dropped += datagrams;
            return;
        }
        let dcid = header::destination(bytes, self.endpoint.ids.len)
            .and_then(ConnectionId::new)
            .unwrap_or(ConnectionId::EMPTY);
        let mut trip = Trip::new(now, dcid, path, home, ecn, stages);
        (trip.new_address, trip.uncredited) = (new_address, uncredited);
        self.split_run(bytes, segment, &mut trip);
        self.replay_early(&mut trip);
        if trip.moved && !self.is_closed() {
            if trip.home {
                self.on_new_source(now, path);
            } else {
                self.follow(&mut trip);
            }
        }
        self.settle(&mut trip);
    }
}
