//! The time that one connection takes on its worker, for measured connections.
//!
//! ```text
//! receive call     shared by bytes ───────────────┐
//! a run delivered  measured under the lock ───────┤
//! timers           measured under the lock ───────┼──> the connection's table
//! a round of sending  measured under the lock ────┤
//! send call        shared by bytes ───────────────┘
//! ```
//! Each stretch of time goes to one connection, and also to the worker's own table if it has one:
//! the connections' tables never add up to more.

use std::sync::Arc;

use squall_core::{Stage, Stages};

use super::Worker;
use super::measured::{Measured, MeasuredCount};
use super::shared::ConnectionShared;
use super::state::State;
use crate::sys;

impl State {
    fn measured(&mut self) -> Option<&mut Stages> {
        let measured = self.measured.as_deref_mut()?;
        measured.on.then_some(&mut measured.table)
    }

    /// Does a connection's part of a turn, and adds its time to the connection's table as well.
    #[inline]
    pub(super) fn measure<R>(
        &mut self,
        stages: &mut Stages,
        rest: Stage,
        work: impl FnOnce(&mut Self, &mut Stages) -> R,
    ) -> R {
        match self.measured.take_if(|measured| measured.on) {
            None => work(self, stages),
            Some(measured) => self.measure_into(measured, stages, rest, work),
        }
    }

    #[cold]
    fn measure_into<R>(
        &mut self,
        mut measured: Box<Measured>,
        stages: &mut Stages,
        rest: Stage,
        work: impl FnOnce(&mut Self, &mut Stages) -> R,
    ) -> R {
        let table = &mut measured.table;
        let result = if stages.is_on() {
            // The time before belongs to something else.
            stages.mark(rest);
            let before = *stages.ticks();
            let result = work(self, stages);
            stages.mark(rest);
            table.add_since(stages, &before);
            result
        } else {
            table.resume();
            let result = work(self, table);
            table.mark(rest);
            result
        };
        self.measured = Some(measured);
        result
    }
}

impl ConnectionShared {
    /// Starts or stops measuring.
    pub(crate) fn set_measured(&self, on: bool) {
        let mut state = self.lock();
        if state.removed {
            return;
        }
        let new = || Measured {
            on: false,
            table: Stages::on(sys::ticks),
        };
        let measured = state.measured.get_or_insert_with(|| Box::new(new()));
        match (std::mem::replace(&mut measured.on, on), on) {
            (false, true) => self.worker.measured.add(),
            (true, false) => self.worker.measured.remove(),
            _ => {}
        }
    }

    /// The times measured so far.
    pub(crate) fn stages(&self) -> Stages {
        let state = self.lock();
        let measured = state.measured.as_ref();
        measured.map_or_else(Stages::off, |measured| measured.table.clone())
    }

    /// Adds the time of a task of the connection, between two readings of the worker's table.
    pub(super) fn attribute_task(&self, before: &[u64; Stage::COUNT], after: &[u64; Stage::COUNT]) {
        if !self.worker.measured.any() {
            return;
        }
        if let Some(table) = self.lock().measured() {
            for stage in [Stage::Http, Stage::Qpack, Stage::Application] {
                let of = |ticks: &[u64; Stage::COUNT]| ticks[stage as usize];
                table.attribute(stage, of(after).wrapping_sub(of(before)));
            }
        }
    }

    /// Adds a part of a system call.
    fn attribute(&self, stage: Stage, ticks: u64) {
        if let Some(table) = self.lock().measured() {
            table.attribute(stage, ticks);
        }
    }

    /// The worker lets go of the connection, which takes no more time from now on.
    pub(super) fn end_measuring(&self, state: &mut State) {
        if let Some(measured) = state.measured.as_mut().filter(|measured| measured.on) {
            measured.on = false;
            self.worker.measured.remove();
        }
    }
}

/// System calls, whose time is shared by bytes.
#[derive(Default)]
pub(super) struct Calls {
    /// The receive call whose datagrams are being delivered: its ticks and its bytes.
    received: (u64, u64),
    /// Bytes in the send buffer, of all connections.
    unsent: u64,
    /// The bytes of measured connections.
    of_measured: Vec<(Arc<ConnectionShared>, u64)>,
}

impl Calls {
    /// The start of a call that measured connections may have a part in.
    pub(super) fn begin(count: &MeasuredCount) -> Option<u64> {
        count.any().then(sys::ticks)
    }

    /// The receive call that began then has returned this many bytes.
    pub(super) fn received(&mut self, begun: Option<u64>, bytes: impl FnOnce() -> u64) {
        self.received = match begun {
            Some(begun) => (sys::ticks().saturating_sub(begun), bytes()),
            None => (0, 0),
        };
    }

    /// A connection gets this many of the received bytes.
    #[inline]
    pub(super) fn deliver(&self, state: &mut State, bytes: usize) {
        if self.received.1 > 0
            && let Some(table) = state.measured()
        {
            let (ticks, all) = self.received;
            table.attribute(Stage::UdpReceive, part(ticks, bytes as u64, all));
        }
    }

    /// A connection has written this many bytes to be sent.
    #[inline]
    pub(super) fn fill(
        &mut self,
        connection: &Arc<ConnectionShared>,
        state: &mut State,
        bytes: usize,
    ) {
        self.unsent += bytes as u64;
        if bytes > 0 && state.measured().is_some() {
            let connection = Arc::clone(connection);
            self.of_measured.push((connection, bytes as u64));
        }
    }
}

fn part(ticks: u64, bytes: u64, all: u64) -> u64 {
    let part = u128::from(ticks) * u128::from(bytes) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(ticks)
}

impl Worker {
    /// The send call that began then has sent, or tried to send, the send buffer.
    pub(super) fn sent(&mut self, begun: Option<u64>) {
        let all = std::mem::take(&mut self.calls.unsent);
        if self.calls.of_measured.is_empty() {
            return;
        }
        let ticks = begun.map_or(0, |begun| sys::ticks().saturating_sub(begun));
        for (connection, bytes) in std::mem::take(&mut self.calls.of_measured) {
            connection.attribute(Stage::UdpSend, part(ticks, bytes, all));
        }
    }
}
